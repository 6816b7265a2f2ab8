"""Runs plain functions in threads, a limited number at a time, and awaits them.

Two things differ from an executor of the standard library. The process does not wait for the threads when it ends: a
function that hangs would keep a drained node alive. And StopIteration, which a future cannot hold, becomes
RuntimeError, as in a coroutine: the caller would otherwise wait for ever.
"""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Queue = SimpleQueue[Callable[[], None] | None]


class Threads:
    """Threads start when they are first needed, and end after `close`, or when this object is garbage collected."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads, self._name = max_threads, name
        self._started = 0
        self._calls: _Queue = SimpleQueue()
        self._end = weakref.finalize(self, self._calls.put, None)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Returns or raises what the function does. If cancelled while it waits for a thread, it never runs."""
        if not self._end.alive:
            raise RuntimeError("the threads are closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(lambda: _run(future, loop, function, args))
        if self._started < self._max_threads:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True).start()
        return await future

    def close(self) -> None:
        """Accept no more calls. Running functions are not waited for."""
        self._end()


def _work(calls: _Queue) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # otherwise the idle thread would keep the job alive
    calls.put(None)  # for the next thread


def _run(
    future: asyncio.Future[T], loop: asyncio.AbstractEventLoop, function: Callable[..., T], args: tuple[Any, ...]
) -> None:
    if future.cancelled():
        return
    complete: Callable[[], None]
    try:
        complete = partial(future.set_result, function(*args))
    except BaseException as error:
        complete = partial(future.set_exception, _holdable(error))
    with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
        loop.call_soon_threadsafe(lambda: None if future.done() else complete())


def _holdable(error: BaseException) -> BaseException:
    if not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError("the function raised StopIteration")
    wrapped.__cause__ = error
    return wrapped
