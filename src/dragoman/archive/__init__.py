"""Messages, conversations and accounts in SQL: SQLite or PostgreSQL, behind one interface.

`archive` is the interface, `types` and `errors` what passes through it, `places` opens one by its URL. Knows nothing
of Redis, sockets or the wire.
"""

from dragoman.archive.archive import Archive
from dragoman.archive.types import (
    Applied,
    ArchiveAway,
    ArchiveError,
    BadRow,
    Conversation,
    Fenced,
    MemberState,
    Migration,
    NewMessage,
    Outcome,
    Receipt,
    Status,
    Stored,
    User,
    Verdict,
    WrongSchema,
)
from dragoman.archive.urls import archive_url, open_archive

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
