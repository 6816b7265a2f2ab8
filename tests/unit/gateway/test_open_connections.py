import asyncio
from math import inf
from typing import Any, cast

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.gateway.open_connections import CHECKS_PER_TURN, ENDS_AT_ONCE, OpenConnections, TimeLimit


class Item:
    def __init__(self, expired: list["Item"]) -> None:
        self._expired = expired

    def expire(self) -> None:
        self._expired.append(self)


def test_what_waited_its_time_expires_once_in_order_of_arrival() -> None:
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


def test_what_stopped_waiting_does_not_expire() -> None:
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
    registry.heads.add(head, now)
    registry.leaving.add(leaver, now)
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
            registry.join(leaver)
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


def test_who_is_there_is_counted_by_address_and_who_leaves_twice_only_once() -> None:
    registry = OpenConnections(ConnectionLimits(), lambda: 0.0)
    first, second = (cast(Any, Somebody("203.0.113.7")) for _ in range(2))
    for one in (first, second, second):
        registry.join(one)
    assert registry.addresses.of("203.0.113.7") == 2
    for _ in range(2):
        registry.leave(first)
    assert registry.addresses.of("203.0.113.7") == 1
    registry.leave(second)
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
            registry.join(leaver)
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
            registry.join(member)
        registry.sweep()
        while not felt_by_turn or felt_by_turn[-1] < len(members):
            felt_by_turn.append(len(felt))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert set(felt) == set(members)

    asyncio.run(main())
    assert felt_by_turn == [CHECKS_PER_TURN, 2 * CHECKS_PER_TURN, 2 * CHECKS_PER_TURN + 1]
    assert len(felt) == 2 * CHECKS_PER_TURN + 1
