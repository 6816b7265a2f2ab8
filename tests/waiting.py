"""Waiting for facts inside an event loop; `processes.wait_until` does the same for tests without one."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def wait_until(
    condition: Callable[[], Awaitable[T]],
    patience_s: float = 60.0,
    what: str = "",
    tolerate: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...


@overload
async def wait_until(
    condition: Callable[[], T],
    patience_s: float = 60.0,
    what: str = "",
    tolerate: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...


async def wait_until(
    condition: Callable[[], Any],
    patience_s: float = 60.0,
    what: str = "",
    tolerate: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """The first truthy value of `condition`; AssertionError when there is none within `patience_s`.

    `tolerate` names what may go wrong meanwhile: while a server is away, say, asking it fails.
    """
    until = time.monotonic() + patience_s
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
        assert time.monotonic() < until, f"waited {patience_s:g} s in vain{f' for {what}' if what else ''}: {last!r}"
        await asyncio.sleep(0.003)
