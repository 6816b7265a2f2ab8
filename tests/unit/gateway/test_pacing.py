import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from dragoman.gateway.pacing import (
    ACCEPTED,
    CROWDED_PAUSE_S,
    HANDSHAKE_PAUSE_S,
    HANDSHAKE_S,
    OBJECTS_PER_RUN,
    GcPacing,
    HandshakeQueue,
)


class Caller:
    def __init__(self, inside: list["Caller"]) -> None:
        self._inside = inside

    def do_handshake(self) -> None:
        self._inside.append(self)


def came_in(busy_s: float, callers: int, *, crowded: bool = False) -> list[int]:
    """How many were inside after each look of the handshake_queue, when others were busy for so long in between."""
    inside: list[Caller] = []
    by_check = [0]
    clock: Iterator[float] = (busy_s * number for number in count())

    async def main() -> None:
        handshake_queue = HandshakeQueue(lambda: next(clock), lambda: crowded)
        all = [Caller(inside) for _ in range(callers)]
        for caller in all:
            handshake_queue.queue(caller)
        while handshake_queue:
            await asyncio.sleep(0)
            if len(inside) > by_check[-1]:
                by_check.append(len(inside))
        assert inside == all

    asyncio.run(main())
    return by_check[1:]


def test_handshakes_are_done_one_at_a_time_in_order() -> None:
    assert came_in(0.0, 3) == [1, 2, 3]


def test_handshakes_get_half_of_the_time_of_a_busy_loop() -> None:
    assert came_in(20 * HANDSHAKE_S, 25) == [10, 20, 25]


def test_one_handshake_at_a_time_is_done_while_connections_close_however_busy_the_loop_is() -> None:
    assert came_in(20 * HANDSHAKE_S, 3, crowded=True) == [1, 2, 3]


def test_pause_between_handshakes_is_longer_while_connections_close() -> None:
    pauses: list[float] = []
    inside: list[Caller] = []

    class Hasty(asyncio.SelectorEventLoop):
        def call_later(self, delay: float, *args: Any, **more: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            pauses.append(delay)
            return super().call_later(0.0, *args, **more)

    async def main() -> None:
        crowded = iter([True, False, False])
        handshake_queue = HandshakeQueue(lambda: 0.0, lambda: next(crowded))
        for _ in range(3):
            handshake_queue.queue(Caller(inside))
        while len(inside) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=Hasty) as runner:
        runner.run(main())
    assert len(inside) == 3
    assert pauses == [CROWDED_PAUSE_S, HANDSHAKE_PAUSE_S]


async def test_closed_connection_uses_no_turn() -> None:
    inside: list[Caller] = []

    handshake_queue = HandshakeQueue(lambda: 0.0)
    gone, stays = [Caller(inside) for _ in range(10)], Caller(inside)
    for caller in (*gone, stays):
        handshake_queue.queue(caller)
    for caller in gone:
        handshake_queue.remove(caller)
    await asyncio.sleep(0)
    assert inside == [stays]
    handshake_queue.remove(stays)  # nothing to forget
    handshake_queue.queue(gone[0])
    await asyncio.sleep(0)
    assert inside == [stays, gone[0]]


async def test_queue_starts_again_after_all_were_removed() -> None:
    inside: list[Caller] = []

    handshake_queue = HandshakeQueue()
    left = Caller(inside)
    handshake_queue.queue(left)
    handshake_queue.remove(left)
    await asyncio.sleep(0)
    caller = Caller(inside)
    handshake_queue.queue(caller)
    await asyncio.sleep(0)
    assert inside == [caller]


async def test_handle_all_does_all_handshakes_at_once() -> None:
    inside: list[Caller] = []

    handshake_queue = HandshakeQueue()
    for _ in range(30):
        handshake_queue.queue(Caller(inside))
    handshake_queue.handle_all()
    assert (len(inside), len(handshake_queue)) == (30, 0)


@contextmanager
def looks() -> Iterator[list[int]]:
    """The generations the collector looked at."""
    seen: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.disable()  # what it does by itself is not asked
    gc.callbacks.append(look)
    try:
        yield seen
    finally:
        gc.callbacks.remove(look)
        gc.enable()


def test_garbage_collector_runs_on_a_portion_of_new_connections_at_a_time() -> None:
    with looks() as seen:
        gc_pacing = GcPacing()
        for _ in range(OBJECTS_PER_RUN // ACCEPTED - 1):
            gc_pacing.created(ACCEPTED)
        assert seen == []
        gc_pacing.created(ACCEPTED)
        assert seen == [1]
        for _ in range(2 * OBJECTS_PER_RUN // ACCEPTED):
            gc_pacing.created(ACCEPTED)
        assert seen == [1, 1, 1]
