import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.node.job import Job, ModelNotAvailable, Result
from dragoman.node.worker import Handler, Lanes, Worker
from dragoman.protocol import codec
from dragoman.protocol.fields import Message
from dragoman.protocol.node import JobAck, JobResult, JobStarted, NodePartial
from support.waiting import wait_until
from unit.node.fake_scheduler import assignment

TESTS = Path(__file__).parents[2]
HUNG = """
import asyncio, threading
from dragoman.node.worker import Worker
from unit.node.fake_scheduler import assignment

async def main():
    begun = threading.Event()

    def hang(job):
        begun.set()
        threading.Event().wait()

    worker = Worker(hang, 1, lambda: "node-1", lambda message: None, lambda data: None)
    worker.assign(assignment(1))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    await worker.abandon()

asyncio.run(main())
print("left")
"""


class Desk:
    """A worker, what it said and what it finished; and a handler that waits for the test to let it go on."""

    def __init__(self, handler: Handler | None = None, slots: int = 1) -> None:
        self.said: list[Message] = []
        self.finished: list[JobResult] = []
        self.begun: list[Job] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.worker = Worker(handler or self.gated, slots, lambda: "node-1", self.said.append, self._finish)

    def _finish(self, data: bytes) -> None:
        result = codec.decode_node(data)
        assert isinstance(result, JobResult)
        self.finished.append(result)

    async def gated(self, job: Job) -> Result:
        self.begun.append(job)
        await self.gate(job.job_id).wait()
        return Result(f"heard {job.utterance_index}")

    def gate(self, job_id: str) -> asyncio.Event:
        return self.gates.setdefault(job_id, asyncio.Event())

    def told(self, kind: type[Message]) -> list[str]:
        return [message.job_id for message in self.said if isinstance(message, kind)]  # type: ignore[attr-defined]

    async def work(self, *numbers: int) -> None:
        for number in numbers:
            self.worker.assign(assignment(number))
        await self.worker.until_idle()


def partial_of(text: str, *, is_final: bool) -> NodePartial:
    about = {"job_id": "job-1", "node_id": "node-1", "session_id": "s-1", "trace_id": "trace-1"}
    return NodePartial(utterance_index=1, text=text, is_final=is_final, **about)


async def test_a_job_is_acknowledged_started_and_answered() -> None:
    async def handler(job: Job) -> Result:
        job.partial("hea")
        job.partial("heard \ud800", is_final=True)
        return Result("heard")

    desk = Desk(handler)
    await desk.work(1)
    assert [type(message) for message in desk.said] == [JobAck, JobStarted, NodePartial, NodePartial]
    assert desk.said[0] == JobAck("job-1", 1, "node-1", "s-1", "trace-1")
    assert desk.said[2] == partial_of("hea", is_final=False)
    assert desk.said[3] == partial_of("heard ?", is_final=True)
    assert [result.text_asr for result in desk.finished] == ["heard"]


async def test_a_plain_function_runs_in_a_thread_and_its_partials_come_in_order() -> None:
    threads = set()

    def handler(job: Job) -> Result:
        threads.add(threading.get_ident())
        for word in ("a", "b", "c"):
            job.partial(word)
        return Result("abc")

    desk = Desk(handler)
    await desk.work(1)
    assert [message.text for message in desk.said if isinstance(message, NodePartial)] == ["a", "b", "c"]
    assert [result.text_asr for result in desk.finished] == ["abc"]
    assert threading.get_ident() not in threads


async def test_a_plain_function_that_returns_an_awaitable_is_awaited() -> None:
    async def later() -> Result:
        return Result("later")

    desk = Desk(lambda job: later())
    await desk.work(1)
    assert [result.text_asr for result in desk.finished] == ["later"]


async def test_jobs_of_a_session_are_answered_in_order_of_index() -> None:
    desk = Desk(slots=4)
    for number in (1, 3, 2):
        desk.worker.assign(assignment(number))
        desk.gate(f"job-{number}").set()
    await desk.worker.until_idle()
    assert [result.utterance_index for result in desk.finished] == [1, 2, 3]
    assert desk.told(JobAck) == ["job-1", "job-3", "job-2"]


async def test_two_languages_of_one_utterance_run_side_by_side() -> None:
    desk = Desk(slots=2)
    desk.worker.assign(assignment(1))
    desk.worker.assign(assignment(1, job_id="job-fr", tgt_lang="fr"))
    await wait_until(lambda: len(desk.begun) == 2)
    assert desk.worker.running == 2
    await desk.worker.abandon()


async def test_an_exception_fails_its_job_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(job: Job) -> Result:
        if job.utterance_index == 1:
            raise ZeroDivisionError("oh")
        return Result("fine")

    desk = Desk(handler)
    await desk.work(1, 2)
    assert [result.success for result in desk.finished] == [False, True]
    assert desk.finished[0].error is not None
    assert desk.finished[0].error.code == "PROCESSING_ERROR"
    assert desk.finished[0].error.message == "ZeroDivisionError: oh"

    assert "the handler failed" in caplog.text


async def test_a_plain_function_that_lets_stop_iteration_out_fails_its_job_and_keeps_no_slot() -> None:
    desk = Desk(lambda job: next(iter(())), slots=1)
    await desk.work(1, 2)
    assert [result.error and result.error.code for result in desk.finished] == ["PROCESSING_ERROR"] * 2
    assert desk.finished[0].error is not None
    assert "StopIteration" in desk.finished[0].error.message


async def test_missing_model_is_reported_without_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(job: Job) -> Result:
        raise ModelNotAvailable("nmt", "2", "gone")

    desk = Desk(handler)
    await desk.work(1)
    assert desk.finished[0].error is not None
    assert codec.unavailable_model(desk.finished[0].error) == codec.ModelDetails("nmt", "2", "gone")

    assert not caplog.records


async def test_a_result_that_cannot_be_sent_fails_its_job() -> None:
    async def handler(job: Job) -> Any:
        return {"text": "not a Result"}

    desk = Desk(handler)
    await desk.work(1)
    assert desk.finished[0].error is not None
    assert "must return a Result or None" in desk.finished[0].error.message


async def test_something_cancelled_within_the_handler_is_a_failure() -> None:
    async def handler(job: Job) -> Result:
        raise asyncio.CancelledError

    desk = Desk(handler)
    await desk.work(1)
    assert not desk.finished[0].success


async def test_a_cancelled_job_that_waits_never_starts() -> None:
    desk = Desk()
    desk.worker.assign(assignment(1))
    desk.worker.assign(assignment(2))
    desk.worker.cancel("job-2")
    desk.gate("job-1").set()
    await desk.worker.until_idle()
    assert desk.told(JobStarted) == ["job-1"]
    assert [result.job_id for result in desk.finished] == ["job-1"]


async def test_a_cancelled_job_that_runs_is_interrupted_and_not_answered() -> None:
    desk = Desk()
    desk.worker.assign(assignment(1))
    await wait_until(lambda: bool(desk.begun))
    desk.worker.cancel("job-1")
    desk.worker.cancel("job-1")
    desk.worker.assign(assignment(2))
    desk.gate("job-2").set()
    await desk.worker.until_idle()
    assert desk.begun[0].cancelled
    assert [result.job_id for result in desk.finished] == ["job-2"]


async def test_a_job_cancelled_before_its_first_step_gives_its_slot_back() -> None:
    desk = Desk()
    desk.worker.assign(assignment(1))
    desk.worker.cancel("job-1")
    desk.gate("job-2").set()
    await desk.work(2)
    assert [job.job_id for job in desk.begun] == ["job-2"]
    assert [result.job_id for result in desk.finished] == ["job-2"]
    await wait_until(lambda: desk.worker.running == 0)


async def test_result_of_a_handler_that_ignores_its_cancellation_is_dropped() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(job: Job) -> Result:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            job.partial("still here")
        ended.set()
        return Result("stubborn")

    desk = Desk(handler)
    desk.worker.assign(assignment(1))
    await begun.wait()
    desk.worker.cancel("job-1")
    await ended.wait()
    await wait_until(lambda: desk.worker.running == 0)
    assert desk.finished == []
    assert desk.told(NodePartial) == []


async def test_a_cancelled_thread_keeps_its_slot_until_it_is_back() -> None:
    go, begun = threading.Event(), threading.Event()
    seen: list[str] = []

    def handler(job: Job) -> Result:
        seen.append(job.job_id)
        begun.set()
        go.wait(10)
        return Result("late")

    desk = Desk(handler)
    desk.worker.assign(assignment(1))
    await wait_until(begun.is_set)
    desk.worker.cancel("job-1")
    desk.worker.assign(assignment(2))
    assert desk.worker.running == 1
    assert seen == ["job-1"]
    go.set()
    await desk.worker.until_idle()
    assert [result.job_id for result in desk.finished] == ["job-2"]
    await desk.worker.abandon()


async def test_a_job_that_comes_again_goes_on_under_its_new_attempt() -> None:
    desk = Desk()
    desk.worker.assign(assignment(1))
    await wait_until(lambda: bool(desk.begun))
    desk.worker.assign(assignment(1, attempt_id=3))
    desk.worker.assign(assignment(1, attempt_id=2))
    desk.gate("job-1").set()
    await desk.worker.until_idle()
    assert len(desk.begun) == 1
    assert [result.attempt_id for result in desk.finished] == [3]
    assert [type(message) for message in desk.said] == [JobAck, JobStarted, JobAck, JobStarted]


async def test_a_job_that_comes_again_right_after_its_cancellation_runs_again() -> None:
    desk = Desk()
    desk.worker.assign(assignment(1))
    await wait_until(lambda: bool(desk.begun))
    desk.worker.cancel("job-1")
    desk.worker.assign(assignment(1, attempt_id=2))
    desk.gate("job-1").set()
    await desk.worker.until_idle()
    assert len(desk.begun) == 2
    assert [result.attempt_id for result in desk.finished] == [2]


async def test_a_finished_job_that_comes_again_runs_again() -> None:
    desk = Desk()
    desk.gate("job-1").set()
    await desk.work(1)
    await desk.work(1)
    assert len(desk.finished) == 2


async def test_abandoned_jobs_are_not_answered() -> None:
    desk = Desk()
    desk.worker.assign(assignment(1))
    desk.worker.assign(assignment(2))
    await wait_until(lambda: bool(desk.begun))
    await desk.worker.abandon()
    await desk.worker.until_idle()
    assert desk.finished == []


def test_a_plain_function_that_hangs_keeps_no_process_from_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", HUNG], cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def started(lanes: Lanes[str]) -> list[str]:
    jobs = []
    while (job := lanes.start()) is not None:
        jobs.append(job)
    return jobs


def test_lanes_take_turns() -> None:
    lanes: Lanes[str] = Lanes(1)
    for index in range(3):
        lanes.add(f"a{index}", "a", index)
    lanes.add("b0", "b", 0)
    order = []
    while job := lanes.start():
        order.append(job)
        lanes.end(job)
    assert order == ["a0", "b0", "a1", "a2"]


def test_a_dropped_job_never_starts() -> None:
    lanes: Lanes[str] = Lanes(1)
    lanes.add("runs", "a", 0)
    lanes.add("dropped", "a", 1)
    assert started(lanes) == ["runs"]
    assert lanes.drop("dropped")
    assert not lanes.drop("dropped")
    assert not lanes.drop("runs")
    lanes.end("runs")
    assert started(lanes) == []
    assert (lanes.running, lanes.waiting) == (0, 0)


def test_a_node_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Lanes(0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


@given(st.integers(1, 4), steps)
def test_every_job_runs_once_never_two_of_a_lane_and_no_slot_stays_empty(
    slots: int, steps: list[tuple[str, int, int]]
) -> None:
    lanes: Lanes[int] = Lanes(slots)
    waiting: dict[int, tuple[int, int]] = {}
    running: dict[int, tuple[int, int]] = {}
    serial = 0

    def start_all() -> None:
        while (job := lanes.start()) is not None:
            lane, index = waiting.pop(job)
            assert lane not in {other for other, _ in running.values()}
            assert index == min([index, *(i for other, i in waiting.values() if other == lane)])
            running[job] = lane, index
        assert len(running) <= slots
        could = {lane for lane, _ in waiting.values()} - {lane for lane, _ in running.values()}
        assert len(running) == slots or not could

    for verb, number, index in steps:
        if verb == "add":
            serial += 1
            waiting[serial] = number, index
            lanes.add(serial, number, index)
        elif verb == "end" and running:
            job = sorted(running)[number % len(running)]
            del running[job]
            lanes.end(job)
        elif verb == "drop" and waiting:
            job = sorted(waiting)[number % len(waiting)]
            del waiting[job]
            assert lanes.drop(job)
        start_all()
        assert (lanes.running, lanes.waiting) == (len(running), len(waiting))
