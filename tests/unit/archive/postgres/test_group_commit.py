import asyncio
from collections.abc import Callable, Sequence

import pytest

from dragoman.archive import ArchiveAway, BadRow, NewMessage, SaveOutcome, SaveVerdict, Status, Stored
from dragoman.archive.postgres.group_commit import MAX_GROUP, Behind, GroupCommit, Left
from support.tables import for_each

TIMEOUT_S = 60.0


class Database:
    """Each transaction takes until it is let go on. Users whose conversations are held, or new, are named."""

    def __init__(self) -> None:
        self.transactions: list[list[int]] = []
        self.saved: list[int] = []
        self.going, self.making = asyncio.Event(), asyncio.Event()
        self.looked = asyncio.Event()
        self.away = False
        self.held: set[int] = set()
        self.new: set[int] = set()

    async def save_free(self, rows: Sequence[NewMessage], on_begin: Callable[[], None]) -> list[SaveOutcome | Left]:
        await self.going.wait()
        self.looked.set()
        lefts, behind = [self._left(row) for row in rows], Behind()
        for place, row in enumerate(rows):
            if row in behind:
                lefts[place] = Left.LOCKED
            if lefts[place]:
                behind.add(row)
        outcomes = self._write(rows, lefts)
        return [left or outcome for left, outcome in zip(lefts, outcomes, strict=True)]

    async def save(self, rows: Sequence[NewMessage], on_begin: Callable[[], None]) -> list[SaveOutcome]:
        await self.making.wait()
        self.new -= {row.to_user for row in rows}
        return self._write(rows, [None] * len(rows))

    def _left(self, row: NewMessage) -> Left | None:
        return Left.LOCKED if row.to_user in self.held else Left.NEW if row.to_user in self.new else None

    def _write(self, rows: Sequence[NewMessage], lefts: Sequence[Left | None]) -> list[SaveOutcome]:
        self.transactions.append([row.id for row in rows])
        if self.away:
            raise ArchiveAway("gone")
        if any(row.body == "bad" for row in rows):
            raise BadRow("bad")
        self.saved += [row.id for row, left in zip(rows, lefts, strict=True) if left is None]
        return [SaveOutcome(SaveVerdict.SAVED, _stored(row)) for row in rows]

    async def looks(self) -> None:
        """Until it was asked once more."""
        self.looked.clear()
        await self.looked.wait()


def _said(id: int, body: str = "hello", *, sender: int = 1, to: int = 2) -> NewMessage:
    return NewMessage(id, str(id), sender, to, "TEXT", body, 5)


def _stored(row: NewMessage) -> Stored:
    return Stored(row.id, 7, row.id, 1, 2, "TEXT", row.body, row.client_msg_id, Status.SAVED, 5, 6)


def _group_commit(database: Database, timeout_s: float = TIMEOUT_S) -> GroupCommit:
    return GroupCommit(database.save_free, database.save, timeout_s)


async def _begun(group_commit: GroupCommit, *rows: NewMessage) -> list[asyncio.Task[SaveOutcome]]:
    tasks = [asyncio.create_task(group_commit.save(row)) for row in rows]
    await asyncio.sleep(0)
    return tasks


async def test_calls_during_a_transaction_share_the_next_one_in_order() -> None:
    database = Database()
    group_commit = _group_commit(database)
    first = await _begun(group_commit, _said(1))
    await asyncio.sleep(0)  # its transaction has begun
    others = await _begun(group_commit, _said(2), _said(3), _said(4))
    database.going.set()
    outcomes = await asyncio.gather(*first, *others)
    assert database.transactions == [[1], [2, 3, 4]]
    assert [outcome.message.id for outcome in outcomes] == [1, 2, 3, 4]


async def test_a_transaction_has_a_bound() -> None:
    database = Database()
    group_commit = _group_commit(database)
    tasks = await _begun(group_commit, *(_said(number) for number in range(2 * MAX_GROUP + 1)))
    database.going.set()
    await asyncio.gather(*tasks)
    assert [len(one) for one in database.transactions] == [MAX_GROUP, MAX_GROUP, 1]


async def test_one_that_can_never_be_written_fails_alone() -> None:
    database = Database()
    group_commit = _group_commit(database)
    tasks = await _begun(group_commit, _said(1), _said(2, "bad"), _said(3))
    database.going.set()
    good, bad, later = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(bad, BadRow)
    assert isinstance(good, SaveOutcome)
    assert isinstance(later, SaveOutcome)
    assert database.transactions == [[1, 2, 3], [1], [2], [3]]


async def test_all_calls_of_a_transaction_fail_in_an_outage_and_the_next_is_tried() -> None:
    database = Database()
    group_commit = _group_commit(database)
    tasks = await _begun(group_commit, _said(1), _said(2))
    database.away = True
    database.going.set()
    assert all(isinstance(one, ArchiveAway) for one in await asyncio.gather(*tasks, return_exceptions=True))
    database.away = False
    assert (await group_commit.save(_said(3))).verdict is SaveVerdict.SAVED


async def test_cancelled_caller_does_not_affect_others_and_close_waits_for_open_calls() -> None:
    database = Database()
    group_commit = _group_commit(database)
    leaving, staying = await _begun(group_commit, _said(1), _said(2))
    leaving.cancel()
    database.going.set()
    await group_commit.close()
    assert (await staying).message.id == 2
    with pytest.raises(asyncio.CancelledError):
        await leaving


# -- what another writer has, and what is new ----------------------------------------------------


async def test_row_locked_by_another_writer_is_retried_without_blocking_other_calls() -> None:
    database = Database()
    group_commit = _group_commit(database)
    database.going.set()
    database.held = {9}
    (waiting,) = await _begun(group_commit, _said(1, sender=1, to=9))
    assert (await group_commit.save(_said(2, sender=3, to=4))).message.id == 2
    await database.looks()
    assert not waiting.done()
    database.held = set()
    assert (await waiting).message.id == 1


async def test_call_waiting_for_another_writer_uses_no_batch_slot() -> None:
    database = Database()
    group_commit = _group_commit(database)
    database.held = {9}
    tasks = await _begun(group_commit, *(_said(number, sender=100 + number, to=9) for number in range(MAX_GROUP)))
    others = await _begun(group_commit, *(_said(1000 + number, sender=3, to=4) for number in range(MAX_GROUP)))
    database.going.set()
    await asyncio.gather(*others)
    assert not any(task.done() for task in tasks)
    database.held = set()
    assert [(await task).message.id for task in tasks] == list(range(MAX_GROUP))


async def test_call_that_waits_too_long_for_another_writer_fails_and_the_next_is_tried() -> None:
    database = Database()
    group_commit = _group_commit(database, timeout_s=0.0)
    database.going.set()
    database.held = {9}
    with pytest.raises(ArchiveAway, match="Another writer"):
        await group_commit.save(_said(1, to=9))
    assert (await group_commit.save(_said(2))).message.id == 2


async def test_new_conversations_are_created_apart_and_senders_keep_their_order() -> None:
    database = Database()
    group_commit = _group_commit(database)
    database.going.set()
    database.new = {9}
    tasks = await _begun(group_commit, _said(1, sender=1, to=9))
    await database.looks()
    tasks += await _begun(group_commit, _said(2, sender=1, to=2), _said(3, sender=9, to=1), _said(4, sender=3, to=4))
    await tasks[3]
    assert database.saved == [4]
    database.making.set()
    await asyncio.gather(*tasks)
    assert database.saved == [4, 1, 2, 3]


async def test_one_that_can_never_be_written_changes_no_order_of_what_waits() -> None:
    database = Database()
    group_commit = _group_commit(database)
    database.held = {9}
    tasks = await _begun(
        group_commit, _said(1, "bad", sender=5, to=6), _said(2, sender=1, to=9), _said(3, sender=1, to=2)
    )
    database.going.set()
    with pytest.raises(BadRow):
        await tasks[0]
    await database.looks()
    database.held = set()
    await asyncio.gather(*tasks[1:])
    assert database.saved == [2, 3]


async def test_closing_waits_for_what_is_new_and_for_what_is_behind_it() -> None:
    database = Database()
    group_commit = _group_commit(database)
    database.going.set()
    database.making.set()
    database.new = {9}
    tasks = await _begun(group_commit, _said(1, sender=1, to=9), _said(2, sender=8, to=9))
    await group_commit.close()
    assert database.saved == [1, 2]
    await asyncio.gather(*tasks)


@for_each([(1, 2), (2, 1), (1, 3)])
def test_message_of_the_same_conversation_or_sender_comes_after(sender: int, to: int) -> None:
    assert _said(1, sender=sender, to=to) in Behind([_said(1)])


@for_each([(3, 4), (3, 1), (3, 2), (2, 3)])
def test_message_of_another_conversation_and_sender_does_not_wait(sender: int, to: int) -> None:
    assert _said(1, sender=sender, to=to) not in Behind([_said(1)])


def test_nothing_comes_after_nothing() -> None:
    assert _said(1) not in Behind()
