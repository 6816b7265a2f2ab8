"""The ledger of a chat: what clients were promised and what arrived, recorded by them, compared with the database.

    ledger = ChatLedger()                   # clients record: sent, accepted, saved, failed, arrived, acknowledged …
    assert ledger.check(rows, dead) == []   # after the run: every broken promise, one sentence each
    ledger = ledger.next()                  # the next phase of the same run, judged by itself

An event of a message is recorded in the ledger of the phase in which it was sent: an answer may come a phase too late.

Promises (one function each below, in this order): an accepted message is a row, a dead letter that its sender was
notified of, or lost within the durability class of Redis; a saved one is a row; no duplicates; every row was sent by a
client; conversations have no gaps; every receiver gets the messages of a sender in their order; every row arrives; an
acknowledged message is not sent again; every receipt and every failure is true; at most one `saved` for each request,
after its `accepted`, with a `ts` that does not go back.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

ACK_GRACE_S = 3.0


class Row(Protocol):
    """A message as the database has it."""

    @property
    def id(self) -> int: ...
    @property
    def conversation(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def from_user(self) -> int: ...
    @property
    def to_user(self) -> int: ...
    @property
    def client_msg_id(self) -> str: ...
    @property
    def body(self) -> str: ...


class Name(NamedTuple):
    """The identity of a message."""

    sender: int
    client_msg_id: str


class Answer(StrEnum):
    ACCEPTED = "accepted"
    SAVED = "saved"
    ERROR = "error"


@dataclass(slots=True)
class Answers:
    """The frames about one message on the latest connection of its sender.

    The server may send `saved` once more than the connection sent requests if an earlier connection sent one: that
    connection may have broken before the frame was read. A request that was answered by an ERROR gets no `saved`.
    """

    connection: int = 0
    requests: int = 0
    errors: int = 0
    saved: int = 0
    sent_before: bool = False  # on an earlier connection
    ts: int = 0  # the highest of an answer, on any connection
    violations: list[str] = field(default_factory=list)

    def requested(self, connection: int) -> None:
        self._use(connection)
        self.requests += 1

    def answered(self, connection: int, answer: Answer, ts: int) -> None:
        self._use(connection)
        open_requests = max(self.requests - self.errors, 0) + self.sent_before - self.saved
        if answer is Answer.ERROR:
            self.errors += 1
            return
        if ts < self.ts:
            self.violations.append(f"ts went back: {answer} has {ts}, an earlier answer {self.ts}")
        self.ts = max(self.ts, ts)
        if answer is Answer.ACCEPTED and self.saved and open_requests <= 0:
            self.violations.append("accepted after saved: no request was open")
        elif answer is Answer.SAVED:
            self.saved += 1
            if open_requests <= 0:
                self.violations.append(f"saved twice: {self.saved} saved, {self.requests} requests")

    def _use(self, connection: int) -> None:
        if connection != self.connection:
            self.sent_before = self.sent_before or self.requests > 0
            self.connection, self.requests, self.errors, self.saved = connection, 0, 0, 0


@dataclass(slots=True)
class Entry:
    """One message, as its sender knows it."""

    name: Name
    number: int  # in the order of its sender, from 1
    to: int
    body: str
    sent_at: float = 0.0
    accepted_at: float | None = None
    saved_at: float | None = None
    ids: list[int] = field(default_factory=list)  # every serverMsgId that its sender got, the last one counts
    failed: str | None = None
    receipts: set[str] = field(default_factory=set)
    answers: Answers = field(default_factory=Answers)

    @property
    def promised_at(self) -> float | None:
        """When it was first confirmed to its sender: as accepted, or as saved if that came first."""
        return self.saved_at if self.accepted_at is None else self.accepted_at


@dataclass(frozen=True, slots=True)
class Arrival:
    name: Name
    id: int
    at: float


Tolerated = Callable[[Entry], bool]
Order = Literal["sent", "accepted"]


def nothing(entry: Entry) -> bool:
    return False


class ChatLedger:
    def __init__(self, before: "ChatLedger | None" = None) -> None:
        self.entries: dict[Name, Entry] = {}
        self.arrivals: dict[int, list[Arrival]] = defaultdict(list)  # by receiver, duplicates included
        self.acknowledged_at: dict[tuple[int, int], float] = {}  # (receiver, serverMsgId)
        self.connected: list[tuple[int, float]] = []  # users, and when each was connected
        # Acknowledged, and the connection broke before the server can have read that.
        self.doubtful: set[tuple[int, int]] = set()
        self.again: list[tuple[Arrival, int, float]] = []  # of an earlier phase: message, receiver, when acknowledged
        self.lost: list[Entry] = []  # by `check`: accepted, and lost within the durability class
        self._numbers: Counter[int] = Counter() if before is None else before._numbers
        # Shared by all phases of a run: the ledger of each message.
        self._home: dict[Name, ChatLedger] = {} if before is None else before._home
        self._home_of_id: dict[tuple[int, int], ChatLedger] = {} if before is None else before._home_of_id

    def next(self) -> "ChatLedger":
        return ChatLedger(self)

    # -- written by senders ------------------------------------------------------------------------

    def sent(self, sender: int, client_msg_id: str, to: int, body: str) -> None:
        self._numbers[sender] += 1
        name = Name(sender, client_msg_id)
        assert name not in self._home, f"{name} is sent for the second time as something new"
        self.entries[name] = Entry(name, self._numbers[sender], to, body, sent_at=time.monotonic())
        self._home[name] = self

    def accepted(self, sender: int, client_msg_id: str, id: int | None) -> None:
        entry = self._entry(sender, client_msg_id)
        entry.accepted_at = entry.accepted_at or time.monotonic()
        _note_id(entry, id)

    def saved(self, sender: int, client_msg_id: str, id: int | None) -> None:
        entry = self._entry(sender, client_msg_id)
        entry.saved_at = entry.saved_at or time.monotonic()
        _note_id(entry, id)

    def failed(self, sender: int, client_msg_id: str, reason: str) -> None:
        self._entry(sender, client_msg_id).failed = reason

    def receipt(self, sender: int, client_msg_id: str, what: str) -> None:
        """Delivered or read, as the sender was notified."""
        self._entry(sender, client_msg_id).receipts.add(what)

    def requested(self, sender: int, client_msg_id: str, connection: int) -> None:
        """A SINGLE_CHAT is written to this connection of its sender; connections are numbered."""
        self._entry(sender, client_msg_id).answers.requested(connection)

    def answered(self, sender: int, client_msg_id: str, connection: int, answer: Answer, ts: int) -> None:
        """A frame about it is read from this connection, also one that the client ignores."""
        self._entry(sender, client_msg_id).answers.answered(connection, answer, ts)

    def _entry(self, sender: int, client_msg_id: str) -> Entry:
        name = Name(sender, client_msg_id)
        return self._home[name].entries[name]

    # -- written by receivers ----------------------------------------------------------------------

    def arrived(self, receiver: int, sender: int, client_msg_id: str, id: int) -> None:
        """Every time it arrives, also as a duplicate."""
        one = Arrival(Name(sender, client_msg_id), id, time.monotonic())
        home = self._home.get(one.name, self)
        home.arrivals[receiver].append(one)
        self._home_of_id[receiver, id] = home
        if (receiver, id) in home.doubtful:
            # It was not known, as it turns out, and is acknowledged once more by the SDK.
            home.doubtful.discard((receiver, id))
            home.acknowledged_at[receiver, id] = one.at
        elif home is not self and (receiver, id) in home.acknowledged_at:
            self.again.append((one, receiver, home.acknowledged_at[receiver, id]))

    def acknowledged(self, receiver: int, id: int) -> None:
        home = self._home_of_id.get((receiver, id), self)
        home.acknowledged_at.setdefault((receiver, id), time.monotonic())

    def connection_lost(self, receiver: int, last_received_at: float, grace_s: float = ACK_GRACE_S) -> None:
        """The server may not have read acknowledgements that were sent after its last frame."""
        for home in {id(one): one for one in (self, *self._home.values())}.values():
            home.doubtful |= {
                key
                for key, at in home.acknowledged_at.items()
                if key[0] == receiver and at >= last_received_at - grace_s
            }

    # -- counted -----------------------------------------------------------------------------------

    def first_sights(self, receiver: int) -> list[Arrival]:
        """Without duplicates, in the order of coming."""
        first: dict[int, Arrival] = {}
        for one in self.arrivals[receiver]:
            first.setdefault(one.id, one)
        return list(first.values())

    @property
    def promised(self) -> int:
        """Messages whose senders were promised something: accepted, or saved where that is the only word."""
        return self.count(lambda entry: entry.promised_at is not None)

    @property
    def duplicates(self) -> int:
        """Repeated arrivals: allowed until the message is acknowledged, suspicious if there are many."""
        return sum(len(all) - len(self.first_sights(receiver)) for receiver, all in list(self.arrivals.items()))

    def count(self, what: Callable[[Entry], bool]) -> int:
        return sum(map(what, self.entries.values()))

    def kept(self, rows: Iterable[Row]) -> int:
        """Confirmed messages that are rows, or whose senders were notified that they failed."""
        names = {Name(row.from_user, row.client_msg_id) for row in rows}
        return self.count(lambda one: one.promised_at is not None and (one.name in names or one.failed is not None))

    def summary(self) -> str:
        counts = {
            "sent": len(self.entries),
            "accepted": self.count(lambda entry: entry.accepted_at is not None),
            "saved": self.count(lambda entry: entry.saved_at is not None),
            "failed": self.count(lambda entry: entry.failed is not None),
            "arrived": sum(len(self.first_sights(receiver)) for receiver in list(self.arrivals)),
            "duplicates": self.duplicates,
            "lost": len(self.lost),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items())

    # -- judged ------------------------------------------------------------------------------------

    def check(
        self,
        rows: Sequence[Row],
        dead_letters: Collection[Name] = (),
        *,
        tolerated: Tolerated = nothing,
        order: Order = "sent",
        all_arrived: bool = True,
        all_answered: bool = True,
        ack_grace_s: float = ACK_GRACE_S,
    ) -> list[str]:
        """Every broken promise.

        `tolerated` says which accepted messages may be lost: those that Redis had not made durable when it was killed,
        by the durability the instance reported. They are counted in `lost`.
        `order`: senders that send on without waiting for *accepted* are outstanding the order of acceptance only.
        `all_arrived`: all receivers are online at the end and had time. `all_answered`: senders, too, so every message
        they sent must have come to an end they know of.
        `ack_grace_s`: an instance that is killed takes acknowledgements with it that it had just read; its messages
        come again when others have taken over.
        """
        dead = frozenset(dead_letters)
        rows = [row for row in rows if self._home.get(Name(row.from_user, row.client_msg_id), self) is self]
        by_name = {Name(row.from_user, row.client_msg_id): row for row in rows}
        self.lost = [entry for entry in self.entries.values() if _is_lost(entry, by_name, dead) and tolerated(entry)]
        lost = {entry.name for entry in self.lost}
        return [
            *self._accepted_are_kept(by_name, dead, lost),
            *self._saved_are_rows(by_name),
            *_nothing_twice(rows),
            *self._rows_were_sent(rows),
            *_conversations_have_no_gaps(rows),
            *self._order_is_kept(order),
            *self._all_arrived(rows if all_arrived else ()),
            *self._one_id_each(),
            *self._acknowledged_stay_so(ack_grace_s),
            *self._receipts_are_true(),
            *self._failures_are_true(by_name, dead),
            *self._answers_are_in_order(),
            *(self._all_answered(lost) if all_answered else ()),
        ]

    def _accepted_are_kept(
        self, rows: dict[Name, Row], dead: Collection[Name], lost: Collection[Name]
    ) -> Iterator[str]:
        for entry in self.entries.values():
            if entry.accepted_at is None or entry.name in rows or entry.name in lost:
                continue
            if entry.name not in dead and entry.failed != "save_failed":
                yield f"lost: {_who(entry)} was accepted and is no row"
            elif entry.name in dead and entry.failed is None:
                yield f"not notified: {_who(entry)} is a dead letter, and its sender does not know"

    def _saved_are_rows(self, rows: dict[Name, Row]) -> Iterator[str]:
        for entry in self.entries.values():
            row = rows.get(entry.name)
            if entry.saved_at is not None and row is None:
                yield f"false saved: {_who(entry)} is no row"
            elif entry.saved_at is not None and row is not None and entry.ids and entry.ids[-1] != row.id:
                yield f"wrong id: {_who(entry)} was confirmed as {entry.ids[-1]}, the row is {row.id}"

    def _rows_were_sent(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            entry = self.entries.get(Name(row.from_user, row.client_msg_id))
            if entry is None:
                yield f"unknown origin: row {row.id} of {row.from_user} was sent by no client"
            elif (entry.to, entry.body) != (row.to_user, row.body):
                yield f"altered: {_who(entry)} is a row with another receiver or body"

    def _order_is_kept(self, order: Order) -> Iterator[str]:
        for receiver in list(self.arrivals):
            last: dict[int, Arrival] = {}
            for one in self.first_sights(receiver):
                before = last.get(one.name.sender)
                if self._was_accepted_twice(one.name):
                    continue  # its sender sent it again: it comes later than it was sent, and cannot but
                if before is not None and self._is_before(one, before, order):
                    by = f"{one.at - before.at:.2f} s after {_named(before)}"
                    yield f"reorder: {_named(one)} came to {receiver} {by}"
                else:
                    last[one.name.sender] = one

    def _is_before(self, one: Arrival, other: Arrival, order: Order) -> bool:
        if one.id < other.id:
            return True
        if order == "accepted" or one.name not in self.entries or other.name not in self.entries:
            return False
        return self.entries[one.name].number < self.entries[other.name].number

    def _all_arrived(self, rows: Iterable[Row]) -> Iterator[str]:
        seen = {(receiver, one.id) for receiver, all in self.arrivals.items() for one in all}
        for row in rows:
            if (row.to_user, row.id) not in seen:
                yield f"undelivered: row {row.id} of {row.from_user} never came to {row.to_user}"

    def _one_id_each(self) -> Iterator[str]:
        for receiver in list(self.arrivals):
            ids: dict[Name, int] = {}
            for one in self.first_sights(receiver):
                if ids.setdefault(one.name, one.id) != one.id and not self._was_accepted_twice(one.name):
                    yield f"duplicate: {one.name} came to {receiver} as {ids[one.name]} and as {one.id}"

    def _was_accepted_twice(self, name: Name) -> bool:
        """It was accepted under two ids: the first time, Redis lost_spans it."""
        return name in self.entries and len(self.entries[name].ids) > 1

    def _acknowledged_stay_so(self, grace_s: float) -> Iterator[str]:
        here = (
            (one, receiver, self.acknowledged_at.get((receiver, one.id), one.at))
            for receiver, all in self.arrivals.items()
            for one in all
        )
        for one, receiver, acknowledged_at in (*here, *self.again):
            late_s = one.at - acknowledged_at
            if late_s > grace_s:
                yield f"sent again: {_named(one)} came to {receiver} {late_s:.1f} s after it was acknowledged"

    def _receipts_are_true(self) -> Iterator[str]:
        for entry in self.entries.values():
            if entry.receipts and not any((entry.to, id) in self.acknowledged_at for id in entry.ids):
                yield f"false receipt: {_who(entry)} is {'/'.join(entry.receipts)}, {entry.to} never confirmed it"

    def _failures_are_true(self, rows: dict[Name, Row], dead: Collection[Name]) -> Iterator[str]:
        for entry in self.entries.values():
            if entry.failed is not None and entry.saved_at is None and entry.name in rows and entry.name not in dead:
                yield f"false failure: {_who(entry)} is a row, its sender got {entry.failed}"

    def _answers_are_in_order(self) -> Iterator[str]:
        for entry in self.entries.values():
            for violation in entry.answers.violations:
                kind, _, details = violation.partition(": ")
                yield f"{kind}: {_who(entry)}: {details}"

    def _all_answered(self, lost: Collection[Name]) -> Iterator[str]:
        for entry in self.entries.values():
            if entry.saved_at is None and entry.failed is None and entry.name not in lost:
                yield f"unanswered: {_who(entry)} was neither saved nor refused"


def _nothing_twice(rows: Iterable[Row]) -> Iterator[str]:
    names = Counter(Name(row.from_user, row.client_msg_id) for row in rows)
    ids = Counter(row.id for row in rows)
    yield from (f"duplicate: {name} is {count} rows" for name, count in names.items() if count > 1)
    yield from (f"duplicate: id {id} is {count} rows" for id, count in ids.items() if count > 1)


def _conversations_have_no_gaps(rows: Iterable[Row]) -> Iterator[str]:
    numbers: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        numbers[row.conversation].append(row.seq)
    for conversation, seqs in numbers.items():
        if sorted(seqs) != list(range(min(seqs), min(seqs) + len(seqs))):
            yield f"gap: conversation {conversation} has seqs {sorted(seqs)[:20]}"


def _is_lost(entry: Entry, rows: dict[Name, Row], dead: Collection[Name]) -> bool:
    gone = entry.name not in rows and entry.name not in dead
    return gone and entry.accepted_at is not None and entry.saved_at is None and entry.failed is None


def _note_id(entry: Entry, id: int | None) -> None:
    if id is not None and (not entry.ids or entry.ids[-1] != id):
        entry.ids.append(id)


def _who(entry: Entry) -> str:
    return f"{entry.name.client_msg_id} of {entry.name.sender}"


def _named(one: Arrival) -> str:
    return f"{one.name.client_msg_id} of {one.name.sender} (id {one.id})"
