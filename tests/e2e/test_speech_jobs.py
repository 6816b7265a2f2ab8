"""Every utterance ends, and its session is told how: time-outs, dying nodes, missing models, nobody there.

Two instances with short times; sessions are on the first, nodes on either.
"""

import pytest

from support.raw_node import Message, RawNode, at_once, silent
from support.redis_servers import LONG_CLUSTER
from support.speech import ACKING, TIMEOUT_S, Scenario, Talker, module_harness
from support.waiting import wait_until

QUICK: dict[str, object] = {
    "speech__job_ack_timeout_ms": 500,
    "speech__attempt_timeout_ms": 1200,
    "speech__job_timeout_ms": 3000,
    "speech__placement_wait_ms": 700,
    "speech__node_grace_ms": 300,
}


harness = module_harness(QUICK, QUICK, on=("single", LONG_CLUSTER))


async def ack_only(node: RawNode, job: Message) -> None:
    await node.ack(job)


async def lacking(node: RawNode, job: Message) -> None:
    await node.lacks(job)


async def speak(scenario: Scenario, first: RawNode) -> Talker:
    """A client whose first utterance is on `first`, alone in the pool until then."""
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await first.job()
    return talker


# -- failover --------------------------------------------------------------------------------------


# -- ends without an answer ------------------------------------------------------------------------


async def test_expired_job_gets_an_error_with_the_trace_of_the_session(scenario: Scenario) -> None:
    nodes = await scenario.nodes(3, work=silent)  # old ones: their job runs into its attempt's time-out
    talker = Talker(await scenario.socket())
    ack = await talker.init(src_lang=scenario.src, tgt_lang=scenario.tgt, trace_id="trace-of-the-session")
    await scenario.say_utterance(talker, 0, trace_id="trace-of-the-job")
    told = await talker.event("ERROR")
    error = await talker.failed()
    assert (told["status"], told["error_code"], told["trace_id"]) == ("error", "JOB_TIMEOUT", "trace-of-the-job")
    assert (error["code"], error["trace_id"]) == ("JOB_TIMEOUT", ack["trace_id"])
    assert error["details"] == {
        "job_id": told["job_id"],
        "utterance_index": 0,
        "trace_id": "trace-of-the-job",
    }
    record = await wait_until(lambda: scenario.released(told["job_id"]), TIMEOUT_S)
    assert record["code"] == "JOB_TIMEOUT"
    assert record["outcome"] in ("expired", "failed")
    given = [node for node in nodes if node.jobs]
    assert len(given) >= 2
    for node in given:
        await wait_until(lambda: node.cancelled == [told["job_id"]], TIMEOUT_S)  # noqa: B023
    await wait_until(lambda: scenario.all_free(nodes), TIMEOUT_S)


async def test_a_job_without_a_node_fails_after_its_wait_and_the_next_cut_works(scenario: Scenario) -> None:
    talker = await scenario.talker()
    await talker.speak(5, final=True)
    told = await talker.event("ERROR")
    error = await talker.failed()
    assert (told["error_code"], error["code"]) == ("NO_AVAILABLE_NODE", "NO_AVAILABLE_NODE")
    assert "no node in pool" in error["message"]
    await scenario.node(features=ACKING)
    await talker.speak(5, final=True)
    assert await talker.result(1, TIMEOUT_S)


async def test_error_of_a_node_reaches_the_client_with_its_message(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await speak(scenario, node)
    await node.fail(node.jobs[0], "PROCESSING_ERROR", "Opus decoding failed")
    told, error = await talker.event("ERROR"), await talker.failed()
    assert (told["error_code"], told["hint"]) == ("PROCESSING_ERROR", "Opus decoding failed")
    assert (error["code"], error["message"]) == ("PROCESSING_ERROR", "Opus decoding failed")
    await scenario.say_utterance(talker, 1)
    await node.answer(await node.job(2))
    assert await talker.result(1, TIMEOUT_S)


@pytest.mark.parametrize("at", [0, 1], ids=["same instance", "across"])
async def test_jobs_of_an_ended_session_are_cancelled_at_their_node(scenario: Scenario, at: int) -> None:
    node = await scenario.node(at, features=ACKING, work=ack_only)
    talker = await speak(scenario, node)
    await talker.ws.close()
    await wait_until(lambda: node.cancelled == [node.jobs[0]["job_id"]], TIMEOUT_S)
    record = await wait_until(lambda: scenario.released(node.jobs[0]["job_id"]), TIMEOUT_S)
    assert record["outcome"] == "cancelled"
    assert await scenario.reserved(node) == 0


async def test_many_jobs_on_both_instances_all_end_and_leave_no_slot_taken(scenario: Scenario) -> None:
    """Half the nodes answer; the others fail in every way there is."""
    ways = (lacking, silent, ack_only)

    good = [await scenario.node(at, features=(*ACKING, "slots:100")) for at in (0, 1)]
    bad = [await scenario.node(number % 2, features=ACKING, work=way) for number, way in enumerate(ways)]
    talkers = [await scenario.talker(number % 2) for number in range(10)]
    for index in range(10):
        for talker in talkers:
            await scenario.say_utterance(talker, index)
    bad[2].die()
    for talker in talkers:
        for index in range(10):
            assert await talker.result(index, TIMEOUT_S)
    assert sum(len(node.jobs) for node in good) == 100
    await wait_until(lambda: scenario.all_free([*good, *bad]), TIMEOUT_S)


async def test_node_without_speech_synthesis_serves_text_when_no_other_node_can(scenario: Scenario) -> None:
    mute = await scenario.node(features=ACKING)
    await ready_only_for(scenario, mute, ["asr", "nmt"])
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    result = await talker.result(0, TIMEOUT_S)
    assert result["text_translated"]
    assert result["tts_audio"] == ""
    assert mute.jobs[0]["pipeline"]["use_tts"] is False
    speaks = await scenario.node(features=ACKING)
    for index in range(1, 6):
        await scenario.say_utterance(talker, index)
        assert await talker.result(index, TIMEOUT_S)
    assert [job["pipeline"]["use_tts"] for job in speaks.jobs] == [True] * 5


async def ready_only_for(scenario: Scenario, node: RawNode, kinds: list[str]) -> None:
    can = [{"type": kind, "ready": kind in kinds} for kind in ("asr", "nmt", "semantic", "tts")]
    await node.beat((scenario.src, scenario.tgt), capability_by_type=can)
    await wait_until(lambda: is_ready_for(scenario, node, kinds), TIMEOUT_S)


async def is_ready_for(scenario: Scenario, node: RawNode, kinds: list[str]) -> bool:
    told = (await scenario.get("/api/v1/cluster"))["nodes"]
    return any(one["node_id"] == node.id and one["ready"] == kinds for one in told)


async def test_two_way_sessions_need_a_node_for_both_directions(scenario: Scenario) -> None:
    one_way = await scenario.node(languages=(scenario.src,), work=at_once)
    talker = await scenario.talker(src_lang="auto", mode="two_way_auto", lang_a=scenario.src, lang_b=scenario.tgt)
    await talker.speak(5, final=True)
    assert (await talker.failed(0))["code"] == "NO_AVAILABLE_NODE"
    both = await scenario.node()
    await talker.speak(5, final=True)
    assert await talker.result(1, TIMEOUT_S)
    assert (len(one_way.jobs), len(both.jobs)) == (0, 1)
    assert (both.jobs[0]["src_lang"], both.jobs[0]["lang_a"], both.jobs[0]["lang_b"]) == (
        "auto",
        scenario.src,
        scenario.tgt,
    )
