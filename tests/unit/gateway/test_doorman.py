import asyncio

from dragoman.gateway.doorman import HANDSHAKES, Doorman


class Caller:
    def __init__(self, inside: list["Caller"]) -> None:
        self._inside = inside

    def come_in(self) -> None:
        self._inside.append(self)


def test_a_few_come_in_each_turn_in_the_order_they_came() -> None:
    inside: list[Caller] = []
    by_turn: list[int] = []

    async def main() -> None:
        doorman = Doorman()
        callers = [Caller(inside) for _ in range(2 * HANDSHAKES + 1)]
        for caller in callers:
            doorman.queue(caller)
        while doorman:
            await asyncio.sleep(0)
            by_turn.append(len(inside))
        assert inside == callers

    asyncio.run(main())
    assert by_turn == [HANDSHAKES, 2 * HANDSHAKES, 2 * HANDSHAKES + 1]


def test_who_has_left_costs_nobody_a_turn() -> None:
    inside: list[Caller] = []

    async def main() -> None:
        doorman = Doorman()
        gone, stays = [Caller(inside) for _ in range(10 * HANDSHAKES)], Caller(inside)
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


def test_in_a_hurry_all_come_in_at_once() -> None:
    inside: list[Caller] = []

    async def main() -> None:
        doorman = Doorman()
        for _ in range(3 * HANDSHAKES):
            doorman.queue(Caller(inside))
        doorman.hurry()
        assert (len(inside), len(doorman)) == (3 * HANDSHAKES, 0)

    asyncio.run(main())
