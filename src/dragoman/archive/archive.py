"""What every archive does, whatever database it has.

- A method that returned has committed. One that raised ArchiveAway may have: every write may be repeated.
- Losing the database is an operating state: calls raise ArchiveAway while it is away, within a bounded time, and the
  first call after it came back works. It need not be opened again.
- Several processes use one database at once. Two writers of one conversation meet on its row.

Retries, and what becomes of a message that cannot be written, are left to the caller.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from dragoman.archive import schema
from dragoman.archive.rows import COLUMNS, INT64_MAX, check_key, check_text, fits, fitting, qualified, storable, stored
from dragoman.archive.types import (
    ERASED,
    MAX_UNREAD,
    Applied,
    ArchiveAway,
    ArchiveError,
    Conversation,
    MemberState,
    Migration,
    NewMessage,
    Receipt,
    Removed,
    SaveOutcome,
    Status,
    Stored,
    User,
)
from dragoman.config.schema import Config
from dragoman.config.schema_chat import Archive as Settings

# Statements that both databases understand. Parameters are numbered: $1, $2, …
_FENCE = "SELECT fence FROM shard WHERE id = $1"
_FIND = f"SELECT {COLUMNS} FROM message WHERE from_user_id = $1 AND client_msg_id = $2"
_UNDELIVERED = f"SELECT {COLUMNS} FROM message WHERE to_user_id = $1 AND status = 0 AND id > $2 ORDER BY id LIMIT $3"
_CONVERSATION = "SELECT id FROM conversation WHERE low_user_id = $1 AND high_user_id = $2"
_SEQ_BELOW_ID = """
SELECT coalesce(
    (SELECT msg_seq FROM message WHERE id = $2 AND conversation_id = $1),
    (SELECT msg_seq + 1 FROM message WHERE conversation_id = $1 AND id < $2 ORDER BY msg_seq DESC LIMIT 1),
    0)
"""
_HISTORY = f"""
SELECT {COLUMNS} FROM message WHERE conversation_id = $1 AND msg_seq < $2 ORDER BY msg_seq DESC LIMIT $3
"""
_MEMBER_STATE = """
SELECT c.id, mine.read_seq, theirs.read_seq
FROM conversation AS c
JOIN member AS mine ON mine.user_id = $1 AND mine.conversation_id = c.id
JOIN member AS theirs ON theirs.user_id = $2 AND theirs.conversation_id = c.id
WHERE c.low_user_id = $3 AND c.high_user_id = $4
"""
_USER = 'SELECT id, name, password_hash FROM "user" WHERE name = $1'
_NEW_USER = 'INSERT INTO "user" (name, password_hash, created_ms) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING'
_SET_PASSWORD = "UPDATE \"user\" SET password_hash = $2 WHERE id = $1 AND password_hash <> ''"
_REMOVE_USER = (
    "UPDATE \"user\" SET name = CAST($2 AS TEXT) || id, password_hash = '' WHERE id = $1 AND password_hash <> ''"
)
_REMOVED = "\x1fremoved:"  # no name of a login holds a control character


_MESSAGE_AND_TRANSLATIONS = ("message WHERE id", "message_translation WHERE message_id")
# Old messages by id, which has the time in its highest bits.
_OLD = "SELECT id, status FROM message WHERE id < $1 AND saved_ms < $2 ORDER BY id LIMIT $3"
_OF_SENDER = f"""
SELECT id, status, client_msg_id FROM message
WHERE from_user_id = $1 AND client_msg_id > $2 AND msg_type <> '{ERASED}' ORDER BY client_msg_id LIMIT $3
"""


def conversations_by(join: str) -> str:
    """`join` goes from the member to its conversations, never through all conversations."""
    return f"""
SELECT c.id, c.peer, c.updated_ms,
       (SELECT count(*) FROM (
            SELECT to_user_id, status FROM message AS m
            WHERE m.conversation_id = c.id AND m.msg_seq > mine.read_seq ORDER BY m.msg_seq DESC LIMIT {MAX_UNREAD}
        ) AS newest WHERE to_user_id = $1 AND status < 2),
       mine.read_seq, theirs.read_seq, {qualified("latest")}
FROM (
    SELECT conversation.*, CASE low_user_id WHEN $1 THEN high_user_id ELSE low_user_id END AS peer
    FROM member {join} conversation ON conversation.id = member.conversation_id
    WHERE member.user_id = $1 AND (conversation.updated_ms, conversation.id) < ($2, $3)
    ORDER BY conversation.updated_ms DESC, conversation.id DESC LIMIT $4
) AS c
JOIN member AS mine ON mine.user_id = $1 AND mine.conversation_id = c.id
JOIN member AS theirs ON theirs.user_id = c.peer AND theirs.conversation_id = c.id
LEFT JOIN message AS latest ON latest.conversation_id = c.id AND latest.msg_seq = c.next_msg_seq - 1
ORDER BY c.updated_ms DESC, c.id DESC
"""


class Archive(ABC):
    # Statements in which the databases differ: messages by ids; which users have something undelivered.
    _messages: ClassVar[str]
    _undelivered_users: ClassVar[str]
    _conversations: ClassVar[str]
    _listed: ClassVar[str]  # the condition that a column is in the list $1
    _lock_shared: ClassVar[str]  # a clause of SELECT: what was read does not change before the transaction ends

    # -- of each database ----------------------------------------------------------------------------

    @abstractmethod
    async def open(self) -> None:
        """Connect and bring the tables up to date.

        ArchiveAway leaves the archive usable: the next call tries again. WrongSchema does not pass by waiting.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was asked and close the database."""

    @abstractmethod
    async def save(
        self,
        rows: Sequence[NewMessage],
        *,
        shard: int | None = None,
        fence: int | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> list[SaveOutcome]:
        """Write messages in the given order, in one transaction; one outcome a row, in the same order.

        A row that is there already, or that stands earlier in `rows`, is not written again: EXISTS or MISMATCH.
        With `shard` and `fence` nothing is written if the shard was ever written with a higher fence: Fenced.
        BadRow: one of them can never be written, and none was.
        `on_begin` is called, perhaps by another thread and more than once, when the rows have the thread or connection
        that writes them.
        """

    @abstractmethod
    async def receipts(self, given: Sequence[Receipt]) -> list[Applied]:
        """Apply receipts in their order, in one transaction; one answer a receipt, in the same order.

        Only the addressee raises a message. READ also raises every earlier message of the same conversation to the
        same reader that is DELIVERED. The cursors of a member follow: `delivered` stands before the lowest message
        to it that is not delivered (at the last one if there is none), `read` likewise. They never go back.
        """

    @abstractmethod
    async def migrate(self) -> list[str]:
        """Bring the tables up to date; the names of the migrations that were applied now."""

    @abstractmethod
    async def migrations(self) -> list[Migration]:
        """What we know, in order, and when the database got it. Works without `open` and changes nothing."""

    @abstractmethod
    async def _rows(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """What a statement reads."""

    @abstractmethod
    async def _change(self, statement: str, *values: Any) -> int:
        """How many rows a statement has changed, committed."""

    @abstractmethod
    async def _take(
        self, select: str, values: Sequence[Any], changes: Sequence[str]
    ) -> tuple[list[Sequence[Any]], list[int]]:
        """In one transaction: select rows that no other transaction writes, and make changes to the list of their ids.
        Returns the rows, and how many rows each change has changed."""

    # -- messages ------------------------------------------------------------------------------------

    async def identity(self) -> str:
        """The id of the database, created with it and the same for all its users."""
        return schema.identified(await self._value(schema.IDENTITY))

    async def fence(self, shard: int) -> int:
        """The highest fence that ever wrote this shard; 0 if none did."""
        return await self._value(_FENCE, shard) or 0

    async def find(self, from_user: int, client_msg_id: str) -> Stored | None:
        if not (fits(from_user) and storable(client_msg_id)):
            return None
        return next(iter(await self._stored(_FIND, from_user, client_msg_id)), None)

    async def messages(self, ids: Sequence[int]) -> dict[int, Stored]:
        """Those of `ids` that are there."""
        return {message.id: message for message in await self._stored(self._messages, fitting(ids))}

    async def undelivered(self, user: int, after: int = 0, limit: int = 100) -> list[Stored]:
        """What is SAVED and not more, sent to `user`, with ids above `after`, lowest id first."""
        return await self._stored(_UNDELIVERED, user, after, limit)

    async def undelivered_users(self, users: Sequence[int], saved_before_ms: int) -> set[int]:
        """Which of these have something undelivered that was saved before then. Made for thousands of users."""
        return {row[0] for row in await self._rows(self._undelivered_users, fitting(users), saved_before_ms)}

    async def history(
        self, me: int, peer: int, *, limit: int, below_seq: int | None = None, below_id: int | None = None
    ) -> list[Stored]:
        """Messages between two users, newest first, strictly below the message with that seq or id."""
        conversation = await self._value(_CONVERSATION, min(me, peer), max(me, peer))
        if conversation is None:
            return []
        below = INT64_MAX if below_seq is None else below_seq
        if below_id is not None:
            below = min(below, await self._value(_SEQ_BELOW_ID, conversation, below_id))
        return await self._stored(_HISTORY, conversation, below, limit)

    async def conversations(self, me: int, *, limit: int, before: tuple[int, int] | None = None) -> list[Conversation]:
        """By last change, newest first; `before` is (updated_ms, id) of the last one already seen."""
        rows = await self._rows(self._conversations, me, *(before or (INT64_MAX, INT64_MAX)), limit)
        return [Conversation(*(*row[:6], stored(row[6:]) if row[6] is not None else None)) for row in rows]

    async def member_state(self, me: int, peer: int) -> MemberState | None:
        rows = await self._rows(_MEMBER_STATE, me, peer, min(me, peer), max(me, peer))
        return MemberState(*rows[0]) if rows else None

    # -- translations --------------------------------------------------------------------------------

    async def translations(self, ids: Sequence[int], lang: str) -> dict[int, str]:
        """The stored translations of these messages, by the id of the message."""
        known = fitting(ids)
        if not (known and storable(lang)):
            return {}
        statement = f"SELECT message_id, body FROM message_translation WHERE message_id {self._listed} AND lang = $2"
        return {row[0]: row[1] for row in await self._rows(statement, known, lang)}

    async def add_translation(self, id: int, lang: str, body: str, engine: str) -> bool:
        """False: there is one already, or the message is not there or erased."""
        check_key(lang, "The language")
        check_text(body, "The translation")
        check_key(engine, "The engine")
        # Locked: an erasure at the same time either is seen here, or deletes this row.
        statement = f"""
INSERT INTO message_translation (message_id, lang, body, engine, created_ms)
SELECT id, CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS TEXT), CAST($5 AS BIGINT) FROM message
WHERE id = $1 AND msg_type <> '{ERASED}' {self._lock_shared}
ON CONFLICT DO NOTHING
"""
        return fits(id) and await self._change(statement, id, lang, body, engine, now_ms()) == 1

    # -- removal -------------------------------------------------------------------------------------
    #
    # In batches, each a transaction of its own: writers wait for one batch at most. A message that another transaction
    # writes at this moment is left for the next batch.

    async def expire(self, below_id: int, saved_before_ms: int, limit: int) -> Removed:
        """Delete up to `limit` messages with lower ids that were saved before then, and their translations."""
        changes = [f"DELETE FROM {table} {self._listed}" for table in _MESSAGE_AND_TRANSLATIONS]
        rows, (messages, translations) = await self._take(_OLD, (below_id, saved_before_ms, limit), changes)
        return Removed(messages, translations, sum(row[1] == Status.SAVED for row in rows))

    async def erase(self, sender: int, after: str, limit: int) -> Removed:
        """Replace up to `limit` messages of this sender by tombstones, in the order of their clientMsgIds, beginning
        `after` one; their translations are deleted. `keys` has their clientMsgIds in that order."""
        changes = [
            f"UPDATE message SET body = '', msg_type = '{ERASED}', lang = '' WHERE id {self._listed}",
            f"DELETE FROM message_translation WHERE message_id {self._listed}",
        ]
        rows, (messages, translations) = await self._take(_OF_SENDER, (sender, after, limit), changes)
        undelivered = sum(row[1] == Status.SAVED for row in rows)
        return Removed(messages, translations, undelivered, tuple(row[2] for row in rows))

    # -- users ---------------------------------------------------------------------------------------

    async def user_by_name(self, name: str) -> User | None:
        rows = await self._rows(_USER, name) if storable(name) else []
        return User(*rows[0]) if rows else None

    async def create_user(self, name: str, password_hash: str) -> User:
        """The user of that name. Of two concurrent calls one creates it, and both return its row."""
        check_key(name, "The name")
        check_text(password_hash, "The password hash")
        await self._change(_NEW_USER, name, password_hash, now_ms())
        found = await self.user_by_name(name)
        if found is None:
            raise ArchiveAway("The account was removed while it was created.")
        return found

    async def set_password(self, user: int, password_hash: str) -> bool:
        """False: there is no such user."""
        check_text(password_hash, "The password hash")
        return fits(user) and await self._change(_SET_PASSWORD, user, password_hash) == 1

    async def remove_user(self, user: int) -> bool:
        """Free the name and forget the password; False: there is no such user.

        The row stays under a name that nobody can log in with, so that its id, and with it the user's messages, never
        belongs to another user.
        """
        return fits(user) and await self._change(_REMOVE_USER, user, _REMOVED) == 1

    # -- how it is read ------------------------------------------------------------------------------

    async def _stored(self, statement: str, *values: Any) -> list[Stored]:
        return [stored(row) for row in await self._rows(statement, *values)]

    async def _value(self, statement: str, *values: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        rows = await self._rows(statement, *values)
        return rows[0][0] if rows else None


def now_ms() -> int:
    return int(time.time() * 1000)


# -- urls ------------------------------------------------------------------------------------------
#
# Which database a URL names, and which URL the settings mean.
#
# `sqlite:///chat.sqlite3` is relative to the working directory, `sqlite:////var/lib/chat.sqlite3` is absolute, and
# `postgresql://user:password@host/database` takes what libpq takes.


SQLITE_FILE = "chat.sqlite3"
_POSTGRES = ("postgresql", "postgres")


def archive_url(config: Config) -> str:
    """`archive.url`; empty, it means a file of its own in the data directory of the embedded engine."""
    if config.archive.url:
        return config.archive.url
    path = Path(config.embedded.data_dir).expanduser().absolute() / SQLITE_FILE
    return f"sqlite:///{quote(str(path))}"


def open_archive(url: str, settings: Settings | None = None) -> Archive:
    """The archive at `url`, not yet connected: `await archive.open()`, or just use it."""
    settings = settings or Settings()
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from dragoman.archive.sqlite import SqliteArchive

        return SqliteArchive(sqlite_path(url), busy_ms=settings.busy_ms)
    if scheme in _POSTGRES:
        from dragoman.archive.postgres import PostgresArchive

        return PostgresArchive(url, pool=settings.pool)
    raise ArchiveError(
        f"archive.url starts with {scheme or url[:12]!r}: write sqlite:///path or postgresql://user@host/database."
    )


def sqlite_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2:
        raise ArchiveError("archive.url must be written sqlite:///path, or sqlite:////path from the root.")
    return Path(unquote(parts.path[1:])).expanduser().absolute()
