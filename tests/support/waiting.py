"""Waiting for facts instead of sleeping: `wait_until` inside an event loop, `wait_for` in a test without one.

Processes that a test starts are watched and killed by `Descendants`.
"""

import asyncio
import inspect
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, overload

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest

T = TypeVar("T")
StartParent = Callable[..., tuple["subprocess.Popen[str]", int]]
TIMEOUT_S = 60.0


class Enter(Protocol):
    """The fixture `enter`: enters a context on the loop of the test; it is left when the test is over."""

    def __call__(self, context: AbstractAsyncContextManager[T]) -> T: ...


ON_BOTH_LOOPS = pytest.mark.parametrize("runner", ["uvloop", "asyncio"], indirect=True)


@overload
async def wait_until(
    condition: Callable[[], Awaitable[T]],
    timeout_s: float = TIMEOUT_S,
    what: str = "",
    tolerate: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...


@overload
async def wait_until(
    condition: Callable[[], T],
    timeout_s: float = TIMEOUT_S,
    what: str = "",
    tolerate: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...


async def wait_until(
    condition: Callable[[], Any],
    timeout_s: float = TIMEOUT_S,
    what: str = "",
    tolerate: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """The first truthy value of `condition`; AssertionError when there is none within `timeout_s`.

    `tolerate` names what may go wrong meanwhile: while a server is away, say, asking it fails.
    """
    until = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            found = condition()
            value = await found if inspect.isawaitable(found) else found
            if value:
                return value
            last = value
        except tolerate as error:
            last = error
        assert time.monotonic() < until, f"waited {timeout_s:g} s in vain{f' for {what}' if what else ''}: {last!r}"
        await asyncio.sleep(0.003)


def wait_for(condition: Callable[[], T], what: str = "", timeout_s: float = TIMEOUT_S) -> T:
    """The first truthy value of `condition`; AssertionError when there is none within `timeout_s`."""
    until = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < until, f"waited {timeout_s:g} s in vain{f' for {what}' if what else ''}"
        time.sleep(0.005)
    return value


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Descendants:
    """What a process has started, to be killed when the test is over, whether it failed or not."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()

    def of(self, pid: int) -> list[int]:
        """The pids of all that `pid` has below it now."""
        try:
            below = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(below)
        return [process.pid for process in below]

    def kill(self) -> None:
        """psutil compares start times: a pid that was given to somebody else meanwhile is left alone."""
        for process in self._seen:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
