import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

from dragoman.gateway.doorman import ADMISSION_S, CROWDED_PAUSE_S, PAUSE_S, Doorman


class Caller:
    def __init__(self, inside: list["Caller"]) -> None:
        self._inside = inside

    def come_in(self) -> None:
        self._inside.append(self)


def came_in(busy_s: float, callers: int, *, crowded: bool = False) -> list[int]:
    """How many were inside after each look of the doorman, when others were busy for so long in between."""
    inside: list[Caller] = []
    by_look = [0]
    clock: Iterator[float] = (busy_s * number for number in count())

    async def main() -> None:
        doorman = Doorman(lambda: next(clock), lambda: crowded)
        all = [Caller(inside) for _ in range(callers)]
        for caller in all:
            doorman.queue(caller)
        while doorman:
            await asyncio.sleep(0)
            if len(inside) > by_look[-1]:
                by_look.append(len(inside))
        assert inside == all

    asyncio.run(main())
    return by_look[1:]


def test_one_comes_in_at_a_time_in_the_order_they_came() -> None:
    assert came_in(0.0, 3) == [1, 2, 3]


def test_when_others_are_busy_half_of_the_time_is_for_those_who_wait() -> None:
    assert came_in(20 * ADMISSION_S, 25) == [10, 20, 25]


def test_while_thousands_are_leaving_one_comes_in_at_a_time_however_busy_that_makes_us() -> None:
    assert came_in(20 * ADMISSION_S, 3, crowded=True) == [1, 2, 3]


def test_while_thousands_are_leaving_the_next_waits_for_longer() -> None:
    pauses: list[float] = []
    inside: list[Caller] = []

    class Hasty(asyncio.SelectorEventLoop):
        def call_later(self, delay: float, *args: Any, **more: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            pauses.append(delay)
            return super().call_later(0.0, *args, **more)

    async def main() -> None:
        crowded = iter([True, False, False])
        doorman = Doorman(lambda: 0.0, lambda: next(crowded))
        for _ in range(3):
            doorman.queue(Caller(inside))
        while len(inside) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=Hasty) as runner:
        runner.run(main())
    assert len(inside) == 3
    assert pauses == [CROWDED_PAUSE_S, PAUSE_S]


def test_who_has_left_costs_nobody_a_turn() -> None:
    inside: list[Caller] = []

    async def main() -> None:
        doorman = Doorman(lambda: 0.0)
        gone, stays = [Caller(inside) for _ in range(10)], Caller(inside)
        for caller in (*gone, stays):
            doorman.queue(caller)
        for caller in gone:
            doorman.forget(caller)
        await asyncio.sleep(0)
        assert inside == [stays]
        doorman.forget(stays)  # nothing to forget
        doorman.queue(gone[0])
        await asyncio.sleep(0)
        assert inside == [stays, gone[0]]

    asyncio.run(main())


def test_when_all_have_left_the_next_comes_in_as_the_first_did() -> None:
    inside: list[Caller] = []

    async def main() -> None:
        doorman = Doorman()
        left = Caller(inside)
        doorman.queue(left)
        doorman.forget(left)
        await asyncio.sleep(0)
        caller = Caller(inside)
        doorman.queue(caller)
        await asyncio.sleep(0)
        assert inside == [caller]

    asyncio.run(main())


def test_in_a_hurry_all_come_in_at_once() -> None:
    inside: list[Caller] = []

    async def main() -> None:
        doorman = Doorman()
        for _ in range(30):
            doorman.queue(Caller(inside))
        doorman.hurry()
        assert (len(inside), len(doorman)) == (30, 0)

    asyncio.run(main())
