import asyncio
from math import inf
from typing import Any, cast

from dragoman.gateway.limits import Limits
from dragoman.gateway.roster import DEPARTURES, PULSES, Patience, Roster


class Item:
    def __init__(self, expired: list["Item"]) -> None:
        self._expired = expired

    def expire(self) -> None:
        self._expired.append(self)


def test_what_waited_its_time_expires_once_in_order_of_arrival() -> None:
    expired: list[Item] = []
    patience: Patience[Item] = Patience(limit_s=10.0)
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
    patience: Patience[Item] = Patience(limit_s=10.0)
    item = Item(expired)
    patience.add(item, now=0.0)
    patience.discard(item)
    patience.discard(item)
    patience.expire(now=inf)
    assert expired == []
    assert len(patience) == 0


def test_the_oldest_can_be_made_to_go() -> None:
    expired: list[Item] = []
    patience: Patience[Item] = Patience(limit_s=10.0)
    items = [Item(expired) for _ in range(3)]
    for item in items:
        patience.add(item, now=0.0)
    patience.expire_oldest()
    assert expired == items[:1]
    assert list(patience) == items[1:]


def test_a_sweep_ends_heads_and_leavers_each_after_their_own_time() -> None:
    now = 0.0
    expired: list[Item] = []
    roster = Roster(Limits(head_timeout_s=10.0, close_timeout_s=2.0), lambda: now)
    head, leaver = Item(expired), Item(expired)
    roster.heads.add(head, now)
    roster.leaving.add(leaver, now)
    now = 2.0
    roster.sweep()
    assert expired == [leaver]
    now = 10.0
    roster.sweep()
    assert expired == [leaver, head]


def test_when_thousands_leave_at_once_others_have_their_turn_in_between() -> None:
    class Leaver:
        peer = ("127.0.0.1", 1)

        def departed(self) -> None:
            told.append(self)

    told: list[Leaver] = []
    told_by_turn: list[int] = [0]

    async def main() -> None:
        roster = Roster(Limits(), lambda: 0.0)
        leavers: list[Any] = [Leaver() for _ in range(3 * DEPARTURES)]
        for leaver in leavers:
            roster.join(leaver)
        for leaver in leavers:
            roster.depart(leaver)
        while roster.live:
            await asyncio.sleep(0)
            if len(told) > told_by_turn[-1]:
                told_by_turn.append(len(told))
        assert (told, roster.empty.is_set()) == (leavers, True)

    asyncio.run(main())
    assert told_by_turn == [0, DEPARTURES, 2 * DEPARTURES, 3 * DEPARTURES]


class Somebody:
    def __init__(self, address: str) -> None:
        self.peer = (address, 1)


def test_who_is_there_is_counted_by_address_and_who_leaves_twice_only_once() -> None:
    roster = Roster(Limits(), lambda: 0.0)
    first, second = (cast(Any, Somebody("203.0.113.7")) for _ in range(2))
    for one in (first, second, second):
        roster.join(one)
    assert roster.addresses.of("203.0.113.7") == 2
    for _ in range(2):
        roster.leave(first)
    assert roster.addresses.of("203.0.113.7") == 1
    roster.leave(second)
    assert len(roster.addresses) == 0


def test_it_is_crowded_while_more_come_to_leave_than_are_seen_off() -> None:
    class Leaver:
        peer = ("127.0.0.1", 1)

        def departed(self) -> None: ...

    crowded: list[bool] = []

    async def main() -> None:
        roster = Roster(Limits(), lambda: 0.0)
        some: list[Any] = [Leaver() for _ in range(9 * DEPARTURES)]
        for leaver in some:
            roster.join(leaver)
        for arriving in (4, 4, 1, 0):
            for _ in range(arriving * DEPARTURES):
                roster.depart(some.pop())
            roster._see_off()
            crowded.append(roster.is_crowded)
        while roster.live:  # noqa: ASYNC110
            await asyncio.sleep(0)
        crowded.append(roster.is_crowded)

    asyncio.run(main())
    assert crowded == [True, True, True, False, False]


def test_the_pulse_of_thousands_is_felt_a_few_a_turn_and_each_once_a_round() -> None:
    class Silent:
        peer = ("127.0.0.1", 1)

        def check_pulse(self, now: float) -> None:
            felt.append(self)

    felt: list[Silent] = []
    felt_by_turn: list[int] = []

    async def main() -> None:
        roster = Roster(Limits(), lambda: 0.0)
        members: list[Any] = [Silent() for _ in range(2 * PULSES + 1)]
        for member in members:
            roster.join(member)
        roster.sweep()
        while not felt_by_turn or felt_by_turn[-1] < len(members):
            felt_by_turn.append(len(felt))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert set(felt) == set(members)

    asyncio.run(main())
    assert felt_by_turn == [PULSES, 2 * PULSES, 2 * PULSES + 1]
    assert len(felt) == 2 * PULSES + 1
