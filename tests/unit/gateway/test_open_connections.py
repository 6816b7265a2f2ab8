import asyncio
from math import inf
from typing import Any, cast

from dragoman.domain.limits.connections import SHARE_OF_ADDRESS, ConnectionLimits
from dragoman.gateway.open_connections import (
    CHECKS_PER_TURN,
    CLOSED_PER_TURN,
    ENDS_AT_ONCE,
    OpenConnections,
    PreSession,
    TimeLimit,
)
from dragoman.protocol.codes import Close
from support.waiting import wait_until


class Item:
    def __init__(self, expired: list["Item"]) -> None:
        self._expired = expired

    def expire(self) -> None:
        self._expired.append(self)


def test_entries_expire_once_in_order_of_arrival() -> None:
    expired: list[Item] = []
    patience: TimeLimit[Item] = TimeLimit(limit_s=10.0)
    first, second, third = (Item(expired) for _ in range(3))
    patience.add(first, now=0.0)
    patience.add(second, now=1.0)
    patience.add(third, now=5.0)
    patience.expire(now=9.9)
    assert expired == []
    patience.expire(now=11.0)
    assert expired == [first, second]
    patience.expire(now=11.0)
    assert (expired, list(patience)) == ([first, second], [third])


def test_removed_entry_does_not_expire() -> None:
    expired: list[Item] = []
    patience: TimeLimit[Item] = TimeLimit(limit_s=10.0)
    item = Item(expired)
    patience.add(item, now=0.0)
    patience.discard(item)
    patience.discard(item)
    patience.expire(now=inf)
    assert expired == []
    assert len(patience) == 0


def test_the_oldest_can_be_made_to_go() -> None:
    expired: list[Item] = []
    patience: TimeLimit[Item] = TimeLimit(limit_s=10.0)
    items = [Item(expired) for _ in range(3)]
    for item in items:
        patience.add(item, now=0.0)
    patience.expire_oldest()
    assert expired == items[:1]
    assert list(patience) == items[1:]


def test_a_sweep_ends_heads_and_leavers_each_after_their_own_time() -> None:
    now = 0.0
    expired: list[Item] = []
    registry = OpenConnections(ConnectionLimits(head_timeout_s=10.0, close_timeout_s=2.0), lambda: now)
    head, leaver = Item(expired), Item(expired)
    registry.awaiting_head.add(head, now)
    registry.closing.add(leaver, now)
    now = 2.0
    registry.sweep()
    assert expired == [leaver]
    now = 10.0
    registry.sweep()
    assert expired == [leaver, head]


def test_when_thousands_leave_at_once_others_have_their_turn_in_between() -> None:
    class Leaver:
        peer = ("127.0.0.1", 1)

        def notify_closed(self) -> None:
            told.append(self)

    told: list[Leaver] = []
    told_by_turn: list[int] = [0]

    async def main() -> None:
        registry = OpenConnections(ConnectionLimits(), lambda: 0.0)
        leavers: list[Any] = [Leaver() for _ in range(3 * ENDS_AT_ONCE)]
        for leaver in leavers:
            registry.add(leaver)
        for leaver in leavers:
            registry.ended(leaver)
        while registry.live:
            await asyncio.sleep(0)
            if len(told) > told_by_turn[-1]:
                told_by_turn.append(len(told))
        assert (told, registry.empty.is_set()) == (leavers, True)

    asyncio.run(main())
    assert told_by_turn == [0, ENDS_AT_ONCE, 2 * ENDS_AT_ONCE, 3 * ENDS_AT_ONCE]


class Somebody:
    def __init__(self, address: str) -> None:
        self.peer = (address, 1)


def test_connections_are_counted_by_address_and_removed_once() -> None:
    registry = OpenConnections(ConnectionLimits(), lambda: 0.0)
    first, second = (cast(Any, Somebody("203.0.113.7")) for _ in range(2))
    for one in (first, second, second):
        registry.add(one)
    assert registry.addresses.of("203.0.113.7") == 2
    for _ in range(2):
        registry.remove(first)
    assert registry.addresses.of("203.0.113.7") == 1
    registry.remove(second)
    assert len(registry.addresses) == 0


def test_it_is_crowded_while_more_come_to_leave_than_are_seen_off() -> None:
    class Leaver:
        peer = ("127.0.0.1", 1)

        def notify_closed(self) -> None: ...

    crowded: list[bool] = []

    async def main() -> None:
        registry = OpenConnections(ConnectionLimits(), lambda: 0.0)
        some: list[Any] = [Leaver() for _ in range(9 * ENDS_AT_ONCE)]
        for leaver in some:
            registry.add(leaver)
        for arriving in (4, 4, 1, 0):
            for _ in range(arriving * ENDS_AT_ONCE):
                registry.ended(some.pop())
            registry._handle_ends()
            crowded.append(registry.is_crowded)
        while registry.live:  # noqa: ASYNC110
            await asyncio.sleep(0)
        crowded.append(registry.is_crowded)

    asyncio.run(main())
    assert crowded == [True, True, True, False, False]


def test_the_pulse_of_thousands_is_felt_a_few_a_turn_and_each_once_a_round() -> None:
    class Silent:
        peer = ("127.0.0.1", 1)

        def check_silence(self, now: float) -> None:
            felt.append(self)

    felt: list[Silent] = []
    felt_by_turn: list[int] = []

    async def main() -> None:
        registry = OpenConnections(ConnectionLimits(), lambda: 0.0)
        members: list[Any] = [Silent() for _ in range(2 * CHECKS_PER_TURN + 1)]
        for member in members:
            registry.add(member)
        registry.sweep()
        while not felt_by_turn or felt_by_turn[-1] < len(members):
            felt_by_turn.append(len(felt))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert set(felt) == set(members)

    asyncio.run(main())
    assert felt_by_turn == [CHECKS_PER_TURN, 2 * CHECKS_PER_TURN, 2 * CHECKS_PER_TURN + 1]
    assert len(felt) == 2 * CHECKS_PER_TURN + 1


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


async def test_oldest_waiting_connection_is_closed_when_all_slots_are_taken() -> None:
    hall = Hall(2)
    first, second, third = (hall.add(NEAR) for _ in range(3))
    assert (first.heard, second.heard, third.heard) == ([Close.OVERLOADED], [], [])
    hall.remove(second)
    assert hall.add(NEAR).heard == []
    assert (third.heard, len(hall.room)) == ([], 2)


async def test_ten_thousand_silent_connections_do_not_block_one_that_authenticates() -> None:
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


async def test_refused_connection_leaves_no_state() -> None:
    hall = Hall(SHARE_OF_ADDRESS)
    inside = hall.add(FAR)
    for _ in range(100):
        hall.remove(hall.add(FAR))
    hall.remove(inside)
    hall.remove(inside)
    assert len(hall.room) == 0
    assert hall.add(FAR).heard == []


async def test_connection_without_a_session_is_notified_and_closed_after_the_timeout() -> None:
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


async def test_connections_opened_during_shutdown_are_closed_too() -> None:
    hall = Hall(10, patience_s=0.01)
    for _ in range(3):
        peer = hall.add(NEAR)
        await wait_until(lambda: peer.heard, 10)  # noqa: B023
    assert peer.heard == [Close.IDLE]
