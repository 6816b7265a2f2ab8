from typing import Any, cast

from dragoman.gateway.anteroom import SHARE, Anteroom
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


async def test_when_all_places_are_taken_the_newest_is_turned_away_until_one_leaves() -> None:
    hall = Hall(2)
    first, second, third = (hall.enter(NEAR) for _ in range(3))
    assert (first.heard, second.heard, third.heard) == ([], [], [Close.OVERLOADED])
    hall.leave(first)
    assert hall.enter(NEAR).heard == []
    assert len(hall.room) == 2


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
