"""Results go out as they come; what is late fills its place, and only what nobody works on any more is skipped."""

from support.raw_node import Message, RawNode, silent
from support.redis_servers import LONG_CLUSTER
from support.speech import ACKING, TIMEOUT_S, Scenario, after, module_harness
from support.waiting import wait_until

WINDOW_MS = 1200
QUICK: dict[str, object] = {
    "speech__release__ack_timeout_ms": WINDOW_MS,
    "speech__attempt_timeout_ms": 10_000,
    "speech__job_ack_timeout_ms": 1000,
    "speech__job_timeout_ms": 20_000,
    "speech__placement_wait_ms": 10_000,
    "speech__reorder_ms": 300,
}


harness = module_harness(QUICK, on=("single", LONG_CLUSTER))


async def ack_only(node: RawNode, job: Message) -> None:
    await node.ack(job)


def window(ms: float = WINDOW_MS) -> float:
    """Longer than the window, by what a busy machine needs."""
    return ms / 1000 + 0.3


async def test_two_jobs_of_a_session_on_the_simulated_node_are_both_sent(scenario: Scenario) -> None:
    """Our own node keeps the order itself."""
    await scenario.sim_node(slots=2, delay_ms=WINDOW_MS + 200)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0, packets=100)
    await scenario.say_utterance(talker, 1, packets=10)
    results = [await talker.result(index, TIMEOUT_S) for index in (0, 1)]
    assert [result["utterance_index"] for result in results] == [0, 1]
    assert not any(result.get("backfilled") for result in results)


async def test_later_result_is_sent_at_once_and_the_earlier_one_is_backfilled(scenario: Scenario) -> None:
    node = await scenario.node(features=ACKING, work=ack_only)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await scenario.say_utterance(talker, 1)
    await node.job(2)
    await node.answer(node.jobs[1])
    assert "backfilled" not in await talker.result(1, TIMEOUT_S)
    await node.answer(node.jobs[0])
    assert (await talker.result(0, TIMEOUT_S))["backfilled"] is True


async def test_late_result_is_dropped_after_the_release_window(scenario: Scenario) -> None:
    node = await scenario.node(features=ACKING, work=ack_only)
    talker = await scenario.talker()
    for index in range(2):
        await scenario.say_utterance(talker, index)
    await node.job(2)
    late = await scenario.count("dragoman_release_total{state=late}")
    skipped = await scenario.count("dragoman_release_total{state=skipped}")
    await node.answer(node.jobs[1])
    await talker.result(1, TIMEOUT_S)

    async def counted(state: str, before: float) -> bool:
        return await scenario.count(f"dragoman_release_total{{state={state}}}") == before + 1

    await wait_until(lambda: counted("skipped", skipped), TIMEOUT_S)
    await node.answer(node.jobs[0])
    await wait_until(lambda: counted("late", late), TIMEOUT_S)
    await scenario.say_utterance(talker, 2)
    await node.answer(await node.job(3))
    await talker.result(2, TIMEOUT_S)
    assert not [m for m in talker.heard if m["type"] == "translation_result"]


async def test_a_gap_whose_job_fails_over_after_the_gap_opened_is_filled_however_late(scenario: Scenario) -> None:
    first = await scenario.node(features=ACKING, work=ack_only)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await scenario.say_utterance(talker, 1)
    await first.job(2)
    await first.answer(first.jobs[1])
    assert await talker.result(1, TIMEOUT_S)  # the gap of 0 is open, and its time is running
    second = await scenario.node(features=ACKING, work=ack_only)
    first.die()
    again = await second.job()
    assert again["attempt_id"] == 2
    await wait_until(after(window()), TIMEOUT_S)
    await second.answer(again)
    assert (await talker.result(0, TIMEOUT_S))["backfilled"] is True


async def test_utterances_that_arrive_out_of_order_reach_the_node_in_order(scenario: Scenario) -> None:
    node = await scenario.node()
    talker = await scenario.talker()
    for index in (2, 1, 0):
        await scenario.say_utterance(talker, index)
    for index in range(3):
        assert await talker.result(index, TIMEOUT_S)
    assert [job["utterance_index"] for job in node.jobs] == [0, 1, 2]


async def test_missing_index_delays_the_next_one_only_for_the_reorder_time(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 1)
    await node.answer(await node.job())
    assert await talker.result(1, TIMEOUT_S)
    await scenario.say_utterance(talker, 0)  # late, not used
    await node.answer(await node.job(2))
    assert (await talker.result(0, TIMEOUT_S))["backfilled"] is True
