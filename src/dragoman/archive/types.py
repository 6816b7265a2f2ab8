"""What the archive takes and returns: plain values, and its errors.

User and message ids are integers that fit a signed 64-bit column. Times are wall-clock milliseconds. `seq` counts the
messages of a conversation from 1, without gaps, in the order they were committed.

    ArchiveError
    ├── ArchiveAway   there is no usable database at the moment: try the same again later
    ├── Fenced        another instance holds the shard now: nothing was written
    ├── BadRow        this data can never be written: the caller finds the row by halving
    └── WrongSchema   the tables are not ours: of a newer release, or changed by hand

After ArchiveAway a write may have happened (the connection was lost during its commit). Every write here may be
repeated, so the answer is always the same: try again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Status(IntEnum):
    """How far a message got; it only rises."""

    SAVED = 0
    DELIVERED = 1
    READ = 2


class SaveVerdict(StrEnum):
    SAVED = "saved"
    # The row was there: same sender, clientMsgId and receiver. Its body stands, also if it is another one.
    EXISTS = "exists"
    # Sender and clientMsgId are there with another receiver, or the id is that of another message.
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class NewMessage:
    id: int
    client_msg_id: str
    from_user: int
    to_user: int
    msg_type: str
    body: str
    created_ms: int
    lang: str = ""  # that its sender named


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of the message table."""

    id: int
    conversation: int
    seq: int
    from_user: int
    to_user: int
    msg_type: str
    body: str
    client_msg_id: str
    status: Status
    created_ms: int
    saved_ms: int
    lang: str = ""


@dataclass(frozen=True, slots=True)
class SaveOutcome:
    """`message` is what is in the table now: for EXISTS and MISMATCH the row that was there before."""

    verdict: SaveVerdict
    message: Stored


@dataclass(frozen=True, slots=True)
class Receipt:
    """`acker` says of messages sent to it that it got them (DELIVERED), or read them (READ)."""

    acker: int
    status: Status
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one receipt.

    `missing`: there is no such row (yet). `not_allowed`: it was sent to another user. `changed`: what this receipt
    raised, as it is now, by conversation and seq; a READ also raises earlier messages that were delivered.
    """

    missing: Sequence[int] = field(default_factory=list)
    not_allowed: Sequence[int] = field(default_factory=list)
    changed: Sequence[Stored] = field(default_factory=list)


MAX_UNREAD = 1000


@dataclass(frozen=True, slots=True)
class Conversation:
    """As one of its two members sees it. `unread` counts the messages to this member that it has not read, among the
    newest `MAX_UNREAD` of the conversation: to count all would take as long as there are."""

    id: int
    peer: int
    updated_ms: int
    unread: int
    my_read_seq: int
    peer_read_seq: int
    last: Stored | None


@dataclass(frozen=True, slots=True)
class MemberState:
    conversation: int
    my_read_seq: int
    peer_read_seq: int


@dataclass(frozen=True, slots=True)
class Removed:
    """What one step of a removal changed. `undelivered`: messages among them that their receivers have not got."""

    messages: int = 0
    translations: int = 0
    undelivered: int = 0
    keys: tuple[str, ...] = ()  # clientMsgIds of erased messages

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(
            self.messages + other.messages,
            self.translations + other.translations,
            self.undelivered + other.undelivered,
            self.keys + other.keys,
        )


ERASED = "ERASED"  # msg_type of a tombstone: its body is empty, and stays so


@dataclass(frozen=True, slots=True)
class User:
    id: int
    name: str
    password_hash: str


@dataclass(frozen=True, slots=True)
class Migration:
    """`applied_ms` is None for one that the database does not have yet."""

    name: str
    applied_ms: int | None


class ArchiveError(Exception):
    """The database did not do, or may not have done, what was asked; `str()` is one sentence for the operator."""


class ArchiveAway(ArchiveError):
    """Not reachable, locked too long, shutting down, disk full, too slow. The next call tries again by itself."""


class Fenced(ArchiveError):
    """The shard has a higher fence than ours: another instance writes it now, and nothing of this was written."""


class BadRow(ArchiveError):
    """A value that this database can never hold."""


class WrongSchema(ArchiveError):
    """The database cannot be used by this release; waiting does not help."""
