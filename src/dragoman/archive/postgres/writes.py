"""What is written, on a connection that is inside a transaction (READ COMMITTED).

Order of locks, the same in every transaction: new conversations by their users, then old ones by id (`save_free` waits
for none of them); receipts lock members alone, by conversation. Each statement sees what was committed before it
began, so what is read after a lock is what the last holder of that lock left.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from dragoman.archive import decide_receipts
from dragoman.archive.decide_receipts import ReceiptDecision
from dragoman.archive.postgres.group_commit import Behind, Left
from dragoman.archive.postgres.server import Connection
from dragoman.archive.rows import COLUMNS, Batch, pair, qualified, saved, stored
from dragoman.archive.types import Applied, ArchiveError, Fenced, NewMessage, Receipt, SaveOutcome, Stored

Pair = tuple[int, int]

_QUALIFIED = qualified("m")
MESSAGES = f"SELECT {COLUMNS} FROM message WHERE id = ANY($1::bigint[])"

_RAISE_FENCE = """
INSERT INTO shard (id, fence) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET fence = excluded.fence WHERE shard.fence <= excluded.fence
RETURNING id
"""
_LOCK = """
SELECT c.low_user_id, c.high_user_id, c.id
FROM unnest($1::bigint[], $2::bigint[]) AS said(low, high)
JOIN conversation AS c ON c.low_user_id = said.low AND c.high_user_id = said.high
ORDER BY c.id FOR NO KEY UPDATE OF c
"""
_LOCK_FREE = f"{_LOCK.rstrip()} SKIP LOCKED"
_OLD = """
SELECT c.low_user_id, c.high_user_id
FROM unnest($1::bigint[], $2::bigint[]) AS said(low, high)
JOIN conversation AS c ON c.low_user_id = said.low AND c.high_user_id = said.high
"""
_CREATE = """
WITH made AS (
    INSERT INTO conversation (low_user_id, high_user_id, updated_ms)
    SELECT low, high, $3 FROM unnest($1::bigint[], $2::bigint[]) AS said(low, high)
    WHERE NOT EXISTS (SELECT FROM conversation WHERE low_user_id = low AND high_user_id = high)
    ORDER BY low, high
    ON CONFLICT DO NOTHING
    RETURNING id, low_user_id, high_user_id
)
INSERT INTO member (user_id, conversation_id)
SELECT low_user_id, id FROM made UNION ALL SELECT high_user_id, id FROM made
"""
_SAVE = f"""
WITH fresh AS (
    SELECT said.*, c.next_msg_seq - 1 + row_number() OVER (PARTITION BY said.conversation ORDER BY said.place) AS seq
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                $8::bigint[], $9::text[])
        WITH ORDINALITY AS said(id, conversation, sender, receiver, kind, body, client, created, lang, place)
    JOIN conversation AS c ON c.id = said.conversation
    WHERE NOT EXISTS (SELECT FROM message AS m WHERE m.id = said.id)
      AND NOT EXISTS (SELECT FROM message AS m WHERE m.from_user_id = said.sender AND m.client_msg_id = said.client)
), written AS (
    INSERT INTO message ({COLUMNS})
    SELECT id, conversation, seq, sender, receiver, kind, body, client, 0, created, $10, lang FROM fresh ORDER BY place
    RETURNING id, conversation_id, msg_seq
), advanced AS (
    UPDATE conversation AS c
    SET next_msg_seq = ahead.last + 1, updated_ms = greatest(c.updated_ms, $10)
    FROM (SELECT conversation_id, max(msg_seq) AS last FROM written GROUP BY conversation_id) AS ahead
    WHERE c.id = ahead.conversation_id
)
SELECT id, msg_seq FROM written
"""
_THERE = f"""
{MESSAGES}
UNION ALL
SELECT {_QUALIFIED} FROM unnest($2::bigint[], $3::text[]) AS said(sender, client)
JOIN message AS m ON m.from_user_id = said.sender AND m.client_msg_id = said.client
"""

_LOCK_MEMBERS = """
SELECT FROM unnest($1::bigint[], $2::bigint[]) AS lane(conversation, reader)
JOIN member AS m ON m.user_id = lane.reader AND m.conversation_id = lane.conversation
ORDER BY m.conversation_id, m.user_id FOR NO KEY UPDATE OF m
"""
_UNREAD = f"""
{MESSAGES}
UNION ALL
SELECT {_QUALIFIED}
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS lane(conversation, reader, upto)
JOIN member ON member.user_id = lane.reader AND member.conversation_id = lane.conversation
JOIN message AS m ON m.conversation_id = lane.conversation AND m.msg_seq > member.read_seq AND m.msg_seq <= lane.upto
    AND m.to_user_id = lane.reader AND m.status < 2
"""
_RAISE = """
UPDATE message SET status = raised.status FROM unnest($1::bigint[], $2::smallint[]) AS raised(id, status)
WHERE message.id = raised.id
"""
_CURSORS = """
UPDATE member SET
    delivered_seq = greatest(member.delivered_seq, coalesce(
        (SELECT m.msg_seq - 1 FROM message AS m
         WHERE m.conversation_id = member.conversation_id AND m.msg_seq > member.delivered_seq
           AND m.to_user_id = member.user_id AND m.status = 0 ORDER BY m.msg_seq LIMIT 1),
        c.next_msg_seq - 1)),
    read_seq = greatest(member.read_seq, coalesce(
        (SELECT m.msg_seq - 1 FROM message AS m
         WHERE m.conversation_id = member.conversation_id AND m.msg_seq > member.read_seq
           AND m.to_user_id = member.user_id AND m.status < 2 ORDER BY m.msg_seq LIMIT 1),
        c.next_msg_seq - 1))
FROM unnest($1::bigint[], $2::bigint[]) AS lane(conversation, reader)
JOIN conversation AS c ON c.id = lane.conversation
WHERE member.user_id = lane.reader AND member.conversation_id = lane.conversation
"""


# -- messages ------------------------------------------------------------------------------------


class MissingConversations(ArchiveError):
    """Some pair of users has no conversation yet: the transaction is begun anew with `save_and_create`.

    Made in the middle, behind locks on others, two writers could wait for each other.
    """


async def save(db: Connection, batch: Batch, shard: int | None, fence: int | None, now_ms: int) -> list[SaveOutcome]:
    if shard is not None and fence is not None:
        await raise_fence(db, shard, fence)
    return await _write(db, batch, batch.firsts, await _lock(db, batch.firsts), now_ms)


async def save_free(db: Connection, batch: Batch, now_ms: int) -> list[SaveOutcome | Left]:
    """Without waiting for anybody: what another writer has, or what has no conversation yet, is left."""
    pairs = _pairs(batch.rows)
    free = _by_pair(await db.fetch(_LOCK_FREE, *_columns(pairs)))
    if len(free) == len(pairs):
        return [*await _write(db, batch, batch.firsts, free, now_ms)]
    lefts = _lefts(batch.rows, free, {(low, high) for low, high in await db.fetch(_OLD, *_columns(pairs))})
    rest = Batch.of([row for row, left in zip(batch.rows, lefts, strict=True) if left is None])
    outcomes = iter(await _write(db, rest, rest.firsts, free, now_ms))
    return [left or next(outcomes) for left in lefts]


async def save_and_create(
    db: Connection, batch: Batch, shard: int | None, fence: int | None, now_ms: int
) -> list[SaveOutcome]:
    """The same for pairs of which some may be new. A message that is there already makes no conversation."""
    if shard is not None and fence is not None:
        await raise_fence(db, shard, fence)
    rows = batch.missing(await _there(db, batch.firsts))
    await db.execute(_CREATE, *_columns(_pairs(rows)), now_ms)
    return await _write(db, batch, rows, await _lock(db, rows), now_ms)


async def _write(
    db: Connection, batch: Batch, rows: Sequence[NewMessage], conversations: Mapping[Pair, int], now_ms: int
) -> list[SaveOutcome]:
    """`conversations` are locked."""
    written = await _insert(db, rows, conversations, now_ms) if rows else []
    ids = {message.id for message in written}
    there = await _there(db, [row for row in batch.firsts if row.id not in ids])
    return batch.outcomes(written, there)


async def raise_fence(db: Connection, shard: int, fence: int) -> None:
    if await db.fetchval(_RAISE_FENCE, shard, fence) is None:
        raise Fenced(f"Shard {shard} is written by another instance now: its fence is above {fence}.")


async def _lock(db: Connection, rows: Sequence[NewMessage]) -> dict[Pair, int]:
    pairs = _pairs(rows)
    found = _by_pair(await db.fetch(_LOCK, *_columns(pairs))) if pairs else {}
    if len(found) < len(pairs):
        raise MissingConversations
    return found


def _pairs(rows: Iterable[NewMessage]) -> dict[Pair, None]:
    return dict.fromkeys(map(pair, rows))


def _by_pair(found: Iterable[tuple[int, int, int]]) -> dict[Pair, int]:
    return {(low, high): number for low, high, number in found}


def _lefts(rows: Sequence[NewMessage], free: Mapping[Pair, int], old: Collection[Pair]) -> list[Left | None]:
    """Which of them to leave: where one is, those behind it are as well."""
    lefts, behind = list[Left | None](), Behind()
    for row in rows:
        left = None
        if row in behind:
            left = Left.LOCKED
        elif pair(row) not in free:
            left = Left.LOCKED if pair(row) in old else Left.NEW
        if left is not None:
            behind.add(row)
        lefts.append(left)
    return lefts


async def _insert(
    db: Connection, rows: Sequence[NewMessage], conversations: Mapping[Pair, int], now_ms: int
) -> list[Stored]:
    said = await db.fetch(
        _SAVE,
        [row.id for row in rows],
        [conversations[pair(row)] for row in rows],
        [row.from_user for row in rows],
        [row.to_user for row in rows],
        [row.msg_type for row in rows],
        [row.body for row in rows],
        [row.client_msg_id for row in rows],
        [row.created_ms for row in rows],
        [row.lang for row in rows],
        now_ms,
    )
    seqs: dict[int, int] = dict(said)
    return [saved(row, conversations[pair(row)], seqs[row.id], now_ms) for row in rows if row.id in seqs]


async def _there(db: Connection, rows: Sequence[NewMessage]) -> list[Stored]:
    """What the table has of these."""
    if not rows:
        return []
    ids, senders = [row.id for row in rows], [row.from_user for row in rows]
    return [stored(row) for row in await db.fetch(_THERE, ids, senders, [row.client_msg_id for row in rows])]


# -- receipts ------------------------------------------------------------------------------------


async def receipts(db: Connection, given: Sequence[Receipt], named: dict[int, Stored]) -> list[Applied]:
    """`named` was read before: whose messages they are does not change, how far they got is read under the lock."""
    reach = decide_receipts.reach(given, named)
    decision = ReceiptDecision((named | await _locked(db, reach)).values())
    applied = [decision.apply(receipt) for receipt in given]
    raised = decision.raised
    if raised:
        await db.execute(_RAISE, [message.id for message in raised], [int(message.status) for message in raised])
        await db.execute(_CURSORS, *_columns(dict.fromkeys(map(decide_receipts.lane, raised))))
    return applied


async def _locked(db: Connection, reach: decide_receipts.Reach) -> dict[int, Stored]:
    lanes = list(reach.read_upto)
    if not lanes:
        return {}
    await db.execute(_LOCK_MEMBERS, *_columns(lanes))
    reading = [lane for lane in lanes if reach.read_upto[lane]]
    upto = [reach.read_upto[lane] for lane in reading]
    return {row[0]: stored(row) for row in await db.fetch(_UNREAD, list(reach.ids), *_columns(reading), upto)}


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """A list of pairs as two arrays."""
    firsts, seconds = [], []
    for first, second in pairs:
        firsts.append(first)
        seconds.append(second)
    return firsts, seconds
