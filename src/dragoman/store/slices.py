"""What is done again and again for everybody who is connected: a slice at a time, so that nobody waits for all of it.

Ten thousand renewals in one turn of the loop are a second in which no job is placed and no message accepted. A slice is
answered before the next is asked; whoever else has something to do does it in between.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

SLICE = 100  # some 3 ms of work


async def in_slices(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """The answers, in order. What fails ends it: the slices after that were not asked."""
    rest, found = iter(items), list[R]()
    while some := list(islice(rest, SLICE)):
        found += await asyncio.gather(*(ask(one) for one in some))
    return found
