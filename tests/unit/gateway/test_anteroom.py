import asyncio
from typing import Any, cast

from dragoman.gateway.anteroom import SHARE, SHOWN_OUT, Anteroom
from dragoman.protocol.codes import Close
from waiting import wait_until

NEAR, FAR, FARTHER = "127.0.0.1", "203.0.113.7", "198.51.100.1"


class Visitor:
    def __init__(self, number: int, address: str) -> None:
        self.id, self.peer = number, (address, number)
        self.heard: list[object] = []

    def send(self, data: bytes) -> None:
        self.heard.append(data)

    def close(self, code: int, reason: str = "") -> None:
        self.heard.append(code)


class Hall:
    def __init__(self, most: int, patience_s: float = 1000.0) -> None:
        self.room = Anteroom(patience_s, most)
        self.number = 0

    def enter(self, address: str, farewell: bytes = b"") -> Visitor:
        self.number += 1
        visitor = Visitor(self.number, address)
        self.room.enter(cast(Any, visitor), Close.IDLE, "why", farewell)
        return visitor

    def leave(self, visitor: Visitor) -> None:
        self.room.leave(cast(Any, visitor))


async def test_when_all_places_are_taken_whoever_waited_longest_gives_way() -> None:
    hall = Hall(2)
    first, second, third = (hall.enter(NEAR) for _ in range(3))
    assert (first.heard, second.heard, third.heard) == ([Close.OVERLOADED], [], [])
    hall.leave(second)
    assert hall.enter(NEAR).heard == []
    assert (third.heard, len(hall.room)) == ([], 2)


async def test_of_ten_thousand_strangers_none_keeps_out_one_that_says_who_it_is() -> None:
    hall = Hall(100)
    for number in range(10_000):
        hall.enter(NEAR)
        if number % 50 == 0:
            honest = hall.enter(NEAR)
            for _ in range(90):  # while it says so
                hall.enter(NEAR)
            assert honest.heard == []
            hall.leave(honest)
    assert len(hall.room) <= 100


async def test_one_address_has_its_share_and_others_find_a_place() -> None:
    hall = Hall(4 * SHARE)
    mine = [hall.enter(FAR) for _ in range(4)]
    assert [visitor.heard for visitor in mine] == [[]] * 4
    assert hall.enter(FAR).heard == [Close.OVERLOADED]
    assert hall.enter(FARTHER).heard == []
    hall.leave(mine[0])
    assert hall.enter(FAR).heard == []


async def test_who_was_turned_away_leaves_nothing_behind() -> None:
    hall = Hall(SHARE)
    inside = hall.enter(FAR)
    for _ in range(100):
        hall.leave(hall.enter(FAR))
    hall.leave(inside)
    hall.leave(inside)
    assert len(hall.room) == 0
    assert hall.enter(FAR).heard == []


async def test_who_waited_too_long_is_told_and_closed() -> None:
    hall = Hall(1, patience_s=0.0)
    visitor = hall.enter(FAR, b"farewell")
    await wait_until(lambda: visitor.heard, 10)
    assert visitor.heard == [b"farewell", Close.IDLE]


async def test_thousands_that_came_together_go_a_few_in_each_turn_and_in_order() -> None:
    hall = Hall(5000, patience_s=0.0)
    crowd = [hall.enter(NEAR) for _ in range(1000)]
    gone, most = 0, 0
    while gone < len(crowd):
        await asyncio.sleep(0)
        now = sum(1 for visitor in crowd if visitor.heard)
        assert all(visitor.heard for visitor in crowd[:now])
        gone, most = now, max(most, now - gone)
    assert 0 < most <= SHOWN_OUT
    assert len(hall.room) == 0


async def test_who_comes_later_is_shown_out_too() -> None:
    hall = Hall(10, patience_s=0.01)
    for _ in range(3):
        visitor = hall.enter(NEAR)
        await wait_until(lambda: visitor.heard, 10)  # noqa: B023
    assert visitor.heard == [Close.IDLE]
