"""What is written, on a connection that is inside a transaction which holds the write lock."""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter

import msgspec

from dragoman.archive import decide_receipts
from dragoman.archive.decide_receipts import Lane, ReceiptDecision
from dragoman.archive.rows import COLUMNS, Batch, fitting, pair, qualified, saved, stored
from dragoman.archive.types import Applied, Fenced, NewMessage, Receipt, SaveOutcome, Stored

MESSAGES = f"SELECT {COLUMNS} FROM message WHERE id IN (SELECT value FROM json_each(?1))"
_RAISE_FENCE = """
INSERT INTO shard (id, fence) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence
"""
# The join is forced to go from the list to the index, never through the whole table.
_THERE = f"""
{MESSAGES}
UNION
SELECT {qualified("m")}
FROM json_each(?2) AS said CROSS JOIN message AS m
  ON m.from_user_id = json_extract(said.value, '$[0]') AND m.client_msg_id = json_extract(said.value, '$[1]')
"""
_CONVERSATIONS = """
SELECT c.low_user_id, c.high_user_id, c.id, c.next_msg_seq
FROM json_each(?) AS said CROSS JOIN conversation AS c
  ON c.low_user_id = json_extract(said.value, '$[0]') AND c.high_user_id = json_extract(said.value, '$[1]')
"""
_NEW_CONVERSATIONS = """
INSERT INTO conversation (low_user_id, high_user_id, next_msg_seq, updated_ms)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), ?2 FROM json_each(?1)
RETURNING low_user_id, high_user_id, id
"""
_NEW_MEMBER = "INSERT INTO member (user_id, conversation_id) VALUES (?, ?)"
_INSERT = f"INSERT INTO message ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
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


Pair = tuple[int, int]


# -- messages ------------------------------------------------------------------------------------


def save(db: sqlite3.Connection, batch: Batch, shard: int | None, fence: int | None, now_ms: int) -> list[SaveOutcome]:
    if shard is not None and fence is not None:
        raise_fence(db, shard, fence)
    there = _there(db, batch.firsts)
    written = _number(db, batch.missing(there), now_ms)
    db.executemany(_INSERT, map(_columns, written))
    return batch.outcomes(written, there)


def raise_fence(db: sqlite3.Connection, shard: int, fence: int) -> None:
    if db.execute(_RAISE_FENCE, (shard, fence)).rowcount < 1:
        raise Fenced(f"Shard {shard} is written by another instance now: its fence is above {fence}.")


def _there(db: sqlite3.Connection, rows: Sequence[NewMessage]) -> list[Stored]:
    ids = _json([row.id for row in rows])
    keys = _json([(row.from_user, row.client_msg_id) for row in rows])
    return [stored(row) for row in db.execute(_THERE, (ids, keys))]


def _number(db: sqlite3.Connection, rows: Sequence[NewMessage], now_ms: int) -> list[Stored]:
    """The rows as they will be: each with its conversation and the next seq of it, which is then advanced."""
    if not rows:
        return []
    conversations = _conversations(db, Counter(map(pair, rows)), now_ms)
    numbered = []
    for row in rows:
        conversation, seq = conversations[pair(row)]
        numbered.append(saved(row, conversation, seq, now_ms))
        conversations[pair(row)] = conversation, seq + 1
    return numbered


def _conversations(db: sqlite3.Connection, pairs: Mapping[Pair, int], now_ms: int) -> dict[Pair, tuple[int, int]]:
    """The conversation of each pair, made if need be, and its next seq, which is advanced by that many."""
    found = {}
    for low, high, conversation, seq in db.execute(_CONVERSATIONS, (_json(list(pairs)),)):
        found[low, high] = conversation, seq
    db.executemany(_ADVANCE, [(seq + pairs[one], now_ms, conversation) for one, (conversation, seq) in found.items()])
    new = [(low, high, count + 1) for (low, high), count in pairs.items() if (low, high) not in found]
    if new:
        made = db.execute(_NEW_CONVERSATIONS, (_json(new), now_ms)).fetchall()
        db.executemany(_NEW_MEMBER, [(user, conversation) for low, high, conversation in made for user in (low, high)])
        found |= {(low, high): (conversation, 1) for low, high, conversation in made}
    return found


def _json(values: Sequence[object]) -> str:
    return msgspec.json.encode(values).decode()


_columns = attrgetter(*(field.name for field in fields(Stored)))  # in the order of COLUMNS


# -- receipts ------------------------------------------------------------------------------------


def receipts(db: sqlite3.Connection, given: Sequence[Receipt]) -> list[Applied]:
    ids = _json(fitting(number for receipt in given for number in receipt.ids))
    named = {row[0]: stored(row) for row in db.execute(MESSAGES, (ids,))}
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
