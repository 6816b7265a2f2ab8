import asyncio
from collections.abc import Sequence

import pytest

from dragoman.archive import ArchiveAway, BadRow, NewMessage, Outcome, Status, Stored, Verdict
from dragoman.archive.postgres.together import MOST, Together


class Database:
    """Each transaction takes until it is let go on."""

    def __init__(self) -> None:
        self.transactions: list[list[int]] = []
        self.going = asyncio.Event()
        self.away = False

    async def save(self, rows: Sequence[NewMessage]) -> list[Outcome]:
        await self.going.wait()
        self.transactions.append([row.id for row in rows])
        if self.away:
            raise ArchiveAway("gone")
        if any(row.body == "bad" for row in rows):
            raise BadRow("bad")
        return [Outcome(Verdict.SAVED, _stored(row)) for row in rows]


def _said(id: int, body: str = "hello") -> NewMessage:
    return NewMessage(id, str(id), 1, 2, "TEXT", body, 5)


def _stored(row: NewMessage) -> Stored:
    return Stored(row.id, 7, row.id, 1, 2, "TEXT", row.body, row.client_msg_id, Status.SAVED, 5, 6)


async def _begun(together: Together, *rows: NewMessage) -> list[asyncio.Task[Outcome]]:
    tasks = [asyncio.create_task(together.save(row)) for row in rows]
    await asyncio.sleep(0)
    return tasks


async def test_what_comes_during_a_transaction_shares_the_next_one_in_its_order() -> None:
    database = Database()
    together = Together(database.save)
    first = await _begun(together, _said(1))
    await asyncio.sleep(0)  # its transaction has begun
    others = await _begun(together, _said(2), _said(3), _said(4))
    database.going.set()
    outcomes = await asyncio.gather(*first, *others)
    assert database.transactions == [[1], [2, 3, 4]]
    assert [outcome.message.id for outcome in outcomes] == [1, 2, 3, 4]


async def test_a_transaction_has_a_bound() -> None:
    database = Database()
    together = Together(database.save)
    tasks = await _begun(together, *(_said(number) for number in range(2 * MOST + 1)))
    database.going.set()
    await asyncio.gather(*tasks)
    assert [len(one) for one in database.transactions] == [MOST, MOST, 1]


async def test_one_that_can_never_be_written_fails_alone() -> None:
    database = Database()
    together = Together(database.save)
    tasks = await _begun(together, _said(1), _said(2, "bad"), _said(3))
    database.going.set()
    good, bad, later = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(bad, BadRow)
    assert isinstance(good, Outcome)
    assert isinstance(later, Outcome)
    assert database.transactions == [[1, 2, 3], [1], [2], [3]]


async def test_everybody_of_a_transaction_is_told_that_the_database_is_away_and_the_next_is_tried() -> None:
    database = Database()
    together = Together(database.save)
    tasks = await _begun(together, _said(1), _said(2))
    database.away = True
    database.going.set()
    assert all(isinstance(one, ArchiveAway) for one in await asyncio.gather(*tasks, return_exceptions=True))
    database.away = False
    assert (await together.save(_said(3))).verdict is Verdict.SAVED


async def test_who_leaves_early_costs_the_others_nothing_and_closing_waits_for_what_is_asked() -> None:
    database = Database()
    together = Together(database.save)
    leaving, staying = await _begun(together, _said(1), _said(2))
    leaving.cancel()
    database.going.set()
    await together.close()
    assert (await staying).message.id == 2
    with pytest.raises(asyncio.CancelledError):
        await leaving
