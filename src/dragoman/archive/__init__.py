"""Messages, conversations and accounts in SQL: SQLite or PostgreSQL, behind one interface.

`archive` is the interface, `types` and `errors` what passes through it, `places` opens one by its URL. Knows nothing
of Redis, sockets or the wire.
"""

from dragoman.archive.archive import Archive
from dragoman.archive.errors import ArchiveAway, ArchiveError, BadRow, Fenced, WrongSchema
from dragoman.archive.places import archive_url, open_archive
from dragoman.archive.types import (
    Applied,
    Conversation,
    MemberState,
    Migration,
    NewMessage,
    Outcome,
    Receipt,
    Status,
    Stored,
    User,
    Verdict,
)

__all__ = [
    "Applied",
    "Archive",
    "ArchiveAway",
    "ArchiveError",
    "BadRow",
    "Conversation",
    "Fenced",
    "MemberState",
    "Migration",
    "NewMessage",
    "Outcome",
    "Receipt",
    "Status",
    "Stored",
    "User",
    "Verdict",
    "WrongSchema",
    "archive_url",
    "open_archive",
]
