"""Chat over real sockets: a raw client, and a server that the tests of a module share.

`ChatSpeaker` is a client as existing ones are: JSON over a WebSocket, nothing of our SDKs. It waits for frames, not for
time. The tests of a module share the instances of `chat_harness`; each test brings users that no other test has.
"""

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import Archive, Status, open_archive
from dragoman.domain.chat.shards import shard_of, tag
from dragoman.store.chat.users import Users
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.verify.clients import token
from support.redis_servers import KeyInspector, RedisAt, connected
from support.speech import Harness, start_harness

TIMEOUT_S = 60.0

Heard = dict[str, Any]


class Closed(AssertionError):
    """The server ended the connection while something else was expected."""


class ChatSpeaker:
    def __init__(self, uid: int, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.uid, self.ws = uid, ws
        self.heard: list[Heard] = []  # what nobody has asked for yet
        self.texts: list[str] = []  # all of it, as it came
        self.code: int | None = None  # that the server closed with

    # -- saying ----------------------------------------------------------------------------------

    async def text(self, data: str) -> None:
        """As with any socket, what is said to one who has hung up is lost."""
        try:
            await self.ws.send_str(data)
        except aiohttp.ClientConnectionResetError:
            pass

    async def say(self, type: str, **fields: object) -> None:
        await self.text(json.dumps({"type": type, **fields}, ensure_ascii=False))

    async def auth(self, access: str | None = None) -> Heard:
        await self.say("AUTH", token=access if access is not None else token(self.uid))
        return await self.expect("AUTH_OK")

    async def chat(self, to: int, body: str = "hello", name: str | None = None, **fields: object) -> str:
        """One message; answers its clientMsgId."""
        name = name if name is not None else uuid4().hex
        await self.say("SINGLE_CHAT", clientMsgId=name, to=str(to), body=body, **fields)
        return name

    async def ack(self, id: object, kind: str = "delivered", to: int = 1) -> None:
        await self.say("ACK", ackType=kind, serverMsgId=id, to=str(to))

    # -- hearing ---------------------------------------------------------------------------------

    async def next(self, timeout_s: float = TIMEOUT_S) -> Heard:
        """The next frame, whatever it is."""
        return self.heard.pop(0) if self.heard else await self._receive(timeout_s)

    async def expect(self, type: str, /, **fields: object) -> Heard:
        """The first frame, heard before or now, that has this type and these fields; the others are kept."""
        for at, frame in enumerate(self.heard):
            if _fits(frame, type, fields):
                return self.heard.pop(at)
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                frame = await self._receive(until - time.monotonic())
            except (TimeoutError, Closed) as error:
                raise AssertionError(f"no {type} {fields}: {error!r}; heard {self.heard[-20:]}") from None
            if _fits(frame, type, fields):
                return frame
            self.heard.append(frame)

    async def saved(self, name: str) -> int:
        """The serverMsgId of a message, once it is saved."""
        told = await self.expect("ACK", ackType="saved", clientMsgId=name)
        return int(told["serverMsgId"])

    async def refused(self, reason: str, **fields: object) -> Heard:
        return await self.expect("ERROR", reason=reason, **fields)

    async def so_far(self) -> list[Heard]:
        """All that was heard until everything said before has been read by the server."""
        await self.say("PING")
        await self.expect("PONG")
        heard, self.heard = self.heard, []
        return heard

    async def until_closed(self, timeout_s: float = TIMEOUT_S) -> int | None:
        """Read on until the server closes; with which code."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self.heard.append(await self._receive(timeout_s))
        except Closed:
            return self.code

    async def _receive(self, timeout_s: float) -> Heard:
        async with asyncio.timeout(timeout_s):
            while True:
                frame = await self.ws.receive()
                if frame.type is aiohttp.WSMsgType.TEXT:
                    self.texts.append(frame.data)
                    return dict(json.loads(frame.data))
                if frame.type is aiohttp.WSMsgType.CLOSE:
                    self.code = frame.data  # the socket's own close_code is lost when the answer comes too late
                if frame.type not in (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG):
                    raise Closed(f"closed with {self.code}")

    async def close(self) -> None:
        await self.ws.close()


def _fits(frame: Heard, type: str, fields: dict[str, object]) -> bool:
    return frame["type"] == type and all(frame.get(name) == value for name, value in fields.items())


def bodies(frames: Iterable[Heard]) -> list[str]:
    return [frame["body"] for frame in frames if frame["type"] == "SINGLE_CHAT"]


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
def chat_harness(
    place: RedisAt,
    folder: Path,
    key_inspector: KeyInspector,
    flags: Mapping[str, object],
    instances: int = 1,
    database: str = "",
) -> Iterator[Harness]:
    database = database or url(folder)
    each: Mapping[str, object] = {**UNHURRIED, "archive__url": database, **flags}
    with start_harness(place, folder, key_inspector, *[each] * instances) as harness:
        harness.database = database
        yield harness


def module_chat_harness(
    flags: Mapping[str, object], instances: int = 1, modes: Sequence[str] = ("off",), *, on_postgres: bool = False
) -> Any:
    """The fixture `harness` of a module: its tests share the instances, in each of these modes of `PATHS`.

    `on_postgres`: they run on PostgreSQL as well, which takes long."""
    kinds: list[Any] = [(mode, "sqlite") for mode in modes]
    if on_postgres:
        kinds += [pytest.param((mode, "postgres"), marks=pytest.mark.long) for mode in modes]

    @pytest.fixture(scope="module", params=kinds, ids="-".join)
    def harness(
        request: pytest.FixtureRequest,
        redis_server: RedisAt,
        key_inspector: KeyInspector,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[Harness]:
        mode, kind = request.param
        mine, folder = {**PATHS[mode], **flags}, tmp_path_factory.mktemp("chat")
        database = request.getfixturevalue("postgres_server").new_database() if kind == "postgres" else url(folder)
        with chat_harness(redis_server, folder, key_inspector, mine, instances, database) as up:
            yield up

    return harness


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'chat.sqlite3'}"


class ChatScenario:
    def __init__(self, harness: Harness, http: aiohttp.ClientSession, redis: Redis, stack: AsyncExitStack) -> None:
        self.harness, self.http, self.redis, self._stack = harness, http, redis, stack
        self.keys = Keys(harness.prefix)
        self.archive: Archive = open_archive(harness.database)

    @staticmethod
    def uid() -> int:
        return random.randrange(1, 2**53)

    async def stranger(self, at: int = 0, uid: int | None = None, query: str = "", **options: Any) -> ChatSpeaker:
        """A connection that has said nothing yet."""
        address = f"ws://127.0.0.1:{self.harness.instances[at].port}/ws{query}"
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

    def on_exit(self, close: Callable[[], Awaitable[object]]) -> None:
        self._stack.push_async_callback(close)

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
        counts = [await one.metric("dragoman_chat_other_body_total") for one in self.harness.instances]
        return sum(counts)

    async def get(self, path: str, at: int = 0) -> Any:
        return await self.harness.instances[at].get(path)

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

    @asynccontextmanager
    async def database_away(self) -> AsyncIterator[None]:
        """Nobody can write meanwhile."""
        if not self.harness.database.startswith("sqlite"):
            connection = await asyncpg.connect(self.harness.database)
            try:
                async with connection.transaction():
                    await connection.execute("LOCK TABLE message IN EXCLUSIVE MODE")
                    yield
            finally:
                await connection.close()
            return
        with closing(self._sqlite()) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")

    def _sqlite(self) -> sqlite3.Connection:
        return sqlite3.connect(self.harness.folder / "chat.sqlite3", timeout=30, isolation_level=None)


@asynccontextmanager
async def new_chat_scenario(harness: Harness) -> AsyncIterator[ChatScenario]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(connected(harness.redis))
        no_reuse = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=no_reuse))
        scenario = ChatScenario(harness, http, redis, stack)
        stack.push_async_callback(scenario.archive.close)
        yield scenario
