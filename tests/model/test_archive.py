"""Saving and receipts on both databases against a list and a few lines: statuses, numbers and cursors."""

import asyncio
from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.archive import Archive, NewMessage, Receipt, Status
from model.machines import check
from support.databases import ask

_ids = count(1)
_users = count(1000, 10)
SIDES = st.integers(0, 2)
STATUSES = st.sampled_from([Status.DELIVERED, Status.READ])


@dataclass
class Kept:
    id: int
    client: str
    sender: int
    receiver: int
    status: Status = Status.SAVED


@dataclass
class Talk:
    """One conversation: a message's seq is its place here. Cursors are [delivered, read] of each member."""

    messages: list[Kept] = field(default_factory=list)
    cursors: dict[int, list[int]] = field(default_factory=dict)

    def move_cursors(self, user: int) -> None:
        for which, wanted in enumerate((Status.DELIVERED, Status.READ)):
            open_seqs = [
                seq for seq, kept in enumerate(self.messages, 1) if kept.receiver == user and kept.status < wanted
            ]
            self.cursors[user][which] = min(open_seqs, default=len(self.messages) + 1) - 1


class Chatting(RuleBasedStateMachine):
    """Three users of this example alone, so three conversations."""

    def __init__(self, archive: Archive, url: str, runner: asyncio.Runner) -> None:
        super().__init__()
        self.archive, self.url, self.runner = archive, url, runner
        first = next(_users)
        self.users = [first, first + 1, first + 2]
        self.talks: dict[tuple[int, int], Talk] = {}
        self.kept: list[Kept] = []

    @rule(said=st.lists(st.tuples(SIDES, st.integers(1, 2), st.integers(0, 5)), min_size=1, max_size=6))
    def save(self, said: list[tuple[int, int, int]]) -> None:
        rows, expected = [], []
        for side, step, client in said:
            sender, receiver = self.users[side], self.users[(side + step) % 3]
            row = NewMessage(next(_ids), f"{client}", sender, receiver, "TEXT", "hello", 1)
            rows.append(row)
            expected.append(self.keep(row))
        outcomes = self.runner.run(self.archive.save(rows))
        told = [(outcome.verdict.value, outcome.message.id, outcome.message.seq) for outcome in outcomes]
        assert told == expected

    def keep(self, row: NewMessage) -> tuple[str, int, int]:
        for kept in self.kept:
            if (kept.sender, kept.client) == (row.from_user, row.client_msg_id):
                seq = self.talk(kept.sender, kept.receiver).messages.index(kept) + 1
                return ("exists" if kept.receiver == row.to_user else "mismatch"), kept.id, seq
        kept = Kept(row.id, row.client_msg_id, row.from_user, row.to_user)
        talk = self.talk(kept.sender, kept.receiver)
        talk.messages.append(kept)
        self.kept.append(kept)
        return "saved", row.id, len(talk.messages)

    def talk(self, one: int, other: int) -> Talk:
        return self.talks.setdefault((min(one, other), max(one, other)), Talk(cursors={one: [0, 0], other: [0, 0]}))

    @rule(given=st.lists(st.tuples(SIDES, STATUSES, st.lists(st.integers(0, 20), max_size=4)), min_size=1, max_size=4))
    def receipts(self, given: list[tuple[int, Status, list[int]]]) -> None:
        receipts, expected = [], []
        for side, status, places in given:
            ids = tuple(self.kept[place].id if place < len(self.kept) else -1 - place for place in places)
            receipts.append(Receipt(self.users[side], status, ids))
        moved: set[tuple[int, int, int]] = set()
        for receipt in receipts:
            expected.append(self.receive(receipt, moved))
        for low, high, user in moved:
            self.talks[low, high].move_cursors(user)
        for applied, (missing, not_allowed, changed) in zip(
            self.runner.run(self.archive.receipts(receipts)), expected, strict=True
        ):
            assert (list(applied.missing), list(applied.not_allowed)) == (missing, not_allowed)
            assert {message.id: message.status for message in applied.changed} == changed
            assert len(applied.changed) == len(changed)

    def receive(
        self, receipt: Receipt, moved: set[tuple[int, int, int]]
    ) -> tuple[list[int], list[int], dict[int, Status]]:
        missing: list[int] = []
        not_allowed: list[int] = []
        changed: dict[int, Status] = {}
        by_id = {kept.id: kept for kept in self.kept}
        for number in dict.fromkeys(receipt.ids):
            kept = by_id.get(number)
            if kept is None:
                missing.append(number)
                continue
            if kept.receiver != receipt.acker:
                not_allowed.append(number)
                continue
            messages = self.talk(kept.sender, kept.receiver).messages
            raised = [kept] if kept.status < receipt.status else []
            if receipt.status is Status.READ:
                raised += [
                    earlier
                    for earlier in messages[: messages.index(kept)]
                    if earlier.receiver == receipt.acker and earlier.status is Status.DELIVERED
                ]
            for message in raised:
                message.status = changed[message.id] = receipt.status
                moved.add((min(kept.sender, kept.receiver), max(kept.sender, kept.receiver), kept.receiver))
        return missing, not_allowed, changed

    @invariant()
    def the_database_holds_what_the_model_holds(self) -> None:
        low, high = self.users[0], self.users[-1]
        messages, cursors = self.runner.run(self.look(low, high))
        assert messages == sorted(
            (kept.id, seq, int(kept.status))
            for talk in self.talks.values()
            for seq, kept in enumerate(talk.messages, 1)
        )
        assert cursors == sorted(
            (pair[0], pair[1], user, *at) for pair, talk in self.talks.items() for user, at in talk.cursors.items()
        )
        for user in self.users:
            open_ids = [kept.id for kept in self.kept if kept.receiver == user and kept.status is Status.SAVED]
            found = self.runner.run(self.archive.undelivered(user, limit=1000))
            assert [message.id for message in found] == open_ids

    async def look(self, low: int, high: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """All in one question: a connection costs more than the answer."""
        rows = await ask(
            self.url,
            "SELECT 1, id, msg_seq, status, 0, 0 FROM message "
            f"WHERE from_user_id BETWEEN {low} AND {high} UNION ALL "
            "SELECT 2, low_user_id, high_user_id, user_id, delivered_seq, read_seq FROM member JOIN conversation "
            f"ON id = conversation_id WHERE user_id BETWEEN {low} AND {high}",
        )
        messages = [row[1:4] for row in sorted(rows) if row[0] == 1]
        cursors = [row[1:] for row in sorted(rows) if row[0] == 2]
        return messages, cursors


def test_the_archive_does_what_the_model_does(archive: Archive, sql_url: str, runner: asyncio.Runner) -> None:
    check(lambda: Chatting(archive, sql_url, runner), examples=50, steps=12)
