"""Threads for what is a plain function: at most so many at a time, awaited like a coroutine.

Two things differ from an executor of the standard library. A process that ends does not wait for them: a function that
hangs would keep a node that has left. And StopIteration, which no future can hold, comes out as RuntimeError, as out of
a coroutine: whoever awaits the function would otherwise wait for ever.
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
    """They are started when they are first needed, and end with `close`, or when nobody knows of them any more."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._started = 0
        self._calls: _Queue = SimpleQueue()
        self._end = weakref.finalize(self, self._calls.put, None)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """What the function returns or raises. One that is cancelled while it waits for a thread never runs."""
        if not self._end.alive:
            raise RuntimeError("the threads are closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._calls.put(lambda: _answer(answer, loop, function, args))
        if self._started < self._most:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True).start()
        return await answer

    def close(self) -> None:
        """Nothing more is taken. What runs is not waited for."""
        self._end()


def _work(calls: _Queue) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # or it would keep its job while there is no other
    calls.put(None)  # for the next thread


def _answer(
    answer: asyncio.Future[T], loop: asyncio.AbstractEventLoop, function: Callable[..., T], args: tuple[Any, ...]
) -> None:
    if answer.cancelled():
        return
    settle: Callable[[], None]
    try:
        settle = partial(answer.set_result, function(*args))
    except BaseException as error:
        settle = partial(answer.set_exception, _holdable(error))
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(lambda: None if answer.done() else settle())


def _holdable(error: BaseException) -> BaseException:
    if not isinstance(error, StopIteration):
        return error
    held = RuntimeError("the function raised StopIteration")
    held.__cause__ = error
    return held
