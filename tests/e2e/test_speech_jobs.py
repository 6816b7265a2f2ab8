"""Every utterance ends, and its session is told how: time-outs, dying nodes, missing models, nobody there.

Two instances with short times; sessions are on the first, nodes on either.
"""

from collections.abc import Iterator

import pytest

from e2e.raw_node import Message, RawNode, at_once, silent
from e2e.speech_stage import ACKING, PATIENCE_S, Stage, Talker, Visit, standing, visiting
from key_leaks import Onlooker
from redis_fixtures import FIXTURE_OF, LONG_CLUSTER
from waiting import wait_until

QUICK: dict[str, object] = {
    "speech__job_ack_timeout_ms": 500,
    "speech__attempt_timeout_ms": 1200,
    "speech__job_timeout_ms": 3000,
    "speech__placement_wait_ms": 700,
    "speech__node_grace_ms": 300,
}


@pytest.fixture(scope="module", params=["single", LONG_CLUSTER])
def stage(
    request: pytest.FixtureRequest, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    redis = request.getfixturevalue(FIXTURE_OF[request.param])
    with standing(redis, tmp_path_factory.mktemp("jobs"), onlooker, QUICK, QUICK) as up:
        yield up


async def ack_only(node: RawNode, job: Message) -> None:
    await node.ack(job)


async def lacking(node: RawNode, job: Message) -> None:
    await node.lacks(job)


async def speak(visit: Visit, first: RawNode) -> Talker:
    """A client whose first utterance is on `first`, alone in the pool until then."""
    talker = await visit.talker()
    await visit.say_utterance(talker, 0)
    await first.job()
    return talker


async def moved_to(visit: Visit, talker: Talker, node: RawNode) -> dict[str, str]:
    """The record of utterance 0, which was answered by `node` in a second attempt."""
    result = await talker.result(0, PATIENCE_S)
    record = await wait_until(lambda: visit.released(result["job_id"]), PATIENCE_S)
    assert (record["node_id"], record["attempt"], record["outcome"]) == (node.id, "2", "ok")
    return dict(record)


# -- failover --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1], ids=["same instance", "across"])
async def test_a_job_that_is_not_acknowledged_goes_to_another_node(stage: Stage, at: int) -> None:
    async with visiting(stage) as visit:
        deaf = await visit.node(at, features=ACKING, work=silent)
        talker = await speak(visit, deaf)
        good = await visit.node(at, features=ACKING)
        record = await moved_to(visit, talker, good)
        await wait_until(lambda: deaf.cancelled == [record["job_id"]], PATIENCE_S)
        assert await visit.reserved(deaf) == 0
        assert [job["attempt_id"] for job in good.jobs] == [2]


@pytest.mark.parametrize("at", [0, 1], ids=["same instance", "across"])
async def test_an_attempt_that_takes_too_long_goes_to_another_node_and_its_late_result_is_dropped(
    stage: Stage, at: int
) -> None:
    async with visiting(stage) as visit:
        stuck = await visit.node(at, features=ACKING, work=ack_only)
        talker = await speak(visit, stuck)
        assert await talker.event("NODE_ACCEPTED")
        good = await visit.node(at, features=ACKING, work=silent)
        again = await good.job()
        assert again["attempt_id"] == 2
        dropped = await visit.count("dragoman_results_dropped_total{reason=no_driver}", at)
        await stuck.answer(stuck.jobs[0], text_translated="late")
        await good.ack(again)
        await good.answer(again, text_translated="in time")
        result = await talker.result(0, PATIENCE_S)
        assert result["text_translated"] == "in time"

        async def counted() -> bool:
            return await visit.count("dragoman_results_dropped_total{reason=no_driver}", at) == dropped + 1

        await wait_until(counted, PATIENCE_S)
        await talker.pong()
        assert not [m for m in talker.heard if m["type"] == "translation_result"]


@pytest.mark.parametrize("at", [0, 1], ids=["same instance", "across"])
async def test_a_job_whose_node_dies_is_run_by_another_at_once(stage: Stage, at: int) -> None:
    async with visiting(stage) as visit:
        doomed = await visit.node(at, features=ACKING, work=ack_only)
        talker = await speak(visit, doomed)
        good = await visit.node(at, features=ACKING)
        before = await visit.count("dragoman_failovers_total{reason=node_lost}")
        doomed.die()
        await moved_to(visit, talker, good)
        assert await visit.count("dragoman_failovers_total{reason=node_lost}") == before + 1


async def test_a_node_that_comes_back_in_time_hands_in_what_it_finished(stage: Stage) -> None:
    async with visiting(stage) as visit:
        features = (*ACKING, "resume")
        node = await visit.node(features=features, work=ack_only)
        talker = await speak(visit, node)
        assert await talker.event("NODE_ACCEPTED")
        node.die()
        back = await RawNode.dial(
            visit.http, stage.port, languages=(visit.src, visit.tgt), node_id=node.id, features=features, work=silent
        )
        await back.answer(node.jobs[0])
        result = await talker.result(0, PATIENCE_S)
        assert (await visit.job(result["job_id"]))["attempt"] == "1"
        await back.close()


async def test_a_job_whose_model_is_missing_goes_elsewhere_and_the_node_cools_down_for_all_instances(
    stage: Stage,
) -> None:
    async with visiting(stage) as visit:
        bare = await visit.node(0, features=ACKING, work=lacking)
        talker = await speak(visit, bare)
        result = await talker.failed()
        assert result["code"] == "MODEL_NOT_AVAILABLE"  # nobody else was there
        good = await visit.node(0, features=ACKING)
        there = await visit.talker(1)
        for index in range(8):
            await visit.say_utterance(there, index)
        for index in range(8):
            assert await there.result(index, PATIENCE_S)
        assert len(bare.jobs) == 1
        assert len(good.jobs) == 8


async def test_a_job_whose_model_is_missing_is_tried_again_on_another_node(stage: Stage) -> None:
    async with visiting(stage) as visit:
        bare = await visit.node(work=silent)
        talker = await speak(visit, bare)
        good = await visit.node()
        await bare.lacks(bare.jobs[0])
        await moved_to(visit, talker, good)


# -- ends without an answer ------------------------------------------------------------------------


async def test_a_job_out_of_time_tells_its_session_under_the_sessions_trace(stage: Stage) -> None:
    async with visiting(stage) as visit:
        nodes = await visit.nodes(3, work=silent)  # old ones: their job runs into its attempt's time-out
        talker = Talker(await visit.socket())
        ack = await talker.init(src_lang=visit.src, tgt_lang=visit.tgt, trace_id="trace-of-the-session")
        await visit.say_utterance(talker, 0, trace_id="trace-of-the-job")
        told = await talker.event("ERROR")
        error = await talker.failed()
        assert (told["status"], told["error_code"], told["trace_id"]) == ("error", "JOB_TIMEOUT", "trace-of-the-job")
        assert (error["code"], error["trace_id"]) == ("JOB_TIMEOUT", ack["trace_id"])
        assert error["details"] == {
            "job_id": told["job_id"],
            "utterance_index": 0,
            "trace_id": "trace-of-the-job",
        }
        record = await wait_until(lambda: visit.released(told["job_id"]), PATIENCE_S)
        assert record["code"] == "JOB_TIMEOUT"
        assert record["outcome"] in ("expired", "failed")
        given = [node for node in nodes if node.jobs]
        assert len(given) >= 2
        for node in given:
            await wait_until(lambda: node.cancelled == [told["job_id"]], PATIENCE_S)  # noqa: B023
        await wait_until(lambda: visit.all_free(nodes), PATIENCE_S)


async def test_a_job_without_a_node_fails_after_its_wait_and_the_next_cut_works(stage: Stage) -> None:
    async with visiting(stage) as visit:
        talker = await visit.talker()
        await talker.speak(5, final=True)
        told = await talker.event("ERROR")
        error = await talker.failed()
        assert (told["error_code"], error["code"]) == ("NO_AVAILABLE_NODE", "NO_AVAILABLE_NODE")
        assert "no node in pool" in error["message"]
        await visit.node(features=ACKING)
        await talker.speak(5, final=True)
        assert await talker.result(1, PATIENCE_S)


async def test_when_all_nodes_are_full_the_session_is_asked_to_wait_and_then_told(stage: Stage) -> None:
    async with visiting(stage) as visit:
        await visit.node(features=(*ACKING, "slots:1"), work=ack_only)
        holder, waiting = await visit.talker(), await visit.talker()
        await visit.say_utterance(holder, 0)
        assert await holder.event("NODE_ACCEPTED")
        await visit.say_utterance(waiting, 0)
        pressed = await waiting.until(lambda m: m["type"] == "backpressure", PATIENCE_S)
        assert (pressed["action"], pressed["resume_after_ms"]) == ("PAUSE", 1000)
        error = await waiting.failed()
        assert error["code"] == "NO_AVAILABLE_NODE"
        assert "all full" in error["message"]


async def test_a_node_failure_is_told_with_its_own_words(stage: Stage) -> None:
    async with visiting(stage) as visit:
        node = await visit.node(work=silent)
        talker = await speak(visit, node)
        await node.fail(node.jobs[0], "PROCESSING_ERROR", "Opus decoding failed")
        told, error = await talker.event("ERROR"), await talker.failed()
        assert (told["error_code"], told["hint"]) == ("PROCESSING_ERROR", "Opus decoding failed")
        assert (error["code"], error["message"]) == ("PROCESSING_ERROR", "Opus decoding failed")
        await visit.say_utterance(talker, 1)
        await node.answer(await node.job(2))
        assert await talker.result(1, PATIENCE_S)


@pytest.mark.parametrize("at", [0, 1], ids=["same instance", "across"])
async def test_when_the_session_goes_its_jobs_are_cancelled_at_their_node(stage: Stage, at: int) -> None:
    async with visiting(stage) as visit:
        node = await visit.node(at, features=ACKING, work=ack_only)
        talker = await speak(visit, node)
        await talker.ws.close()
        await wait_until(lambda: node.cancelled == [node.jobs[0]["job_id"]], PATIENCE_S)
        record = await wait_until(lambda: visit.released(node.jobs[0]["job_id"]), PATIENCE_S)
        assert record["outcome"] == "cancelled"
        assert await visit.reserved(node) == 0


async def test_the_events_of_an_utterance_come_in_order(stage: Stage) -> None:
    async def work(node: RawNode, job: Message) -> None:
        await node.ack(job)
        await node.start(job)
        await node.partial(job, "said")
        await node.answer(job)

    async with visiting(stage) as visit:
        await visit.node(features=ACKING, work=work)
        talker = await visit.talker()
        await visit.say_utterance(talker, 0)
        result = await talker.result(0, PATIENCE_S)
        order = [m["event"] if m["type"] == "ui_event" else m["type"] for m in talker.heard]
        assert order == ["DISPATCHED", "NODE_ACCEPTED", "asr_partial", "ASR_FINAL", "NMT_DONE"]
        assert {m["job_id"] for m in talker.heard} == {result["job_id"]}
        assert {m["trace_id"] for m in talker.heard} == {result["trace_id"]}


async def test_many_jobs_on_both_instances_all_end_and_leave_no_slot_taken(stage: Stage) -> None:
    """Half the nodes answer; the others fail in every way there is."""
    ways = (lacking, silent, ack_only)

    async with visiting(stage) as visit:
        good = [await visit.node(at, features=(*ACKING, "slots:100")) for at in (0, 1)]
        bad = [await visit.node(number % 2, features=ACKING, work=way) for number, way in enumerate(ways)]
        talkers = [await visit.talker(number % 2) for number in range(10)]
        for index in range(10):
            for talker in talkers:
                await visit.say_utterance(talker, index)
        bad[2].die()
        for talker in talkers:
            for index in range(10):
                assert await talker.result(index, PATIENCE_S)
        assert sum(len(node.jobs) for node in good) == 100
        await wait_until(lambda: visit.all_free([*good, *bad]), PATIENCE_S)


async def test_a_node_that_is_not_ready_for_a_step_is_not_asked_for_it(stage: Stage) -> None:
    async with visiting(stage) as visit:
        hears = await visit.node()
        await ready_only_for(visit, hears, ["asr", "tts"])
        talker = await visit.talker()
        pipeline = {"use_asr": True, "use_nmt": False, "use_tts": False}
        await visit.say_utterance(talker, 0, pipeline=pipeline)
        assert await talker.result(0, PATIENCE_S)
        await visit.say_utterance(talker, 1)
        assert (await talker.failed(1))["code"] == "NO_AVAILABLE_NODE"
        assert len(hears.jobs) == 1


async def test_a_node_without_a_voice_serves_text_when_no_node_with_one_can(stage: Stage) -> None:
    async with visiting(stage) as visit:
        mute = await visit.node(features=ACKING)
        await ready_only_for(visit, mute, ["asr", "nmt"])
        talker = await visit.talker()
        await visit.say_utterance(talker, 0)
        result = await talker.result(0, PATIENCE_S)
        assert result["text_translated"]
        assert result["tts_audio"] == ""
        assert mute.jobs[0]["pipeline"]["use_tts"] is False
        speaks = await visit.node(features=ACKING)
        for index in range(1, 6):
            await visit.say_utterance(talker, index)
            assert await talker.result(index, PATIENCE_S)
        assert [job["pipeline"]["use_tts"] for job in speaks.jobs] == [True] * 5


async def ready_only_for(visit: Visit, node: RawNode, kinds: list[str]) -> None:
    can = [{"type": kind, "ready": kind in kinds} for kind in ("asr", "nmt", "semantic", "tts")]
    await node.beat((visit.src, visit.tgt), capability_by_type=can)
    await wait_until(lambda: is_ready_for(visit, node, kinds), PATIENCE_S)


async def is_ready_for(visit: Visit, node: RawNode, kinds: list[str]) -> bool:
    told = (await visit.get("/api/v1/cluster"))["nodes"]
    return any(one["node_id"] == node.id and one["ready"] == kinds for one in told)


async def test_two_way_sessions_need_a_node_for_both_directions(stage: Stage) -> None:
    async with visiting(stage) as visit:
        one_way = await visit.node(languages=(visit.src,), work=at_once)
        talker = await visit.talker(src_lang="auto", mode="two_way_auto", lang_a=visit.src, lang_b=visit.tgt)
        await talker.speak(5, final=True)
        assert (await talker.failed(0))["code"] == "NO_AVAILABLE_NODE"
        both = await visit.node()
        await talker.speak(5, final=True)
        assert await talker.result(1, PATIENCE_S)
        assert (len(one_way.jobs), len(both.jobs)) == (0, 1)
        assert (both.jobs[0]["src_lang"], both.jobs[0]["lang_a"], both.jobs[0]["lang_b"]) == (
            "auto",
            visit.src,
            visit.tgt,
        )
