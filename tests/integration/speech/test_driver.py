"""A job is driven to exactly one end, whatever its nodes do; only the attempt under way is heard."""

import json
from typing import Any

import pytest

from dragoman.domain.job import Outcome, State
from dragoman.domain.placement import Turn
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.node import JobError
from dragoman.services.speech.job_request import JobRequest, LatestIndexes, TurnQueue
from dragoman.store.jobs import with_attempts
from support.in_process import (
    ACKING,
    QUICK,
    TIMEOUT_S,
    InProcessInstance,
    InProcessNode,
    OpenInstance,
    RecordingListener,
    RecordingSocket,
    end_of,
    given,
    job_request,
    missing_model,
    out_of_time,
    start,
)
from support.waiting import wait_until

# Nothing but the loss of a node moves a job in a test.
LONG_GRACE = {
    "speech__node_grace_ms": 500_000,
    "speech__reservation_ttl_ms": 600_000,
    "speech__job_ack_timeout_ms": 600_000,
    "speech__attempt_timeout_ms": 600_000,
    "speech__job_timeout_ms": 1_800_000,
}

# -- failing over ----------------------------------------------------------------------------------


async def test_a_job_that_is_not_acknowledged_goes_to_another_node(open_instance: OpenInstance) -> None:
    instance = await open_instance(**QUICK)
    deaf = await instance.node("deaf", features=ACKING)
    mine, listener = await start(instance, deaf)
    good = await instance.node("good", features=ACKING, working=True)
    assert await end_of(listener) is Outcome.OK
    assert deaf.cancelled == [mine.job_id]
    assert [job["attempt_id"] for job in good.jobs] == [2]
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert (record["node_id"], record["attempt"], record["outcome"]) == ("good", "2", "ok")
    assert instance.count("dragoman_failovers_total", reason="ack_timeout") == 1
    assert (await instance.reserved("deaf"), await instance.reserved("good")) == (0, 0)


async def test_a_late_result_of_an_old_attempt_is_dropped(open_instance: OpenInstance) -> None:
    instance = await open_instance(**QUICK)
    deaf = await instance.node("deaf", features=ACKING)
    _, listener = await start(instance, deaf)
    good = await instance.node("good", features=ACKING)
    again = await given(good)
    deaf.answer(deaf.jobs[0], text_translated="late")
    deaf.ack(deaf.jobs[0])
    deaf.partial(deaf.jobs[0], "late")
    # Even one that takes the newer attempt's number, or the newer node's name, for its own.
    deaf.answer(deaf.jobs[0], attempt_id=2, text_translated="late")
    deaf.answer(deaf.jobs[0], attempt_id=2, node_id="good", text_translated="late")
    await wait_until(lambda: instance.count("dragoman_results_dropped_total", reason="no_driver") == 5, TIMEOUT_S)
    good.answer(again, text_translated="in time")
    assert await end_of(listener) is Outcome.OK
    result = listener.ends[0].result
    assert result is not None
    assert result.text_translated == "in time"
    assert not listener.partials


async def test_a_job_is_for_text_only_at_a_node_without_a_voice_and_not_at_the_next_one(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    mute = await instance.node("mute", features=ACKING, kinds=("asr", "nmt"))
    _, listener = await start(instance, mute)
    assert mute.jobs[0]["pipeline"]["use_tts"] is False
    speaks = await instance.node("speaks", features=ACKING, working=True)
    mute.disconnect()
    assert await end_of(listener) is Outcome.OK
    assert [job["pipeline"]["use_tts"] for job in speaks.jobs] == [True]


async def test_a_node_that_lacks_its_voice_gets_the_job_again_for_text_when_no_other_node_can(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    _, listener = await start(instance, node)
    node.answer(node.jobs[0], success=False, error=missing_model("tts-service"))
    again = await given(node, 2)
    assert node.jobs[1]["attempt_id"] == 2
    assert node.jobs[1]["pipeline"]["use_tts"] is False
    node.answer(again)
    assert await end_of(listener) is Outcome.OK


async def test_a_job_of_a_lost_node_goes_at_once_to_another_that_is_free(open_instance: OpenInstance) -> None:
    instance = await open_instance(**LONG_GRACE)
    first = await instance.node("n")
    mine, listener = await start(instance, first)
    other = await instance.node("other", working=True)
    first.disconnect()
    assert await end_of(listener) is Outcome.OK
    assert [job["attempt_id"] for job in other.jobs] == [2]
    (past,) = with_attempts(await instance.job(mine.job_id))["attempts"]
    assert (past["attempt"], past["node_id"], past["reason"]) == ("1", "n", "node_lost")
    assert int(past["dispatched_ms"]) <= int(past["ended_ms"])
    back = await instance.node("n")
    back.answer(first.jobs[0], text_translated="late")
    await wait_until(lambda: instance.count("dragoman_results_dropped_total", reason="no_driver") == 1, TIMEOUT_S)
    assert listener.order_of_ends == [0]


async def test_a_job_of_a_lost_node_waits_for_it_while_no_other_is_free(open_instance: OpenInstance) -> None:
    instance = await open_instance(**LONG_GRACE)
    first = await instance.node("n", slots=1)
    mine, listener = await start(instance, first)
    busy = await instance.node("busy", slots=1)
    instance.services.dispatcher.take(job_request(session="s-2", listener=RecordingListener()))
    await given(busy)
    first.disconnect()
    back = await instance.node("n", slots=1)
    back.answer(first.jobs[0])
    assert await end_of(listener) is Outcome.OK
    assert (await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S))["attempt"] == "1"


async def test_a_job_that_waits_for_its_lost_node_goes_to_the_first_that_comes_free(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(**LONG_GRACE)
    first = await instance.node("n")
    _, listener = await start(instance, first)
    first.disconnect()
    other = await instance.node("other", working=True)
    assert await end_of(listener) is Outcome.OK
    assert [job["attempt_id"] for job in other.jobs] == [2]


async def test_a_job_of_a_lost_node_that_does_not_come_back_fails_after_its_grace_when_there_is_no_other(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(speech__node_grace_ms=200, speech__placement_wait_ms=100)
    first = await instance.node("n")
    _, listener = await start(instance, first)
    first.disconnect()
    assert await end_of(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.NODE_UNAVAILABLE


async def test_a_job_whose_model_is_missing_is_run_by_another_node_and_the_first_cools_down(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    bare = await instance.node("bare")
    mine, listener = await start(instance, bare)
    good = await instance.node("good", working=True)
    bare.answer(bare.jobs[0], success=False, error=missing_model())
    assert await end_of(listener) is Outcome.OK
    assert [job["attempt_id"] for job in good.jobs] == [2]
    again = RecordingListener()
    for number in range(1, 9):
        instance.services.dispatcher.take(job_request(session=f"s-{number}", listener=again, index=number))
    await wait_until(lambda: len(again.ends) == 8, TIMEOUT_S)
    assert len(bare.jobs) == 1
    assert (await instance.job(mine.job_id))["attempt"] == "2"
    assert instance.count("dragoman_storm_total", verdict="MARKED") == 1


async def test_why_no_other_node_was_found_is_recorded(open_instance: OpenInstance) -> None:
    instance = await open_instance(**QUICK, speech__placement_wait_ms=100)
    node = await instance.node("n", features=ACKING)
    mine, listener = await start(instance, node)
    assert await end_of(listener) is Outcome.FAILED
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    receipt = json.loads(record["receipt"])
    assert (receipt["chosen"], receipt["names"]) == (None, {"n": "seen"})


async def test_a_job_out_of_time_expires_and_is_cancelled_at_its_node(open_instance: OpenInstance) -> None:
    instance = await open_instance(**out_of_time(400))
    slow = await instance.node("slow")
    mine, listener = await start(instance, slow)
    slow.ack(slow.jobs[0])
    assert await end_of(listener) is Outcome.EXPIRED
    assert listener.ends[0].code == ErrorCode.JOB_TIMEOUT
    await wait_until(lambda: slow.cancelled == [mine.job_id], TIMEOUT_S)
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], record["code"]) == ("expired", "JOB_TIMEOUT")
    assert await instance.reserved("slow") == 0


@pytest.mark.parametrize(("filled", "why"), [(False, "no node in pool"), (True, "all full")])
async def test_a_job_without_a_node_fails_with_the_reason_and_holds_up_nothing(
    open_instance: OpenInstance, filled: bool, why: str
) -> None:
    instance = await open_instance(speech__placement_wait_ms=200)
    if filled:
        await instance.node("busy", slots=1)
        instance.services.dispatcher.take(job_request(session="s-other"))
        await wait_until(lambda: instance.services.view.fleet.reserved("busy") == 1, TIMEOUT_S)
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(listener=listener))
    assert await end_of(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.NO_AVAILABLE_NODE
    assert why in listener.ends[0].message
    good = await instance.node("good", working=True)
    instance.services.dispatcher.take(job_request(index=1, listener=listener))
    assert await end_of(listener, 1) is Outcome.OK
    assert good.jobs


async def test_a_job_that_waits_for_a_node_gets_the_one_that_comes(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__placement_wait_ms=20_000)
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(listener=listener))
    await wait_until(lambda: listener.waits, TIMEOUT_S)
    await instance.node("n", working=True)
    assert await end_of(listener) is Outcome.OK


async def test_a_node_that_was_slow_gets_more_time_for_its_next_jobs(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    slow = await instance.node("slow")
    for _ in range(3):
        instance.services.health.track_record.add_work_time("slow", 21.0, 3.6)
    listener = RecordingListener()
    mine = job_request(listener=listener)
    mine.audio_ms = 1_000
    instance.services.dispatcher.take(mine)
    assert (await given(slow))["deadline_ms"] == 19_500


async def test_the_driver_learns_from_results_and_time_outs_how_slow_a_node_is(open_instance: OpenInstance) -> None:
    instance = await open_instance(**QUICK)
    node = await instance.node("n", features=ACKING)
    record = instance.services.health.track_record
    _, listener = await start(instance, node)
    node.answer(node.jobs[0])
    assert await end_of(listener) is Outcome.OK
    fast = record.slowness("n")
    assert fast is not None
    instance.services.dispatcher.take(job_request(index=1, listener=listener))
    stuck = await given(node, 2)
    node.ack(stuck)
    assert await end_of(listener, 1) is Outcome.FAILED
    slow = record.slowness("n")
    assert slow is not None
    assert slow >= 1.5 / 0.02, "the attempt was given up after 1.5 s, for 20 ms of audio"


# -- retries ---------------------------------------------------------------------------------------

BROKEN = JobError("PROCESSING_ERROR", "RuntimeError: the model is broken")


async def test_a_job_that_failed_is_done_by_another_node(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    bad = await instance.node("bad")
    mine, listener = await start(instance, bad)
    good = await instance.node("good", working=True)
    bad.answer(bad.jobs[0], success=False, error=BROKEN)
    assert await end_of(listener) is Outcome.OK
    assert [job["attempt_id"] for job in good.jobs] == [2]
    assert instance.count("dragoman_failovers_total", reason="job_failed") == 1
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert (record["attempt_1_node_id"], record["attempt_1_reason"]) == ("bad", "job_failed")


async def test_a_job_that_failed_waits_for_another_node_that_is_busy_and_is_not_given_to_the_first_again(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(speech__placement_wait_ms=20_000)
    bad = await instance.node("bad", slots=1)
    _, listener = await start(instance, bad)
    good = await instance.node("good", slots=1)
    instance.services.dispatcher.take(job_request(session="s-2", listener=RecordingListener()))
    first = await given(good)
    bad.answer(bad.jobs[0], success=False, error=BROKEN)
    await wait_until(lambda: listener.waits, TIMEOUT_S)
    good.answer(first)
    good.answer(await given(good, 2))
    assert await end_of(listener) is Outcome.OK
    assert len(bad.jobs) == 1


async def test_a_retry_prefers_a_node_that_had_no_later_utterance_of_the_session(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    bad = await instance.node("bad", slots=1)
    listener = RecordingListener()
    first, second = job_request(listener=listener), job_request(index=1, listener=listener)
    second.latest = first.latest
    instance.services.dispatcher.take(first)
    await given(bad)
    later = await instance.node("later", slots=8, working=True)
    instance.services.dispatcher.take(second)
    await given(later)
    fresh = await instance.node("fresh", slots=1, working=True)
    bad.answer(bad.jobs[0], success=False, error=BROKEN)
    assert await end_of(listener) is Outcome.OK
    assert [job["utterance_index"] for job in fresh.jobs] == [0]


async def overtaken(
    open_instance: OpenInstance, **flags: object
) -> tuple[InProcessInstance, InProcessNode, RecordingListener]:
    """Utterance 0 is on a node that has had utterance 1 of the session as well."""
    instance = await open_instance(**flags)
    node = await instance.node("n")
    listener, latest = RecordingListener(), LatestIndexes()
    for index in range(2):
        mine = job_request(index=index, listener=listener)
        mine.latest = latest
        instance.services.dispatcher.take(mine)
        await given(node, index + 1)
    return instance, node, listener


async def test_text_without_its_translation_from_a_node_that_had_a_later_utterance_is_tried_elsewhere(
    open_instance: OpenInstance,
) -> None:
    instance, node, listener = await overtaken(open_instance)
    other = await instance.node("other", working=True)
    node.answer(node.jobs[0], text_translated="")
    assert await end_of(listener) is Outcome.OK
    assert [job["attempt_id"] for job in other.jobs] == [2]
    assert instance.count("dragoman_failovers_total", reason="untranslated") == 1


# -- nodes that fail or cool down ------------------------------------------------------------------

LONG_PAUSE = {"speech__failure_pause_s": 600, "speech__unavailable_ttl_s": 600}


async def fail(instance: InProcessInstance, node: InProcessNode, times: int) -> None:
    """The node, alone in the fleet, fails jobs one after another."""
    for number in range(times):
        listener = RecordingListener()
        before = len(node.jobs)
        instance.services.dispatcher.take(job_request(session=f"s-failing-{before}", listener=listener))
        node.answer(await given(node, before + 1), success=False, error=BROKEN)
        assert await end_of(listener) is Outcome.FAILED, number


async def paused(instance: InProcessInstance, node: InProcessNode) -> None:
    await wait_until(lambda: instance.services.view.fleet.has_failed(node.id), TIMEOUT_S)


async def test_a_node_that_fails_three_jobs_in_a_row_gets_no_more_on_any_instance(open_instance: OpenInstance) -> None:
    instance, there = await open_instance("a", **LONG_PAUSE), await open_instance("b", **LONG_PAUSE)
    bad = await instance.node("bad")
    await wait_until(lambda: there.knows("bad"), TIMEOUT_S)
    await fail(instance, bad, 2)
    assert not instance.services.view.fleet.has_failed("bad")
    await fail(instance, bad, 1)
    await paused(instance, bad)
    await paused(there, bad)
    good = await there.node("good", working=True)
    await wait_until(lambda: instance.knows("good"), TIMEOUT_S)
    listener = RecordingListener()
    for number in range(8):
        (instance, there)[number % 2].services.dispatcher.take(
            job_request(session=f"s-{number}", index=number, listener=listener)
        )
    await wait_until(lambda: len(listener.ends) == 8, TIMEOUT_S)
    assert len(bad.jobs) == 3
    assert len(good.jobs) == 8
    assert instance.count("dragoman_node_pauses_total") == 1


async def test_a_node_gets_one_job_after_its_pause_and_more_once_that_succeeded(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__failure_pause_s=0.1, speech__placement_wait_ms=20_000)
    node = await instance.node("n")
    await fail(instance, node, 3)
    await paused(instance, node)
    listener = RecordingListener()
    for number in range(3):
        instance.services.dispatcher.take(job_request(session=f"s-{number}", index=number, listener=listener))
    probe = await given(node, 4)
    await wait_until(lambda: len(listener.waits) >= 2, TIMEOUT_S)
    assert len(node.jobs) == 4
    node.answer(probe)
    await wait_until(lambda: len(node.jobs) == 6, TIMEOUT_S)
    assert not instance.services.view.fleet.has_failed("n")


async def test_a_node_that_is_lost_with_each_job_is_paused(open_instance: OpenInstance) -> None:
    instance = await open_instance(**LONG_PAUSE, speech__placement_wait_ms=10, speech__node_grace_ms=0)
    for number in range(3):
        node = await instance.node("n")
        listener = RecordingListener()
        instance.services.dispatcher.take(job_request(session=f"s-{number}", listener=listener))
        await given(node)
        node.disconnect()
        assert await end_of(listener) is Outcome.FAILED
    await paused(instance, node)


async def test_a_job_for_which_all_nodes_cool_down_for_long_fails_at_once_and_says_so(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(speech__placement_wait_ms=25_000)
    node = await instance.node("n")
    first, listener = await start(instance, node)
    node.answer(node.jobs[0], success=False, error=missing_model())
    assert await end_of(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.MODEL_NOT_AVAILABLE
    assert listener.ends[0].message.startswith("no other node for this job: all cooling down, the first for another ")
    instance.services.dispatcher.take(job_request(index=1, listener=listener))
    assert await end_of(listener, 1) is Outcome.FAILED
    assert listener.ends[1].code == ErrorCode.NO_AVAILABLE_NODE
    assert listener.ends[1].message.startswith("no node for this job: all cooling down, the first for another ")
    assert not listener.waits
    assert len(node.jobs) == 1
    record = await wait_until(lambda: instance.released(first.job_id), TIMEOUT_S)
    assert json.loads(record["receipt"])["names"] == {"n": "cooling_down"}


async def test_a_job_waits_for_a_cool_down_that_ends_in_time(open_instance: OpenInstance) -> None:
    instance = await open_instance(
        speech__unavailable_ttl_s=0.3, speech__debounce_window_s=0, speech__placement_wait_ms=25_000
    )
    node = await instance.node("n")
    _, listener = await start(instance, node)
    node.answer(node.jobs[0], success=False, error=missing_model())
    node.answer(await given(node, 2))
    assert await end_of(listener) is Outcome.OK


# -- ending ----------------------------------------------------------------------------------------


async def test_the_jobs_of_a_session_that_goes_are_cancelled_at_their_nodes(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    mine, listener = await start(instance, node)
    instance.services.dispatcher.cancel_session("s-1", "socket closed")
    assert await end_of(listener) is Outcome.CANCELLED
    assert node.cancelled == [mine.job_id]
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], record["state"]) == ("cancelled", State.RELEASED)
    assert await instance.reserved("n") == 0


async def test_waiting_job_is_not_dispatched_after_its_session_ended(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(speech__placement_wait_ms=20_000)
    listener = RecordingListener()
    mine = job_request(listener=listener)
    instance.services.dispatcher.take(mine)
    await wait_until(lambda: listener.waits, TIMEOUT_S)
    instance.services.dispatcher.cancel_session("s-1", "socket closed")
    node = await instance.node("n")
    assert await end_of(listener) is Outcome.CANCELLED
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert record["outcome"] == "cancelled"
    assert not node.jobs
    assert await instance.driven() == 0


async def test_a_failure_has_the_nodes_own_code(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    mine, listener = await start(instance, node)
    node.answer(node.jobs[0], success=False, error=JobError("PROCESSING_ERROR", "no sound"))
    assert await end_of(listener) is Outcome.FAILED
    assert (listener.ends[0].code, listener.ends[0].message) == ("PROCESSING_ERROR", "no sound")
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], record["code"], record["attempt"]) == ("failed", "PROCESSING_ERROR", "1")
    assert record["message"] == "no sound"


async def test_codes_that_nodes_make_up_do_not_make_metrics(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__failure_run=0)
    node = await instance.node("n")
    listener = RecordingListener()
    for number in range(20):
        instance.services.dispatcher.take(job_request(index=number, listener=listener))
        job = await given(node, number + 1)
        node.answer(job, success=False, error=JobError(f"MADE_UP_{number}", "x"))
        assert await end_of(listener, number) is Outcome.FAILED
    assert listener.ends[3].code == "MADE_UP_3"
    series = [
        sample
        for family in instance.services.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "dragoman_jobs_total"
    ]
    assert [(sample.labels["code"], sample.value) for sample in series] == [("OTHER", 20.0)]


async def test_a_result_of_a_finished_job_is_counted_and_not_delivered(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    mine, listener = await start(instance, node)
    node.answer(node.jobs[0])
    assert await end_of(listener) is Outcome.OK
    await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    node.answer(node.jobs[0])
    await wait_until(lambda: instance.count("dragoman_results_dropped_total", reason="finished") == 1, TIMEOUT_S)
    assert listener.order_of_ends == [0]


async def test_messages_that_arrive_together_are_recorded_with_each_time(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    node = await instance.node("n")

    def work(job: dict[str, Any]) -> None:
        node.ack(job)
        node.start(job)
        node.answer(job)

    # Before the driver knows that the node has the job, so that it hears all three at once.
    node.local.conn = RecordingSocket(work)
    listener = RecordingListener()
    mine = job_request(listener=listener)
    instance.services.dispatcher.take(mine)
    assert await end_of(listener) is Outcome.OK
    assert listener.taken == [0]
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    times = [int(record[f"{stage}_ms"]) for stage in ("dispatched", "acked", "started", "finished", "released")]
    assert times == sorted(times)


# -- when something is amiss -----------------------------------------------------------------------


class Faulty(RecordingListener):
    """A listener with a bug."""

    def job_dispatched(self, job_request: JobRequest, node_id: str, attempt: int) -> None:
        raise RuntimeError("a bug")


async def test_unexpected_error_ends_the_job_and_notifies_the_session(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    listener = Faulty()
    mine = job_request(listener=listener)
    instance.services.dispatcher.take(mine)
    assert await end_of(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.INTERNAL_ERROR
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert record["code"] == "INTERNAL_ERROR"
    assert await instance.reserved("n") == 0
    assert len(node.jobs) == 1


async def test_error_in_placement_ends_the_job_and_notifies_the_session(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await open_instance()

    def select(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(instance.services.placer, "select", select)
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(listener=listener))
    assert await end_of(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.INTERNAL_ERROR


# -- beginning ---------------------------------------------------------------------------------------


async def test_a_job_asks_for_its_slot_before_its_task_starts_but_not_before_those_of_its_turn(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    turn_queue, fleet = TurnQueue(Turn("turn-1")), instance.services.view.fleet
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(turn_queue=turn_queue, ends_turn=False, listener=listener))
    instance.services.dispatcher.take(job_request(turn_queue=turn_queue, index=1, listener=listener))
    assert fleet.reserved("n") == 1
    await wait_until(lambda: len(node.jobs) == 2, TIMEOUT_S)
    for job in node.jobs:
        node.answer(job)
    await wait_until(lambda: len(listener.ends) == 2, TIMEOUT_S)
    await instance.stores.turns.end("s-1", "turn-1")


async def test_a_job_that_is_cancelled_when_it_has_just_begun_is_cancelled_at_its_node(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    listener = RecordingListener()
    mine = job_request(listener=listener)
    instance.services.dispatcher.take(mine)
    instance.services.dispatcher.cancel_session("s-1", "gone")
    assert await end_of(listener) is Outcome.CANCELLED
    await wait_until(lambda: node.cancelled == [mine.job_id], TIMEOUT_S)
    await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert await instance.reserved("n") == 0
