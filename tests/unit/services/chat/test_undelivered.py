"""Undelivered messages, looked up for many users at once."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from dragoman.archive import Archive, ArchiveAway, Status, Stored
from dragoman.services.chat.undelivered import UndeliveredLookup
from dragoman.services.loops import Tasks

PAGE = 100


class Rows:
    """An archive that counts how often it is asked, and answers when it is told to."""

    def __init__(self, *receivers: int) -> None:
        self.rows = {to: [_row(to, number) for number in range(1, 4)] for to in receivers}
        self.pages = list[tuple[int, int]]()
        self.questions = list[list[int]]()
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.away = False

    async def undelivered(self, user: int, after: int, limit: int) -> list[Stored]:
        self.pages.append((user, after))
        await self._answer()
        return [row for row in self.rows.get(user, []) if row.id > after][:limit]

    async def undelivered_users(self, users: Sequence[int], saved_before_ms: int) -> set[int]:
        self.questions.append(list(users))
        await self._answer()
        return {user for user in users if any(row.saved_ms < saved_before_ms for row in self.rows.get(user, []))}

    async def _answer(self) -> None:
        self.asked.set()
        await self.go_on.wait()
        if self.away:
            raise ArchiveAway("The database is away.")


def _row(to: int, number: int) -> Stored:
    id = to * 10 + number
    return Stored(id, 1, id, 1, to, "TEXT", "hi", f"c{id}", Status.SAVED, 5, 6)


class House:
    def __init__(self, *receivers: int) -> None:
        self.rows, self.tasks = Rows(*receivers), Tasks()
        self.lookup = UndeliveredLookup(cast(Archive, self.rows), self.tasks)

    async def all_come(self, *users: int) -> list[list[int]]:
        """At the same time; the ids that each of them finds."""
        found = await asyncio.gather(*(self.lookup.undelivered(user, 0, PAGE) for user in users))
        return [[row.id for row in rows] for rows in found]


def test_one_user_is_looked_up_at_once() -> None:
    async def main() -> None:
        house = House(7)
        assert await house.all_come(7) == [[71, 72, 73]]
        assert house.rows.pages == [(7, 0)]
        assert house.rows.questions == []

    asyncio.run(main())


def test_of_many_users_only_those_with_undelivered_messages_are_looked_up() -> None:
    async def main() -> None:
        house = House(7, 9)
        assert await house.all_come(6, 7, 8, 9) == [[], [71, 72, 73], [], [91, 92, 93]]
        assert house.rows.questions == [[6, 7, 8, 9]]
        assert sorted(house.rows.pages) == [(7, 0), (9, 0)]

    asyncio.run(main())


def test_user_that_connects_during_a_query_is_in_the_next_query() -> None:
    """What was saved meanwhile is found: nobody gets an answer to a question from before it came."""

    async def main() -> None:
        house = House()
        house.rows.go_on.clear()
        first = asyncio.ensure_future(house.all_come(5, 6))
        await house.rows.asked.wait()
        house.rows.rows[7] = [_row(7, 1)]
        later = asyncio.ensure_future(house.all_come(7, 8))
        house.rows.go_on.set()
        assert await first == [[], []]
        assert await later == [[71], []]
        assert house.rows.questions == [[5, 6], [7, 8]]

    asyncio.run(main())


def test_a_further_page_is_fetched_without_a_question() -> None:
    async def main() -> None:
        house = House(7)
        assert [row.id for row in await house.lookup.undelivered(7, 71, PAGE)] == [72, 73]
        assert house.rows.questions == []

    asyncio.run(main())


def test_every_caller_gets_the_error_of_the_database_and_can_ask_again() -> None:
    async def main() -> None:
        house = House(7)
        house.rows.away = True
        for asked in await asyncio.gather(
            *(house.lookup.undelivered(user, 0, PAGE) for user in (6, 7)), return_exceptions=True
        ):
            assert isinstance(asked, ArchiveAway)
        house.rows.away = False
        assert await house.all_come(6, 7) == [[], [71, 72, 73]]

    asyncio.run(main())


def test_cancelled_caller_does_not_affect_the_others() -> None:
    async def main() -> None:
        house = House(7)
        house.rows.go_on.clear()
        gone, waits = (asyncio.ensure_future(house.lookup.undelivered(user, 0, PAGE)) for user in (6, 7))
        await house.rows.asked.wait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        house.rows.go_on.set()
        assert [row.id for row in await waits] == [71, 72, 73]

    asyncio.run(main())
