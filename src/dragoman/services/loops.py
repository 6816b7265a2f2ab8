"""Loops, retries and background tasks, each written once.

A service is a `run_once` and an interval; tests call `run_once` and never start the loop.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Generic, Self, TypeVar

import structlog

from dragoman.store.errors import Refused, StoreError

log = structlog.get_logger(__name__)

T = TypeVar("T")

READ_TURNS = 3
RETRY_S = 0.2  # while Redis is unavailable: other instances wait for the first one that comes back
FOR_EVER = float("inf")


async def every(interval_s: float, step: Callable[[], Awaitable[object]], *, name: str) -> None:
    """Call `step` for ever, with jitter so that the instances do not run in step.

    An unavailable Redis is an operating state: logged once when it begins and once when it ends. Any other error is a
    bug: logged, and the loop goes on, because others rely on it.
    """
    unavailable = False
    while True:
        pause_s = interval_s
        try:
            await step()
            if unavailable:
                log.info("Redis is available again", loop=name, limited=True)
            unavailable = False
        except StoreError as error:
            if not unavailable:
                event = "Redis refuses" if isinstance(error, Refused) else "waiting for Redis"
                log.warning(event, loop=name, error=str(error), limited=True)
            unavailable, pause_s = True, RETRY_S
        except Exception:
            log.exception("loop step failed", loop=name)
            pause_s = max(interval_s, RETRY_S)
        await asyncio.sleep(pause_s * random.uniform(0.9, 1.1))


async def retry(
    step: Callable[[], Awaitable[T]],
    *,
    until: float = FOR_EVER,
    pause_s: float = RETRY_S,
    on: type[Exception] | tuple[type[Exception], ...] = StoreError,
    on_error: Callable[[Exception], object] | None = None,
) -> T:
    """Repeat an idempotent `step` while it raises `on`; from the monotonic time `until` on, its error is raised.

    `step` runs at least once. `on_error` gets each error before the pause, for a log line.
    """
    while True:
        try:
            return await step()
        except on as error:
            if monotonic() >= until:
                raise
            if on_error is not None:
                on_error(error)
        await asyncio.sleep(pause_s)


class Tasks:
    """Background tasks: kept from being collected, their failures logged, cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, StoreError):
                log.warning("task failed: Redis is unavailable", task=task.get_name(), error=str(error), limited=True)
            else:
                log.error("task failed", task=task.get_name(), exc_info=error)

    async def settled(self) -> None:
        """Wait for all of them to end, and for those they start.

        `wait` yields to the loop even if every task is done, so their callbacks run and empty the set. A `gather` of
        finished tasks does not yield from Python 3.12 on: this loop would never end.
        """
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PacedQueue(Generic[T]):
    """Handles items a few at a time, with a pause after them in which others are served: an end of everything at once
    must not delay those that go on. The first few are handled at once."""

    AT_ONCE, PAUSE_S = 4, 0.001

    def __init__(self, handle: Callable[[T], object]) -> None:
        self._handle = handle
        self._waiting: deque[T] = deque()
        self._handled = 0  # since the last pause

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: T) -> None:
        self._waiting.append(item)
        if self._handled < self.AT_ONCE:
            self._handle_some()

    def _handle_some(self) -> None:
        if not self._handled and self._waiting:
            asyncio.get_running_loop().call_later(self.PAUSE_S, self._pause_ended)
        while self._waiting and self._handled < self.AT_ONCE:
            self._handled += 1
            self._handle(self._waiting.popleft())

    def _pause_ended(self) -> None:
        self._handled = 0
        self._handle_some()


class KeyedQueues:
    """Executes the steps of one key one after another, and those of different keys at the same time."""

    def __init__(self, tasks: Tasks, name: str) -> None:
        self._tasks, self._name = tasks, name
        self._waiting: dict[str, deque[Callable[[], Awaitable[object]]]] = {}

    def waiting(self, key: str) -> int:
        return len(self._waiting.get(key, ()))

    def add(self, key: str, step: Callable[[], Awaitable[object]]) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            self._tasks.spawn(self._work(key, waiting), self._name)
        waiting.append(step)

    async def _work(self, key: str, waiting: deque[Callable[[], Awaitable[object]]]) -> None:
        try:
            while waiting:
                step = waiting.popleft()
                try:
                    await step()
                except Exception:
                    log.exception("a step failed", queue=self._name, key=key)
        finally:
            del self._waiting[key]


class ReadFirstTimeout:
    """As `asyncio.timeout`, but an answer that has arrived by then counts, also when the loop was late to read it.

    A loop that was busy finds the timer due and the answer in the socket at the same moment, and uvloop runs timers
    before it reads. So the time-out gives the loop as long again as it was late, at most `seconds`, and lets it read
    once, before it cancels. `late_s` says how late it was.
    """

    PAUSED_S = 0.5

    __slots__ = ("_cancelling", "_due", "_handle", "_is_over", "_loop", "_seconds", "_task", "late_s")

    def __init__(self, seconds: float) -> None:
        self._seconds, self.late_s, self._is_over = seconds, 0.0, False

    async def __aenter__(self) -> Self:
        """Not by `asyncio.timeout`, which costs twice as much; most of these never fire."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._due = self._loop.time() + self._seconds
        self._handle: asyncio.Handle = self._loop.call_at(self._due, self._first)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._handle.cancel()
        if self._is_over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    @property
    def was_paused(self) -> bool:
        """Whether it fired so late that it says nothing about Redis: this process was stopped, or starved."""
        return self.late_s > self.PAUSED_S

    def _first(self) -> None:
        self.late_s = max(self._loop.time() - self._due, 0.0)
        self._handle = self._loop.call_later(min(self.late_s, self._seconds), self._turn, READ_TURNS)

    def _turn(self, left: int) -> None:
        """After so many turns of the loop the answer was read, and the task that waits for it went on."""
        if left:
            self._handle = self._loop.call_soon(self._turn, left - 1)
        else:
            self._is_over = True
            self._task.cancel()


async def answers(*futures: "asyncio.Future[Any]") -> list[Any]:
    """The replies of one flush. They arrive together, so awaiting each wakes the task once; `gather` costs more."""
    try:
        return [await future for future in futures]
    except BaseException:
        for future in futures:
            unawaited(future)
        raise


def unawaited(future: "asyncio.Future[Any]") -> None:
    """A reply that nothing waits for: if it is lost, a TTL, a renewal or a takeover repairs the effect."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())


def resolve(future: "asyncio.Future[None]") -> None:
    """Wake what waits for it; for timers."""
    if not future.done():
        future.set_result(None)
