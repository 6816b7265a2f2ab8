"""What is read, on any connection."""

import json
import sqlite3
from collections.abc import Sequence

from dragoman.archive import schema
from dragoman.archive.rows import COLUMNS, stored
from dragoman.archive.types import MAX_UNREAD, Conversation, MemberState, Stored, User

_MESSAGES = f"SELECT {COLUMNS} FROM message WHERE id IN (SELECT value FROM json_each(?))"
_FIND = f"SELECT {COLUMNS} FROM message WHERE from_user_id = ? AND client_msg_id = ?"
_UNDELIVERED = f"SELECT {COLUMNS} FROM message WHERE to_user_id = ? AND status = 0 AND id > ? ORDER BY id LIMIT ?"
_UNDELIVERED_USERS = """
SELECT value FROM json_each(?1) WHERE EXISTS
    (SELECT 1 FROM message WHERE to_user_id = value AND status = 0 AND saved_ms < ?2)
"""
_CONVERSATION = "SELECT id FROM conversation WHERE low_user_id = ? AND high_user_id = ?"
_SEQ_BELOW_ID = """
SELECT coalesce(
    (SELECT msg_seq FROM message WHERE id = ?2 AND conversation_id = ?1),
    (SELECT msg_seq + 1 FROM message WHERE conversation_id = ?1 AND id < ?2 ORDER BY msg_seq DESC LIMIT 1),
    0)
"""
_HISTORY = f"""
SELECT {COLUMNS} FROM message WHERE conversation_id = ? AND msg_seq < ? ORDER BY msg_seq DESC LIMIT ?
"""
_CONVERSATIONS = f"""
SELECT c.id, CASE c.low_user_id WHEN ?1 THEN c.high_user_id ELSE c.low_user_id END, c.updated_ms, c.next_msg_seq - 1,
       mine.read_seq, theirs.read_seq,
       (SELECT count(*) FROM (
            SELECT to_user_id, status FROM message AS m
            WHERE m.conversation_id = c.id AND m.msg_seq > mine.read_seq ORDER BY m.msg_seq DESC LIMIT {MAX_UNREAD}
        ) AS newest WHERE to_user_id = ?1 AND status < 2)
FROM (
    SELECT conversation.* FROM member CROSS JOIN conversation ON conversation.id = member.conversation_id
    WHERE member.user_id = ?1 AND (conversation.updated_ms, conversation.id) < (?2, ?3)
    ORDER BY conversation.updated_ms DESC, conversation.id DESC LIMIT ?4
) AS c
JOIN member AS mine ON mine.user_id = ?1 AND mine.conversation_id = c.id
JOIN member AS theirs ON theirs.conversation_id = c.id
    AND theirs.user_id = CASE c.low_user_id WHEN ?1 THEN c.high_user_id ELSE c.low_user_id END
ORDER BY c.updated_ms DESC, c.id DESC
"""
_LAST = f"SELECT {COLUMNS} FROM message WHERE conversation_id = ? AND msg_seq = ?"
_READ_SEQ = "SELECT read_seq FROM member WHERE user_id = ? AND conversation_id = ?"

_END = 2**63 - 1


def identity(db: sqlite3.Connection) -> str:
    row = db.execute(schema.IDENTITY).fetchone()
    return schema.identified(row and row[0])


def fence(db: sqlite3.Connection, shard: int) -> int:
    row = db.execute("SELECT fence FROM shard WHERE id = ?", (shard,)).fetchone()
    return int(row[0]) if row else 0


def find(db: sqlite3.Connection, from_user: int, client_msg_id: str) -> Stored | None:
    row = db.execute(_FIND, (from_user, client_msg_id)).fetchone()
    return stored(row) if row else None


def messages(db: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Stored]:
    return {row[0]: stored(row) for row in db.execute(_MESSAGES, (json.dumps(ids),))}


def undelivered(db: sqlite3.Connection, user: int, after: int, limit: int) -> list[Stored]:
    return [stored(row) for row in db.execute(_UNDELIVERED, (user, after, limit))]


def undelivered_users(db: sqlite3.Connection, users: Sequence[int], saved_before_ms: int) -> set[int]:
    return {row[0] for row in db.execute(_UNDELIVERED_USERS, (json.dumps(users), saved_before_ms))}


def history(
    db: sqlite3.Connection, me: int, peer: int, limit: int, below_seq: int | None, below_id: int | None
) -> list[Stored]:
    conversation = _conversation(db, me, peer)
    if conversation is None:
        return []
    below = _END if below_seq is None else below_seq
    if below_id is not None:
        below = min(below, db.execute(_SEQ_BELOW_ID, (conversation, below_id)).fetchone()[0])
    return [stored(row) for row in db.execute(_HISTORY, (conversation, below, limit))]


def conversations(db: sqlite3.Connection, me: int, limit: int, before: tuple[int, int] | None) -> list[Conversation]:
    updated_ms, last_id = before or (_END, _END)
    found = []
    rows = db.execute(_CONVERSATIONS, (me, updated_ms, last_id, limit)).fetchall()
    for number, peer, updated_ms, last_seq, my_read_seq, peer_read_seq, unread in rows:
        last = db.execute(_LAST, (number, last_seq)).fetchone()
        found.append(
            Conversation(number, peer, updated_ms, unread, my_read_seq, peer_read_seq, stored(last) if last else None)
        )
    return found


def member_state(db: sqlite3.Connection, me: int, peer: int) -> MemberState | None:
    conversation = _conversation(db, me, peer)
    if conversation is None:
        return None
    mine, theirs = (db.execute(_READ_SEQ, (user, conversation)).fetchone()[0] for user in (me, peer))
    return MemberState(conversation, mine, theirs)


def user_by_name(db: sqlite3.Connection, name: str) -> User | None:
    row = db.execute('SELECT id, name, password_hash FROM "user" WHERE name = ?', (name,)).fetchone()
    return User(*row) if row else None


def _conversation(db: sqlite3.Connection, me: int, peer: int) -> int | None:
    row = db.execute(_CONVERSATION, (min(me, peer), max(me, peer))).fetchone()
    return int(row[0]) if row else None
