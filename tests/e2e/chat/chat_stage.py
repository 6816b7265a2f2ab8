"""A chat server for a whole module of tests, and visits of single tests to it.

The tests of a module share its instances and do not meet: each visit brings users nobody else has.
"""

import random
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from chat_speaker import ChatSpeaker
from dragoman.archive import Archive, Status, open_archive
from dragoman.domain.chat.shards import shard_of, tag
from dragoman.store.chat.users import Users
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from e2e.speech_stage import Stage, standing
from key_leaks import Onlooker
from redis_clients import connected
from redis_servers import RedisAt

SHARDS = 8
OFF: dict[str, object] = {}
SAVE_FIRST: dict[str, object] = {"chat__two_phase__enabled": True}
DELIVER_FIRST: dict[str, object] = {**SAVE_FIRST, "chat__two_phase__deliver_before_saved": True}
PATHS = {"off": OFF, "save first": SAVE_FIRST, "deliver first": DELIVER_FIRST}
# A machine that lets us wait must not look like a user that does: what tests measure is set in their own modules.
UNHURRIED: dict[str, object] = {
    "chat__auth_timeout_s": 30.0,
    "chat__accept_timeout_ms": 10_000,
    "chat__resend_after_s": 600.0,
    "chat__two_phase__shards": SHARDS,
    "archive__busy_ms": 1500,
    "scheduler__phase2__owner_ttl_seconds": 3600,
    "server__drain_s": 1,
}


@contextmanager
def chat_stage(
    place: RedisAt, folder: Path, onlooker: Onlooker, flags: Mapping[str, object], instances: int = 1
) -> Iterator[Stage]:
    each: Mapping[str, object] = {**UNHURRIED, "archive__url": url(folder), **flags}
    with standing(place, folder, onlooker, *[each] * instances) as stage:
        yield stage


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'chat.sqlite3'}"


class ChatVisit:
    def __init__(self, stage: Stage, http: aiohttp.ClientSession, redis: Redis, stack: AsyncExitStack) -> None:
        self.stage, self.http, self.redis, self._stack = stage, http, redis, stack
        self.keys = Keys(stage.prefix)
        self.archive: Archive = open_archive(url(stage.folder))

    @staticmethod
    def uid() -> int:
        return random.randrange(1, 2**53)

    async def stranger(self, at: int = 0, uid: int | None = None, query: str = "", **options: Any) -> ChatSpeaker:
        """A connection that has said nothing yet."""
        address = f"ws://127.0.0.1:{self.stage.instances[at].port}/ws{query}"
        ws = await self.http.ws_connect(address, max_msg_size=0, **options)
        self._stack.push_async_callback(ws.close)
        return ChatSpeaker(uid if uid is not None else self.uid(), ws)

    async def user(self, at: int = 0, uid: int | None = None, **options: Any) -> ChatSpeaker:
        """One that is let in."""
        speaker = await self.stranger(at, uid, **options)
        await speaker.auth()
        return speaker

    async def pair(self, at: int = 0, there: int = 0) -> tuple[ChatSpeaker, ChatSpeaker]:
        return await self.user(at), await self.user(there)

    async def login(self, uid: int) -> int:
        """What a login does to the session version."""
        return await Users(self.redis, self.keys, 0).raise_session_version(uid)

    async def claimed(self, uid: int, name: str) -> bool:
        return bool(await self.redis.call("EXISTS", self.keys.claim(tag(shard_of(uid, SHARDS)), uid, name)))

    async def spent(self, uid: int) -> int:
        """Bytes of its day, as Redis has counted them."""
        return int(await self.redis.call("GET", self.keys.spent(tag(shard_of(uid, SHARDS)), uid)) or 0)

    async def dead_letters(self, uid: int) -> int:
        return int(await self.redis.call("XLEN", self.keys.dead(tag(shard_of(uid, SHARDS)))))

    async def other_bodies(self) -> float:
        """Repeated clientMsgIds with another body that the instances have counted."""
        counts = [await one.metric("dragoman_chat_other_body_total") for one in self.stage.instances]
        return sum(counts)

    async def get(self, path: str, at: int = 0) -> Any:
        return await self.stage.instances[at].get(path)

    # -- the database ----------------------------------------------------------------------------

    def rows(self, sender: int) -> list[tuple[int, str, str]]:
        """Id, clientMsgId and body of what one has sent, in the order of the conversation."""
        with closing(self._sqlite()) as db:
            asked = (
                "SELECT id, client_msg_id, body FROM message WHERE from_user_id = ? ORDER BY conversation_id, msg_seq"
            )
            return list(db.execute(asked, (sender,)))

    async def status(self, id: int) -> Status:
        return (await self.archive.messages([id]))[id].status

    @contextmanager
    def database_away(self) -> Iterator[None]:
        """Nobody can write meanwhile."""
        with closing(self._sqlite()) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")

    def _sqlite(self) -> sqlite3.Connection:
        return sqlite3.connect(self.stage.folder / "chat.sqlite3", timeout=30, isolation_level=None)


@asynccontextmanager
async def visiting_chat(stage: Stage) -> AsyncIterator[ChatVisit]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(connected(stage.redis))
        no_reuse = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=no_reuse))
        visit = ChatVisit(stage, http, redis, stack)
        stack.push_async_callback(visit.archive.close)
        yield visit
