import asyncio
from typing import Any, cast

from dragoman.domain.limits.connections import SHARE_OF_ADDRESS
from dragoman.gateway.pre_session import CLOSED_PER_TURN, PreSession
from dragoman.protocol.codes import Close
from support.waiting import wait_until

NEAR, FAR, FARTHER = "127.0.0.1", "203.0.113.7", "198.51.100.1"


class Peer:
    def __init__(self, number: int, address: str) -> None:
        self.id, self.peer = number, (address, number)
        self.heard: list[object] = []

    def send(self, data: bytes) -> None:
        self.heard.append(data)

    def close(self, code: int, reason: str = "") -> None:
        self.heard.append(code)


class Hall:
    def __init__(self, most: int, patience_s: float = 1000.0) -> None:
        self.room = PreSession(patience_s, most)
        self.number = 0

    def add(self, address: str, last_frame: bytes = b"") -> Peer:
        self.number += 1
        peer = Peer(self.number, address)
        self.room.add(cast(Any, peer), Close.IDLE, "why", last_frame)
        return peer

    def remove(self, peer: Peer) -> None:
        self.room.remove(cast(Any, peer))


async def test_when_all_places_are_taken_whoever_waited_longest_gives_way() -> None:
    hall = Hall(2)
    first, second, third = (hall.add(NEAR) for _ in range(3))
    assert (first.heard, second.heard, third.heard) == ([Close.OVERLOADED], [], [])
    hall.remove(second)
    assert hall.add(NEAR).heard == []
    assert (third.heard, len(hall.room)) == ([], 2)


async def test_of_ten_thousand_strangers_none_keeps_out_one_that_says_who_it_is() -> None:
    hall = Hall(100)
    for number in range(10_000):
        hall.add(NEAR)
        if number % 50 == 0:
            honest = hall.add(NEAR)
            for _ in range(90):  # while it says so
                hall.add(NEAR)
            assert honest.heard == []
            hall.remove(honest)
    assert len(hall.room) <= 100


async def test_one_address_has_its_share_and_others_find_a_place() -> None:
    hall = Hall(4 * SHARE_OF_ADDRESS)
    mine = [hall.add(FAR) for _ in range(4)]
    assert [peer.heard for peer in mine] == [[]] * 4
    assert hall.add(FAR).heard == [Close.OVERLOADED]
    assert hall.add(FARTHER).heard == []
    hall.remove(mine[0])
    assert hall.add(FAR).heard == []


async def test_who_was_turned_away_leaves_nothing_behind() -> None:
    hall = Hall(SHARE_OF_ADDRESS)
    inside = hall.add(FAR)
    for _ in range(100):
        hall.remove(hall.add(FAR))
    hall.remove(inside)
    hall.remove(inside)
    assert len(hall.room) == 0
    assert hall.add(FAR).heard == []


async def test_who_waited_too_long_is_told_and_closed() -> None:
    hall = Hall(1, patience_s=0.0)
    peer = hall.add(FAR, b"last_frame")
    await wait_until(lambda: peer.heard, 10)
    assert peer.heard == [b"last_frame", Close.IDLE]


async def test_thousands_that_came_together_go_a_few_in_each_turn_and_in_order() -> None:
    hall = Hall(5000, patience_s=0.0)
    crowd = [hall.add(NEAR) for _ in range(1000)]
    gone, most = 0, 0
    while gone < len(crowd):
        await asyncio.sleep(0)
        now = sum(1 for peer in crowd if peer.heard)
        assert all(peer.heard for peer in crowd[:now])
        gone, most = now, max(most, now - gone)
    assert 0 < most <= CLOSED_PER_TURN
    assert len(hall.room) == 0


async def test_who_comes_later_is_shown_out_too() -> None:
    hall = Hall(10, patience_s=0.01)
    for _ in range(3):
        peer = hall.add(NEAR)
        await wait_until(lambda: peer.heard, 10)  # noqa: B023
    assert peer.heard == [Close.IDLE]
