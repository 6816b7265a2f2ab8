"""Waiting for facts, with patience that ends."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

LOOK_AGAIN_S = 0.02


async def until(condition: Callable[[], bool | Awaitable[bool]], patience_s: float) -> bool:
    """Whether it came true in time."""
    give_up_at = time.monotonic() + patience_s
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return True
        if time.monotonic() >= give_up_at:
            return False
        await asyncio.sleep(LOOK_AGAIN_S)
