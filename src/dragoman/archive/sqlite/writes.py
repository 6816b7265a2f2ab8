"""What is written, on a connection that is inside a transaction which holds the write lock."""

import json
import sqlite3
from collections.abc import Mapping, Sequence

from dragoman.archive import decide_receipts
from dragoman.archive.decide_receipts import Lane, ReceiptDecision
from dragoman.archive.rows import COLUMNS, Batch, fitting, pair, stored
from dragoman.archive.sqlite.reads import messages
from dragoman.archive.types import Applied, Fenced, NewMessage, Receipt, SaveOutcome, Status, Stored, User

_RAISE_FENCE = """
INSERT INTO shard (id, fence) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence
"""
# The join is forced to go from the list to the index, never through the whole table.
_THERE = f"""
SELECT {COLUMNS} FROM message WHERE id IN (SELECT value FROM json_each(?1))
UNION
SELECT {", ".join(f"m.{name.strip()}" for name in COLUMNS.split(","))}
FROM json_each(?2) AS said CROSS JOIN message AS m
  ON m.from_user_id = json_extract(said.value, '$[0]') AND m.client_msg_id = json_extract(said.value, '$[1]')
"""
_CONVERSATIONS = """
SELECT c.low_user_id, c.high_user_id, c.id, c.next_msg_seq
FROM json_each(?) AS said CROSS JOIN conversation AS c
  ON c.low_user_id = json_extract(said.value, '$[0]') AND c.high_user_id = json_extract(said.value, '$[1]')
"""
_NEW_CONVERSATION = "INSERT INTO conversation (low_user_id, high_user_id, updated_ms) VALUES (?, ?, ?) RETURNING id"
_NEW_MEMBER = "INSERT INTO member (user_id, conversation_id) VALUES (?, ?)"
_INSERT = f"INSERT INTO message ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADVANCE = "UPDATE conversation SET next_msg_seq = ?, updated_ms = max(updated_ms, ?) WHERE id = ?"

_UNREAD = f"""
SELECT {COLUMNS} FROM message
WHERE conversation_id = ?1 AND +to_user_id = ?2 AND +status < 2
  AND msg_seq > (SELECT read_seq FROM member WHERE user_id = ?2 AND conversation_id = ?1) AND msg_seq <= ?3
"""
_RAISE = "UPDATE message SET status = ? WHERE id = ?"
# The plus keeps a condition away from other indexes: the way along the conversation is short, it starts at the cursor.
_CURSORS = """
UPDATE member SET
    delivered_seq = max(delivered_seq, coalesce(
        (SELECT m.msg_seq - 1 FROM message AS m WHERE m.conversation_id = ?1 AND m.msg_seq > member.delivered_seq
         AND +m.to_user_id = ?2 AND +m.status = 0 ORDER BY m.msg_seq LIMIT 1),
        (SELECT next_msg_seq - 1 FROM conversation WHERE id = ?1))),
    read_seq = max(read_seq, coalesce(
        (SELECT m.msg_seq - 1 FROM message AS m WHERE m.conversation_id = ?1 AND m.msg_seq > member.read_seq
         AND +m.to_user_id = ?2 AND +m.status < 2 ORDER BY m.msg_seq LIMIT 1),
        (SELECT next_msg_seq - 1 FROM conversation WHERE id = ?1)))
WHERE user_id = ?2 AND conversation_id = ?1
"""
_NEW_USER = 'INSERT INTO "user" (name, password_hash, created_ms) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING'
_SET_PASSWORD = "UPDATE \"user\" SET password_hash = ? WHERE id = ? AND password_hash <> ''"
# No name of a login holds a control character.
_REMOVE_USER = (
    "UPDATE \"user\" SET name = char(31) || 'removed:' || id, password_hash = '' WHERE id = ? AND password_hash <> ''"
)


# -- messages ------------------------------------------------------------------------------------


def save(db: sqlite3.Connection, batch: Batch, shard: int | None, fence: int | None, now_ms: int) -> list[SaveOutcome]:
    if shard is not None and fence is not None:
        raise_fence(db, shard, fence)
    there = _there(db, batch.firsts)
    saved = _number(db, batch.missing(there), now_ms)
    db.executemany(_INSERT, map(_columns, saved))
    return batch.outcomes(saved, there)


def raise_fence(db: sqlite3.Connection, shard: int, fence: int) -> None:
    if db.execute(_RAISE_FENCE, (shard, fence)).rowcount < 1:
        raise Fenced(f"Shard {shard} is written by another instance now: its fence is above {fence}.")


def _there(db: sqlite3.Connection, rows: Sequence[NewMessage]) -> list[Stored]:
    ids = json.dumps([row.id for row in rows])
    keys = json.dumps([(row.from_user, row.client_msg_id) for row in rows])
    return [stored(row) for row in db.execute(_THERE, (ids, keys))]


def _number(db: sqlite3.Connection, rows: Sequence[NewMessage], now_ms: int) -> list[Stored]:
    """The rows as they will be: each with its conversation and the next seq of it, which is then advanced."""
    if not rows:
        return []
    conversations, following = _conversations(db, dict.fromkeys(map(pair, rows)), now_ms)
    numbered = []
    for row in rows:
        conversation = conversations[pair(row)]
        numbered.append(
            Stored(
                row.id,
                conversation,
                following[conversation],
                row.from_user,
                row.to_user,
                row.msg_type,
                row.body,
                row.client_msg_id,
                Status.SAVED,
                row.created_ms,
                now_ms,
            )
        )
        following[conversation] += 1
    db.executemany(_ADVANCE, [(seq, now_ms, conversation) for conversation, seq in following.items()])
    return numbered


def _conversations(
    db: sqlite3.Connection, pairs: dict[tuple[int, int], None], now_ms: int
) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """The conversation of each pair, made if need be, and the next seq of each conversation."""
    found: dict[tuple[int, int], int] = {}
    following: dict[int, int] = {}
    for low, high, conversation, seq in db.execute(_CONVERSATIONS, (json.dumps(list(pairs)),)):
        found[low, high] = conversation
        following[conversation] = seq
    for low, high in pairs:
        if (low, high) not in found:
            conversation = db.execute(_NEW_CONVERSATION, (low, high, now_ms)).fetchone()[0]
            db.executemany(_NEW_MEMBER, [(low, conversation), (high, conversation)])
            found[low, high] = conversation
            following[conversation] = 1
    return found, following


def _columns(message: Stored) -> tuple[object, ...]:
    return (
        message.id,
        message.conversation,
        message.seq,
        message.from_user,
        message.to_user,
        message.msg_type,
        message.body,
        message.client_msg_id,
        int(message.status),
        message.created_ms,
        message.saved_ms,
    )


# -- receipts ------------------------------------------------------------------------------------


def receipts(db: sqlite3.Connection, given: Sequence[Receipt]) -> list[Applied]:
    named = messages(db, fitting(number for receipt in given for number in receipt.ids))
    decision = ReceiptDecision((named | _unread(db, decide_receipts.reach(given, named).read_upto)).values())
    applied = [decision.apply(receipt) for receipt in given]
    raised = decision.raised
    if raised:
        db.executemany(_RAISE, [(int(message.status), message.id) for message in raised])
        db.executemany(_CURSORS, list(dict.fromkeys(map(decide_receipts.lane, raised))))
    return applied


def _unread(db: sqlite3.Connection, upto: Mapping[Lane, int]) -> dict[int, Stored]:
    found = {}
    for (conversation, user), seq in upto.items():
        if seq:
            for row in db.execute(_UNREAD, (conversation, user, seq)):
                found[row[0]] = stored(row)
    return found


# -- users ---------------------------------------------------------------------------------------


def create_user(db: sqlite3.Connection, name: str, password_hash: str, now_ms: int) -> User:
    db.execute(_NEW_USER, (name, password_hash, now_ms))
    return User(*db.execute('SELECT id, name, password_hash FROM "user" WHERE name = ?', (name,)).fetchone())


def set_password(db: sqlite3.Connection, user: int, password_hash: str) -> bool:
    return db.execute(_SET_PASSWORD, (password_hash, user)).rowcount == 1


def remove_user(db: sqlite3.Connection, user: int) -> bool:
    return db.execute(_REMOVE_USER, (user,)).rowcount == 1
