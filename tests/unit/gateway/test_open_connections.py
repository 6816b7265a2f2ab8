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
    limit: TimeLimit[Item] = TimeLimit(limit_s=10.0)
    first, second, third = (Item(expired) for _ in range(3))
    limit.add(first, now=0.0)
    limit.add(second, now=1.0)
    limit.add(third, now=5.0)
    limit.expire(now=9.9)
    assert expired == []
    limit.expire(now=11.0)
    assert expired == [first, second]
    limit.expire(now=11.0)
    assert (expired, list(limit)) == ([first, second], [third])


def test_removed_entry_does_not_expire() -> None:
    expired: list[Item] = []
    limit: TimeLimit[Item] = TimeLimit(limit_s=10.0)
    item = Item(expired)
    limit.add(item, now=0.0)
    limit.discard(item)
    limit.discard(item)
    limit.expire(now=inf)
    assert expired == []
    assert len(limit) == 0


def test_oldest_item_can_be_expired_early() -> None:
    expired: list[Item] = []
    limit: TimeLimit[Item] = TimeLimit(limit_s=10.0)
    items = [Item(expired) for _ in range(3)]
    for item in items:
        limit.add(item, now=0.0)
    limit.expire_oldest()
    assert expired == items[:1]
    assert list(limit) == items[1:]


def test_sweep_expires_incomplete_requests_and_closing_connections_after_their_own_times() -> None:
    now = 0.0
    expired: list[Item] = []
    registry = OpenConnections(ConnectionLimits(head_timeout_s=10.0, close_timeout_s=2.0), lambda: now)
    head, connection = Item(expired), Item(expired)
    registry.awaiting_head.add(head, now)
    registry.closing.add(connection, now)
    now = 2.0
    registry.sweep()
    assert expired == [connection]
    now = 10.0
    registry.sweep()
    assert expired == [connection, head]


async def test_thousands_of_closed_connections_are_handled_a_few_per_turn() -> None:
    class ClosedConnection:
        peer = ("127.0.0.1", 1)

        def notify_closed(self) -> None:
            notified.append(self)

    notified: list[ClosedConnection] = []
    notified_by_turn: list[int] = [0]

    registry = OpenConnections(ConnectionLimits(), lambda: 0.0)
    closed: list[Any] = [ClosedConnection() for _ in range(3 * ENDS_AT_ONCE)]
    for connection in closed:
        registry.add(connection)
    for connection in closed:
        registry.ended(connection)
    while registry.live:
        await asyncio.sleep(0)
        if len(notified) > notified_by_turn[-1]:
            notified_by_turn.append(len(notified))
    assert (notified, registry.empty.is_set()) == (closed, True)

    assert notified_by_turn == [0, ENDS_AT_ONCE, 2 * ENDS_AT_ONCE, 3 * ENDS_AT_ONCE]


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


async def test_registry_is_crowded_while_connections_close_faster_than_they_are_handled() -> None:
    class ClosedConnection:
        peer = ("127.0.0.1", 1)

        def notify_closed(self) -> None: ...

    crowded: list[bool] = []

    registry = OpenConnections(ConnectionLimits(), lambda: 0.0)
    some: list[Any] = [ClosedConnection() for _ in range(9 * ENDS_AT_ONCE)]
    for connection in some:
        registry.add(connection)
    for arriving in (4, 4, 1, 0):
        for _ in range(arriving * ENDS_AT_ONCE):
            registry.ended(some.pop())
        registry._handle_ends()
        crowded.append(registry.is_crowded)
    while registry.live:  # noqa: ASYNC110
        await asyncio.sleep(0)
    crowded.append(registry.is_crowded)

    assert crowded == [True, True, True, False, False]


async def test_silence_of_thousands_is_checked_a_few_per_turn_and_each_once_per_round() -> None:
    class Silent:
        peer = ("127.0.0.1", 1)

        def check_silence(self, now: float) -> None:
            felt.append(self)

    felt: list[Silent] = []
    felt_by_turn: list[int] = []

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


class PreSessionWithPeers:
    def __init__(self, most: int, timeout_s: float = 1000.0) -> None:
        self.room = PreSession(timeout_s, most)
        self.number = 0

    def add(self, address: str, last_frame: bytes = b"") -> Peer:
        self.number += 1
        peer = Peer(self.number, address)
        self.room.add(cast(Any, peer), Close.IDLE, "why", last_frame)
        return peer

    def remove(self, peer: Peer) -> None:
        self.room.remove(cast(Any, peer))


async def test_oldest_waiting_connection_is_closed_when_all_slots_are_taken() -> None:
    waiting = PreSessionWithPeers(2)
    first, second, third = (waiting.add(NEAR) for _ in range(3))
    assert (first.heard, second.heard, third.heard) == ([Close.OVERLOADED], [], [])
    waiting.remove(second)
    assert waiting.add(NEAR).heard == []
    assert (third.heard, len(waiting.room)) == ([], 2)


async def test_ten_thousand_silent_connections_do_not_block_one_that_authenticates() -> None:
    waiting = PreSessionWithPeers(100)
    for number in range(10_000):
        waiting.add(NEAR)
        if number % 50 == 0:
            honest = waiting.add(NEAR)
            for _ in range(90):  # while it says so
                waiting.add(NEAR)
            assert honest.heard == []
            waiting.remove(honest)
    assert len(waiting.room) <= 100


async def test_address_has_its_share_and_others_find_room() -> None:
    waiting = PreSessionWithPeers(4 * SHARE_OF_ADDRESS)
    mine = [waiting.add(FAR) for _ in range(4)]
    assert [peer.heard for peer in mine] == [[]] * 4
    assert waiting.add(FAR).heard == [Close.OVERLOADED]
    assert waiting.add(FARTHER).heard == []
    waiting.remove(mine[0])
    assert waiting.add(FAR).heard == []


async def test_refused_connection_leaves_no_state() -> None:
    waiting = PreSessionWithPeers(SHARE_OF_ADDRESS)
    inside = waiting.add(FAR)
    for _ in range(100):
        waiting.remove(waiting.add(FAR))
    waiting.remove(inside)
    waiting.remove(inside)
    assert len(waiting.room) == 0
    assert waiting.add(FAR).heard == []


async def test_connection_without_a_session_is_notified_and_closed_after_the_timeout() -> None:
    waiting = PreSessionWithPeers(1, timeout_s=0.0)
    peer = waiting.add(FAR, b"last_frame")
    await wait_until(lambda: peer.heard, 10)
    assert peer.heard == [b"last_frame", Close.IDLE]


async def test_thousands_of_timeouts_are_handled_a_few_per_turn_and_in_order() -> None:
    waiting = PreSessionWithPeers(5000, timeout_s=0.0)
    peers = [waiting.add(NEAR) for _ in range(1000)]
    gone, most = 0, 0
    while gone < len(peers):
        await asyncio.sleep(0)
        now = sum(1 for peer in peers if peer.heard)
        assert all(peer.heard for peer in peers[:now])
        gone, most = now, max(most, now - gone)
    assert 0 < most <= CLOSED_PER_TURN
    assert len(waiting.room) == 0


async def test_connections_opened_during_shutdown_are_closed_too() -> None:
    waiting = PreSessionWithPeers(10, timeout_s=0.01)
    for _ in range(3):
        peer = waiting.add(NEAR)
        await wait_until(lambda: peer.heard, 10)  # noqa: B023
    assert peer.heard == [Close.IDLE]
