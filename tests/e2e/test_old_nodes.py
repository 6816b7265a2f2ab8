"""The five habits of old nodes that the scheduler lives with, each with a node that has them."""

from collections import defaultdict

from dragoman.protocol.audio import decode_base64 as audio_of
from dragoman.protocol.audio import opus_packets
from dragoman.protocol.codec import raw
from support.raw_node import Message, RawNode, silent
from support.speech import TIMEOUT_S, Scenario, after, module_harness
from support.waiting import wait_until

ATTEMPT_MS = 1500
LONG = 500  # packets: ten seconds, cut at once
QUICK: dict[str, object] = {
    "speech__attempt_timeout_ms": ATTEMPT_MS,
    "speech__job_ack_timeout_ms": 1000,
    "speech__job_timeout_ms": 6000,
    "speech__placement_wait_ms": 600,
    "speech__pause_ms": 4000,
}


harness = module_harness(QUICK)


class OldEngine:
    """What an old node does with jobs, all habits together.

    It refuses what it has seen, keeps the audio of max-duration jobs until their turn ends, merges by turn and
    language, and does not translate an index below one it has had.
    """

    def __init__(self) -> None:
        self.seen: set[object] = set()
        self.kept: dict[tuple[str, str], int] = defaultdict(int)
        self.highest: dict[str, int] = {}

    async def __call__(self, node: RawNode, job: Message) -> None:
        session, index = job["session_id"], job["utterance_index"]
        if job["job_id"] in self.seen or (session, index) in self.seen:
            await node.fail(job, "PROCESSING_ERROR", f"DUPLICATE_JOB_ID: {job['job_id']}")
            return
        self.seen |= {job["job_id"], (session, index)}
        turn = job["turn_id"], job["tgt_lang"]
        self.kept[turn] += opus_packets(audio_of(raw(job["audio"])))
        if job.get("is_max_duration_triggered"):
            return
        packets, untranslated = self.kept.pop(turn), index < self.highest.get(session, -1)
        self.highest[session] = max(index, self.highest.get(session, -1))
        text = f"{packets} packets"
        await node.answer(job, text_asr=text, text_translated="" if untranslated else f"translated {text}")


# -- 1: they refuse what they have seen ------------------------------------------------------------


async def test_habit_1_a_retry_goes_to_a_node_that_has_not_seen_the_job(scenario: Scenario) -> None:
    first = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await first.job()
    first.work = OldEngine()  # it would refuse: it has seen the job
    first.work.seen = {first.jobs[0]["job_id"]}
    second = await scenario.node(work=OldEngine())
    await first.lacks(first.jobs[0])
    assert (await talker.result(0, TIMEOUT_S))["text_asr"] == "10 packets"
    assert (len(first.jobs), len(second.jobs)) == (1, 1)


# -- 2: they may never answer ----------------------------------------------------------------------


async def test_habit_2_a_max_duration_job_waits_as_long_as_its_turn_and_is_empty_when_that_was_answered(
    scenario: Scenario,
) -> None:
    node = await scenario.node(work=OldEngine())
    talker = await scenario.talker()
    for _ in range(2):
        await talker.speak(LONG)
    await node.job(2)
    over = after(ATTEMPT_MS / 1000 + 0.5)
    while not over():  # the turn goes on, and no time runs out
        await talker.speak(1)
        await wait_until(after(0.1), TIMEOUT_S)
    assert not node.cancelled
    await wait_until(lambda: scenario.all_free([node]), TIMEOUT_S)  # the slots went back all the same
    await talker.speak(1, final=True)
    result = await talker.result(2, TIMEOUT_S)
    assert int(result["text_asr"].split()[0]) > 2 * LONG
    await talker.say("session_close", session_id=talker.session_id, reason="done")
    await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
    assert not [m for m in talker.heard if m["type"] == "error" or m.get("event") == "ERROR"]
    for job in node.jobs[:2]:
        record = await wait_until(lambda: scenario.released(job["job_id"]), TIMEOUT_S)  # noqa: B023
        assert (record["outcome"], record["attempt"]) == ("empty", "1")


async def test_habit_2_a_turn_ended_by_an_empty_final_ends_what_was_kept(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    for _ in range(2):
        await talker.speak(LONG)
    await node.answer(await node.job(2))
    assert await talker.result(1, TIMEOUT_S)
    await talker.speak(0, final=True)
    record = await wait_until(lambda: scenario.released(node.jobs[0]["job_id"]), TIMEOUT_S)
    assert record["outcome"] == "empty"


# -- 3: they want rising indexes -------------------------------------------------------------------


async def test_habit_3_the_utterances_of_a_session_reach_a_node_in_order(scenario: Scenario) -> None:
    nodes = [await scenario.node(work=OldEngine()) for _ in range(2)]
    talkers = [await scenario.talker() for _ in range(4)]
    for index in range(15):
        for talker in talkers:
            await scenario.say_utterance(talker, index)
    for talker in talkers:
        for index in range(15):
            assert (await talker.result(index, TIMEOUT_S))["text_translated"] == "translated 10 packets"
    for node in nodes:
        of_session: dict[str, list[int]] = defaultdict(list)
        for job in node.jobs:
            of_session[job["session_id"]].append(job["utterance_index"])
        assert all(indexes == sorted(indexes) for indexes in of_session.values())


async def test_habit_3_an_older_utterance_that_fails_over_is_delivered_though_it_comes_back_untranslated(
    scenario: Scenario,
) -> None:
    doomed = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await doomed.job()
    await scenario.node(work=OldEngine())
    for index in range(1, 9):  # at least one of them goes to the other
        await scenario.say_utterance(talker, index)
    await talker.until(lambda m: m["type"] == "translation_result", TIMEOUT_S)
    doomed.die()
    result = await talker.result(0, TIMEOUT_S)
    assert (result["text_asr"], result["text_translated"]) == ("10 packets", "")
    assert result["backfilled"] is True


# -- 4: they merge by turn and language ------------------------------------------------------------


async def test_habit_4_the_jobs_of_a_turn_meet_on_one_node_which_answers_for_all_of_them(scenario: Scenario) -> None:
    nodes = [await scenario.node(work=OldEngine()) for _ in range(6)]
    talker = await scenario.talker()
    for turn in range(8):
        for _ in range(3):
            await talker.speak(LONG)
        await talker.speak(7, final=True)
        result = await talker.result(4 * turn + 3, TIMEOUT_S)
        assert result["text_asr"] == f"{3 * LONG + 7} packets"
    assert sum(len(node.jobs) for node in nodes) == 32
    assert {(job["tgt_lang"], "turn_id" in job) for node in nodes for job in node.jobs} == {(scenario.tgt, True)}


# -- 5: they come back, and have dropped what they finished meanwhile ------------------------------


async def test_habit_5_jobs_of_a_node_that_reconnects_do_not_wait_for_it(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await node.job()
    other = await scenario.node(work=OldEngine())
    node.die()
    result = await talker.result(0, TIMEOUT_S)  # at once: old nodes have nothing to come back with
    record = await scenario.job(result["job_id"])
    assert (record["node_id"], record["attempt"]) == (other.id, "2")
    other.die()
    await wait_until(lambda: scenario.forgot(other.id), TIMEOUT_S)
    back = await scenario.node(node_id=node.id, work=OldEngine(), beat_first=True)
    assert back.id == node.id
    await scenario.say_utterance(talker, 1)
    assert await talker.result(1, TIMEOUT_S)
    assert [job["utterance_index"] for job in back.jobs] == [1]


async def test_habit_5_audio_buffered_by_a_lost_old_node_fails_with_an_error_to_the_session(scenario: Scenario) -> None:
    """The audio of a max-duration job lies in the buffer of a node that is gone, and moving it would tear the turn."""
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await talker.speak(LONG)
    await node.job()
    other = await scenario.node(work=OldEngine())
    node.die()
    assert (await talker.failed(0))["code"] == "NODE_UNAVAILABLE"
    await talker.speak(LONG)
    await talker.speak(1, final=True)
    assert (await talker.result(2, TIMEOUT_S))["text_asr"]
    assert [job["utterance_index"] for job in other.jobs] == [1, 2]
