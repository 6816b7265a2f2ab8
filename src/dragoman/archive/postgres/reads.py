"""What is read, on any connection."""

from collections.abc import Sequence

from dragoman.archive import schema
from dragoman.archive.postgres.server import Connection
from dragoman.archive.rows import COLUMNS, stored
from dragoman.archive.types import MAX_UNREAD, Conversation, MemberState, Stored, User

_MESSAGES = f"SELECT {COLUMNS} FROM message WHERE id = ANY($1::bigint[])"
_FIND = f"SELECT {COLUMNS} FROM message WHERE from_user_id = $1 AND client_msg_id = $2"
_UNDELIVERED = f"SELECT {COLUMNS} FROM message WHERE to_user_id = $1 AND status = 0 AND id > $2 ORDER BY id LIMIT $3"
_UNDELIVERED_USERS = """
SELECT asked.id FROM unnest($1::bigint[]) AS asked(id)
CROSS JOIN LATERAL
    (SELECT FROM message WHERE to_user_id = asked.id AND status = 0 AND saved_ms < $2 LIMIT 1) AS something
"""
_SEQ_BELOW_ID = """
SELECT coalesce(
    (SELECT msg_seq FROM message WHERE id = $2 AND conversation_id = $1),
    (SELECT msg_seq + 1 FROM message WHERE conversation_id = $1 AND id < $2 ORDER BY msg_seq DESC LIMIT 1),
    0)
"""
_HISTORY = f"""
SELECT {COLUMNS} FROM message WHERE conversation_id = $1 AND msg_seq < $2 ORDER BY msg_seq DESC LIMIT $3
"""
_CONVERSATIONS = f"""
SELECT c.id, c.peer, c.updated_ms, c.next_msg_seq - 1 AS last_seq, mine.read_seq AS my_read_seq,
       theirs.read_seq AS peer_read_seq,
       (SELECT count(*) FROM (
            SELECT to_user_id, status FROM message AS m
            WHERE m.conversation_id = c.id AND m.msg_seq > mine.read_seq ORDER BY m.msg_seq DESC LIMIT {MAX_UNREAD}
        ) AS newest WHERE to_user_id = $1 AND status < 2) AS unread
FROM (
    SELECT conversation.*, CASE low_user_id WHEN $1 THEN high_user_id ELSE low_user_id END AS peer
    FROM member JOIN conversation ON conversation.id = member.conversation_id
    WHERE member.user_id = $1 AND (updated_ms, id) < ($2, $3)
    ORDER BY updated_ms DESC, id DESC LIMIT $4
) AS c
JOIN member AS mine ON mine.user_id = $1 AND mine.conversation_id = c.id
JOIN member AS theirs ON theirs.user_id = c.peer AND theirs.conversation_id = c.id
ORDER BY c.updated_ms DESC, c.id DESC
"""
_LAST = f"""
SELECT {", ".join(f"m.{name.strip()}" for name in COLUMNS.split(","))}
FROM unnest($1::bigint[], $2::bigint[]) AS asked(conversation_id, msg_seq)
JOIN message AS m ON m.conversation_id = asked.conversation_id AND m.msg_seq = asked.msg_seq
"""
_MEMBER_STATE = """
SELECT c.id, mine.read_seq, theirs.read_seq AS peer_read_seq
FROM conversation AS c
JOIN member AS mine ON mine.user_id = $1 AND mine.conversation_id = c.id
JOIN member AS theirs ON theirs.user_id = $2 AND theirs.conversation_id = c.id
WHERE c.low_user_id = least($1::bigint, $2::bigint) AND c.high_user_id = greatest($1::bigint, $2::bigint)
"""
_CONVERSATION = "SELECT id FROM conversation WHERE low_user_id = $1 AND high_user_id = $2"
_USER = 'SELECT id, name, password_hash FROM "user" WHERE name = $1'

_END = 2**63 - 1


async def identity(db: Connection) -> str:
    return schema.identified(await db.fetchval(schema.IDENTITY))


async def fence(db: Connection, shard: int) -> int:
    return await db.fetchval("SELECT fence FROM shard WHERE id = $1", shard) or 0


async def find(db: Connection, from_user: int, client_msg_id: str) -> Stored | None:
    row = await db.fetchrow(_FIND, from_user, client_msg_id)
    return stored(row) if row else None


async def messages(db: Connection, ids: Sequence[int]) -> dict[int, Stored]:
    return {row[0]: stored(row) for row in await db.fetch(_MESSAGES, ids)}


async def undelivered(db: Connection, user: int, after: int, limit: int) -> list[Stored]:
    return [stored(row) for row in await db.fetch(_UNDELIVERED, user, after, limit)]


async def undelivered_users(db: Connection, users: Sequence[int], saved_before_ms: int) -> set[int]:
    return {row[0] for row in await db.fetch(_UNDELIVERED_USERS, users, saved_before_ms)}


async def history(
    db: Connection, me: int, peer: int, limit: int, below_seq: int | None, below_id: int | None
) -> list[Stored]:
    conversation = await db.fetchval(_CONVERSATION, min(me, peer), max(me, peer))
    if conversation is None:
        return []
    below = _END if below_seq is None else below_seq
    if below_id is not None:
        below = min(below, await db.fetchval(_SEQ_BELOW_ID, conversation, below_id))
    return [stored(row) for row in await db.fetch(_HISTORY, conversation, below, limit)]


async def conversations(db: Connection, me: int, limit: int, before: tuple[int, int] | None) -> list[Conversation]:
    rows = await db.fetch(_CONVERSATIONS, me, *(before or (_END, _END)), limit)
    last_rows = await db.fetch(_LAST, [row["id"] for row in rows], [row["last_seq"] for row in rows])
    last = {row["conversation_id"]: stored(row) for row in last_rows}
    return [
        Conversation(
            row["id"],
            row["peer"],
            row["updated_ms"],
            row["unread"],
            row["my_read_seq"],
            row["peer_read_seq"],
            last.get(row["id"]),
        )
        for row in rows
    ]


async def member_state(db: Connection, me: int, peer: int) -> MemberState | None:
    row = await db.fetchrow(_MEMBER_STATE, me, peer)
    return MemberState(*row) if row else None


async def user_by_name(db: Connection, name: str) -> User | None:
    row = await db.fetchrow(_USER, name)
    return User(*row) if row else None
