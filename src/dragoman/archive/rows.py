"""Rows of messages: their columns, what no database can hold, and rows that repeat.

Both databases refuse the same data, whatever they would take by themselves: a message that one of them cannot hold is
a dead letter on the other as well.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.archive.types import BadRow, NewMessage, SaveOutcome, SaveVerdict, Status, Stored

INT64_MAX = 2**63 - 1
# PostgreSQL refuses index entries of more than a third of a page.
_KEY_MAX_CHARS = 512

# In the order of the fields of `Stored`.
COLUMNS = (
    "id, conversation_id, msg_seq, from_user_id, to_user_id, msg_type, body, client_msg_id, status, "
    "created_ms, saved_ms, lang"
)

ClientKey = tuple[int, str]


def qualified(table: str) -> str:
    """COLUMNS of a table that has another name in its statement."""
    return ", ".join(f"{table}.{name}" for name in COLUMNS.split(", "))


def stored(row: Sequence[Any]) -> Stored:
    """A row of COLUMNS."""
    fields = (*row[:8], Status(row[8]), *row[9:])
    return Stored(*fields)


def saved(row: NewMessage, conversation: int, seq: int, now_ms: int) -> Stored:
    """A message as it is stored when it is saved."""
    about = (row.from_user, row.to_user, row.msg_type, row.body, row.client_msg_id)
    return Stored(row.id, conversation, seq, *about, Status.SAVED, row.created_ms, now_ms, row.lang)


def fits(number: int) -> bool:
    return -INT64_MAX - 1 <= number <= INT64_MAX


def fitting(numbers: Iterable[int]) -> list[int]:
    """Without what can be in no column, and each once."""
    return [number for number in dict.fromkeys(numbers) if fits(number)]


def storable(text: str) -> bool:
    """Whether there can be a row with this text."""
    try:
        check_key(text, "")
    except BadRow:
        return False
    return True


def check_text(text: str, what: str) -> None:
    if "\0" in text:
        raise BadRow(f"{what} holds a zero byte.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadRow(f"{what} holds half a surrogate pair.") from None


def check_key(text: str, what: str) -> None:
    """Text that stands in an index."""
    if len(text) > _KEY_MAX_CHARS:
        raise BadRow(f"{what} is longer than {_KEY_MAX_CHARS} characters.")
    check_text(text, what)


def check(row: NewMessage) -> None:
    if not (fits(row.id) and fits(row.from_user) and fits(row.to_user) and fits(row.created_ms)):
        raise BadRow(f"Message {row.id} holds a number of more than 64 bits.")
    if row.from_user == row.to_user:
        raise BadRow(f"Message {row.id} is from {row.from_user} to itself.")
    check_key(row.client_msg_id, "clientMsgId")
    check_key(row.msg_type, "msgType")
    check_key(row.lang, "lang")
    check_text(row.body, "body")


def pair(row: NewMessage) -> tuple[int, int]:
    """The two users of a conversation, the lower first."""
    one, other = row.from_user, row.to_user
    return (one, other) if one < other else (other, one)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one call. `firsts` holds each sender and clientMsgId once: the first wins."""

    rows: Sequence[NewMessage]
    firsts: list[NewMessage]

    @classmethod
    def of(cls, rows: Sequence[NewMessage]) -> "Batch":
        firsts: dict[ClientKey, NewMessage] = {}
        keys: dict[int, ClientKey] = {}
        for row in rows:
            check(row)
            key = (row.from_user, row.client_msg_id)
            if keys.setdefault(row.id, key) != key:
                raise BadRow(f"Message id {row.id} stands for two messages.")
            firsts.setdefault(key, row)
        return cls(rows, list(firsts.values()))

    def missing(self, there: Iterable[Stored]) -> list[NewMessage]:
        """What has to be written, when `there` is already."""
        ids = set()
        keys = set()
        for stored in there:
            ids.add(stored.id)
            keys.add((stored.from_user, stored.client_msg_id))
        if not ids:
            return self.firsts
        return [row for row in self.firsts if row.id not in ids and (row.from_user, row.client_msg_id) not in keys]

    def outcomes(self, saved: Collection[Stored], there: Iterable[Stored]) -> list[SaveOutcome]:
        """One for each of `rows`, from what was written now and what was there before."""
        by_id = {stored.id: stored for stored in there}
        by_key = {(stored.from_user, stored.client_msg_id): stored for stored in (*by_id.values(), *saved)}
        fresh = {stored.id for stored in saved}
        outcomes = []
        for row in self.rows:
            stored = by_key.get((row.from_user, row.client_msg_id)) or by_id[row.id]
            if stored.id == row.id and row.id in fresh:
                fresh.discard(row.id)  # repeated in the same batch, it counts as existing
                outcomes.append(SaveOutcome(SaveVerdict.SAVED, stored))
            else:
                outcomes.append(SaveOutcome(_compare(row, stored), stored))
        return outcomes


def _compare(row: NewMessage, stored: Stored) -> SaveVerdict:
    key = (row.from_user, row.client_msg_id, row.to_user)
    same = key == (stored.from_user, stored.client_msg_id, stored.to_user)
    return SaveVerdict.EXISTS if same else SaveVerdict.MISMATCH
