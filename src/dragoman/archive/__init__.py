"""Messages, conversations and accounts in SQL: SQLite or PostgreSQL, behind one interface.

`archive` is the interface, `types` its values and errors, `urls` opens an archive by its URL. It does not depend on
Redis, sockets or the wire.
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
    Receipt,
    SaveOutcome,
    SaveVerdict,
    Status,
    Stored,
    User,
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
    "Receipt",
    "SaveOutcome",
    "SaveVerdict",
    "Status",
    "Stored",
    "User",
    "WrongSchema",
    "archive_url",
    "open_archive",
]
