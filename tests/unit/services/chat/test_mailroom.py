"""What waits for whom, asked for many at once."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from dragoman.archive import Archive, ArchiveAway, Status, Stored
from dragoman.services.chat.mailroom import Mailroom
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
        self.room = Mailroom(cast(Archive, self.rows), self.tasks)

    async def all_come(self, *users: int) -> list[list[int]]:
        """At the same time; the ids that each of them finds."""
        found = await asyncio.gather(*(self.room.undelivered(user, 0, PAGE) for user in users))
        return [[row.id for row in rows] for rows in found]


def test_whoever_comes_alone_is_looked_for_at_once() -> None:
    async def main() -> None:
        house = House(7)
        assert await house.all_come(7) == [[71, 72, 73]]
        assert house.rows.pages == [(7, 0)]
        assert house.rows.questions == []

    asyncio.run(main())


def test_of_many_who_come_together_only_those_are_looked_for_for_whom_something_waits() -> None:
    async def main() -> None:
        house = House(7, 9)
        assert await house.all_come(6, 7, 8, 9) == [[], [71, 72, 73], [], [91, 92, 93]]
        assert house.rows.questions == [[6, 7, 8, 9]]
        assert sorted(house.rows.pages) == [(7, 0), (9, 0)]

    asyncio.run(main())


def test_who_comes_while_the_database_answers_is_asked_about_after_that() -> None:
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
        assert [row.id for row in await house.room.undelivered(7, 71, PAGE)] == [72, 73]
        assert house.rows.questions == []

    asyncio.run(main())


def test_when_the_database_is_away_everybody_who_asked_hears_of_it_and_may_ask_again() -> None:
    async def main() -> None:
        house = House(7)
        house.rows.away = True
        for asked in await asyncio.gather(
            *(house.room.undelivered(user, 0, PAGE) for user in (6, 7)), return_exceptions=True
        ):
            assert isinstance(asked, ArchiveAway)
        house.rows.away = False
        assert await house.all_come(6, 7) == [[], [71, 72, 73]]

    asyncio.run(main())


def test_who_is_gone_before_the_answer_costs_the_others_nothing() -> None:
    async def main() -> None:
        house = House(7)
        house.rows.go_on.clear()
        gone, waits = (asyncio.ensure_future(house.room.undelivered(user, 0, PAGE)) for user in (6, 7))
        await house.rows.asked.wait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        house.rows.go_on.set()
        assert [row.id for row in await waits] == [71, 72, 73]

    asyncio.run(main())
