"""Messages, conversations and accounts in SQL: SQLite or PostgreSQL, behind one interface.

`archive` is the interface and opens an archive by its URL, `types` has its values and errors. It does not depend on
Redis, sockets or the wire.
"""

from dragoman.archive.archive import Archive, archive_url, open_archive
from dragoman.archive.types import (
    ERASED,
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
    Removed,
    SaveOutcome,
    SaveVerdict,
    Status,
    Stored,
    User,
    WrongSchema,
)

__all__ = [
    "ERASED",
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
    "Removed",
    "SaveOutcome",
    "SaveVerdict",
    "Status",
    "Stored",
    "User",
    "WrongSchema",
    "archive_url",
    "open_archive",
]
