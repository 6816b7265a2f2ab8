"""Loops, retries and tasks; handlers of messages; types of metrics."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
import uvloop
from structlog.testing import capture_logs

from dragoman.protocol.peer import DrainInstance, EndSession, Evict, InboxMessage
from dragoman.services import loops
from dragoman.services.loops import PacedQueue, ReadFirstTimeout, Tasks, every, retry, unawaited
from dragoman.services.metrics import Histogram
from dragoman.services.routing.router import INBOX_KINDS, Handlers, NoHandler, drop
from dragoman.store.errors import RedisAway, Refused
from support.waiting import wait_until


def stepping(*outcomes: Exception | None) -> tuple[list[int], Callable[[], Awaitable[None]]]:
    """A step that goes through the outcomes, then succeeds for ever; and how often it was called."""
    left, calls = list(outcomes), [0]

    async def step() -> None:
        calls[0] += 1
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return calls, step


async def run_until(calls: list[int], count: int, loop: Awaitable[None]) -> list[str]:
    """Run a loop for so many calls; what it logged."""
    with capture_logs() as logged:
        task = asyncio.ensure_future(loop)
        await wait_until(lambda: calls[0] >= count)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return [line["event"] for line in logged]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "RETRY_S", 0.001)


async def test_a_step_is_repeated() -> None:
    calls, step = stepping()
    assert await run_until(calls, 5, every(0, step, name="x")) == []


async def test_redis_outage_is_logged_once_at_its_start_and_once_at_its_end() -> None:
    calls, step = stepping(RedisAway("gone"), RedisAway("gone"), None, RedisAway("again"))
    told = await run_until(calls, 6, every(0, step, name="x"))
    assert told == ["waiting for Redis", "Redis is available again", "waiting for Redis", "Redis is available again"]


async def test_refused_call_does_not_count_as_an_outage() -> None:
    calls, step = stepping(Refused("NOPERM this user has no permissions"), Refused("NOPERM and again"))
    assert await run_until(calls, 4, every(0, step, name="x")) == ["Redis refuses", "Redis is available again"]


async def test_a_bug_is_logged_and_the_loop_goes_on() -> None:
    calls, step = stepping(ZeroDivisionError())
    assert await run_until(calls, 3, every(0, step, name="x")) == ["loop step failed"]


async def test_a_step_that_fails_without_a_pause_of_its_own_is_not_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(loops, "RETRY_S", 1.0)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    _, step = stepping(RedisAway("gone"), Refused("ERR no"), KeyError("bug"))
    with pytest.raises(asyncio.CancelledError):
        await every(0, step, name="x")
    assert all(0.9 <= pause <= 1.1 for pause in pauses)


async def test_tasks_settle_and_are_forgotten() -> None:
    tasks, done = Tasks(), list[int]()

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)
        if number:
            tasks.spawn(work(number - 1), "next")

    tasks.spawn(work(2), "first")
    await tasks.settled()
    assert (done, len(tasks)) == ([2, 1, 0], 0)


async def test_settled_returns_when_every_task_has_finished_but_no_callback_has_run() -> None:
    tasks = Tasks()

    async def nothing() -> None:
        pass

    finished = tasks.spawn(nothing(), "finished")
    await asyncio.wait([finished])
    tasks._tasks.add(finished)  # as in the turn of the loop in which a task ends: done, its callbacks still to come
    finished.add_done_callback(tasks._done)
    async with asyncio.timeout(5):
        await tasks.settled()
    assert len(tasks) == 0


@pytest.mark.parametrize(
    ("error", "told"), [(RedisAway("gone"), "task failed: Redis is unavailable"), (KeyError("bug"), "task failed")]
)
async def test_a_task_that_fails_is_logged(error: Exception, told: str) -> None:
    tasks = Tasks()

    async def fail() -> None:
        raise error

    with capture_logs() as logged:
        tasks.spawn(fail(), "fails")
        await tasks.settled()
    assert [(line["event"], line["task"]) for line in logged] == [(told, "fails")]


async def test_cancelling_ends_all_of_them_silently() -> None:
    tasks = Tasks()

    async def wait() -> None:
        await asyncio.Event().wait()

    for _ in range(3):
        tasks.spawn(wait(), "waits")
    with capture_logs() as logged:
        await tasks.cancel()
    assert (len(tasks), logged) == (0, [])


async def test_unawaited_reply_may_fail() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    unawaited(future)
    future.set_exception(RedisAway("gone"))
    await asyncio.sleep(0)
    other: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    unawaited(other)
    other.cancel()
    await asyncio.sleep(0)


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as made:
        yield made


async def answer_within(seconds: float, stall: Callable[[socket.socket], None]) -> bytes:
    """Read from a peer that `stall` makes answer while the loop stands still."""
    near, far = socket.socketpair()
    with near, far:
        reader, writer = await asyncio.open_connection(sock=near)
        asyncio.get_running_loop().call_soon(stall, far)
        try:
            async with ReadFirstTimeout(seconds):
                return await reader.readexactly(2)
        finally:
            writer.close()


def test_answer_that_arrived_while_the_loop_stood_still_is_read_before_the_time_out(runner: asyncio.Runner) -> None:
    def stall(far: socket.socket) -> None:
        far.send(b"ok")
        time.sleep(0.1)

    assert runner.run(answer_within(0.02, stall)) == b"ok"


def test_peer_gets_the_time_that_the_loop_was_late(runner: asyncio.Runner) -> None:
    """The question left only after the loop stood still, so the answer cannot be there yet."""

    def stall(far: socket.socket) -> None:
        time.sleep(0.5)
        asyncio.get_running_loop().call_later(0.01, far.send, b"ok")

    assert runner.run(answer_within(0.25, stall)) == b"ok"


def test_no_answer_is_a_time_out_on_a_loop_that_stood_still_and_on_one_that_did_not(runner: asyncio.Runner) -> None:
    for stall_s in (0.0, 0.1):
        with pytest.raises(TimeoutError):
            runner.run(answer_within(0.02, partial(_sleep, stall_s)))


def _sleep(seconds: float, _: socket.socket) -> None:
    time.sleep(seconds)


async def test_time_out_that_is_over_cancels_nothing() -> None:
    async with ReadFirstTimeout(0.01):
        pass
    await asyncio.sleep(0.03)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_retry_repeats_the_step_until_it_succeeds_and_returns_its_value() -> None:
    calls, step = stepping(RedisAway("first"), Refused("ERR second"))
    errors: list[str] = []

    async def answer() -> str:
        await step()
        return "done"

    assert await retry(answer, pause_s=0.0, on_error=lambda error: errors.append(str(error))) == "done"
    assert (calls[0], errors) == (3, ["first", "ERR second"])


async def test_retry_raises_the_last_error_when_the_time_is_up() -> None:
    calls, step = stepping(*(RedisAway(f"{number}") for number in range(10_000)))
    with pytest.raises(RedisAway):
        await retry(step, until=time.monotonic() + 0.05, pause_s=0.01)
    assert 2 <= calls[0] < 10_000


async def test_retry_runs_the_step_once_if_the_time_was_up_before() -> None:
    calls, step = stepping(RedisAway("no"))
    with pytest.raises(RedisAway, match="no"):
        await retry(step, until=0.0)
    assert calls[0] == 1


async def test_retry_repeats_for_the_named_errors_only() -> None:
    calls, step = stepping(KeyError("named"), RedisAway("not named"))
    with pytest.raises(RedisAway):
        await retry(step, pause_s=0.0, on=(KeyError, IndexError))
    assert calls[0] == 2


async def test_paced_queue_handles_few_items_at_once_and_the_rest_in_order_after_pauses() -> None:
    handled: list[int] = []
    queue, count = PacedQueue(handled.append), 3 * PacedQueue.AT_ONCE + 1
    turns: list[int] = []

    async def others() -> None:
        while len(handled) < count:
            turns.append(len(handled))
            await asyncio.sleep(0)

    for number in range(count):
        queue.add(number)
    assert handled == list(range(PacedQueue.AT_ONCE))
    await others()
    assert handled == list(range(count))
    assert len(set(turns)) > 2, "others are served between the portions"
    assert not queue


async def test_paced_queue_handles_an_item_at_once_after_its_pause() -> None:
    handled: list[int] = []
    queue = PacedQueue(handled.append)
    for number in range(3 * PacedQueue.AT_ONCE):
        queue.add(number)
    await wait_until(lambda: queue._handled == 0)
    queue.add(-1)
    assert handled[-1] == -1


async def test_a_message_goes_to_the_handler_of_its_kind() -> None:
    handled: list[InboxMessage] = []
    rehomed: list[InboxMessage] = []

    async def handle(message: EndSession) -> None:
        handled.append(message)

    handlers = Handlers()
    handlers.register(EndSession, handle, rehome=rehomed.append)
    handlers.register(Evict, handled.append, rehome=drop)
    await handlers.handle(EndSession("s"))
    await handlers.handle(Evict("n", 1))
    await handlers.rehome(EndSession("of a dead instance"))
    assert (handled, rehomed) == ([EndSession("s"), Evict("n", 1)], [EndSession("of a dead instance")])


async def test_a_message_without_a_handler_raises() -> None:
    handlers = Handlers()
    with pytest.raises(NoHandler, match="no handler for drain"):
        await handlers.handle(DrainInstance())
    with pytest.raises(NoHandler, match="no handler for drain"):
        await handlers.rehome(DrainInstance())


def test_every_kind_of_the_union_needs_a_handler() -> None:
    handlers = Handlers()
    for kind in INBOX_KINDS:
        with pytest.raises(NoHandler, match=kind.__name__):
            handlers.require_all()
        handlers.register(kind, lambda _: None, rehome=lambda _: None)
    handlers.require_all()


BOUNDS = (0.001, 0.01, 0.1, 1.0)


def histogram(*values: float) -> Histogram:
    made = Histogram(BOUNDS)
    for value in values:
        made.observe(value)
    return made


def test_quantiles_of_several_instances_are_those_of_all_observations_together() -> None:
    """The mean of the two medians would be 500.5 ms."""
    busy, idle = histogram(*[0.001] * 99), histogram(1.0)
    whole = busy.merged([idle.buckets])
    assert (busy.quantile(0.5), idle.quantile(0.5)) == (1, 1000)
    assert (whole.quantile(0.5), whole.quantile(0.99), whole.quantile(1.0)) == (1, 1, 1000)
    assert sum(busy.buckets) == 99, "it is not changed"


def test_buckets_of_an_instance_with_other_bounds_or_none_are_left_out() -> None:
    assert histogram(0.01).merged([(), (1, 2)]).buckets == histogram(0.01).buckets
