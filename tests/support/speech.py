"""Speech over real sockets: a server that the tests of a module share, and the clients and nodes of one test.

Starting processes costs a second, so the tests of a module share a `Harness`. Each test has a `Scenario` of its own:
only its nodes serve its languages, so tests do not disturb each other.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import jwt
import pytest
import redis

from dragoman.embedded.engine import free_port
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.jobs import Turns
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.leftover_keys import leaks
from dragoman.tools.processes import InstanceProcess, NodeProcess
from support.cluster import Speaker, config
from support.raw_node import RawNode, Work, at_once
from support.redis_servers import FIXTURE_OF, KeyInspector, RedisAt, connected
from support.waiting import Enter, wait_for, wait_until

TIMEOUT_S = 60.0
ACKING = ("job_ack",)
# Nobody dies here, so that nothing is gained by a short presence but unrest on a busy machine.
CALM: dict[str, object] = {
    "scheduler__phase2__instance_presence_ttl_seconds": 10,
    "limits__frames_per_s": 20_000,
}


@dataclass
class Harness:
    redis: RedisAt
    prefix: str
    folder: Path
    instances: list[InstanceProcess] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)  # of an operator, where a secret is set
    database: str = ""  # of chat, where a test looks into it

    def start(self, **flags: object) -> InstanceProcess:
        name = f"i{len(self.instances)}"
        given = {**CALM, "server__port": free_port(), "scheduler__phase2__instance_id": name, **flags}
        process = InstanceProcess(config(self.redis, self.prefix, **given), self.folder / f"{name}.log")
        self.instances.append(process)
        return process

    @property
    def port(self) -> int:
        return self.instances[0].port


@contextmanager
def start_harness(
    place: RedisAt,
    folder: Path,
    key_inspector: KeyInspector,
    *flags: Mapping[str, object],
    headers: dict[str, str] | None = None,
) -> Iterator[Harness]:
    """One instance for each of `flags`; afterwards no key of a turn may be left."""
    harness = Harness(place, f"t-{uuid4().hex[:12]}", folder, headers=headers or {})
    try:
        for each in flags:
            harness.start(**each)
        for process in harness.instances:
            asyncio.run(process.ready())
        channel = Keys(harness.prefix).announcements
        wait_for(lambda: _listeners(place, channel) >= len(flags), "all to hear announcements", TIMEOUT_S)
        yield harness
    finally:
        for process in harness.instances:
            process.close()
        left = key_inspector.remove_keys(place, harness.prefix)
    assert not leaks(left, harness.prefix)


def module_harness(
    *flags: Mapping[str, object], on: Sequence[Any] = ("single",), headers: dict[str, str] | None = None
) -> Any:
    """The fixture `harness` of a module: its tests share the instances, on each of these kinds of Redis."""

    @pytest.fixture(scope="module", params=on)
    def harness(
        request: pytest.FixtureRequest, key_inspector: KeyInspector, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Harness]:
        place = request.getfixturevalue(FIXTURE_OF[request.param])
        with start_harness(place, tmp_path_factory.mktemp("harness"), key_inspector, *flags, headers=headers) as up:
            yield up

    return harness


def scenario_on_harness(opened: Callable[[Harness], AbstractAsyncContextManager[Any]]) -> Any:
    """The fixture `scenario`: what `opened` makes of the harness of the module, for one test."""

    @pytest.fixture
    def scenario(enter: Enter, harness: Harness) -> Any:
        return enter(opened(harness))

    return scenario


def _listeners(place: RedisAt, channel: str) -> int:
    """How many hear it, on whichever of the servers."""
    count = 0
    for url in place.urls:
        with redis.Redis.from_url(url, protocol=2) as client:
            count += client.pubsub_numsub(channel)[0][1]
    return count


class Talker(Speaker):
    """A client that counts its chunks, and can look back at what it has been told."""

    seq = -1

    async def init(self, **fields: object) -> dict[str, Any]:
        told = {"client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"} | fields
        await self.say("session_init", **told)
        ack = await self.until(lambda m: m["type"] == "session_init_ack", TIMEOUT_S)
        self.session_id, self.token = ack["session_id"], ack.get("resume_token", "")
        return ack

    async def speak(self, packets: int = 13, *, final: bool = False) -> None:
        self.seq += 1
        await self.chunk(self.seq, packets, final=final)

    async def event(self, name: str, index: int = 0) -> dict[str, Any]:
        return await self.until(
            lambda m: m["type"] == "ui_event" and m["event"] == name and m["utterance_index"] == index, TIMEOUT_S
        )

    async def failed(self, index: int = 0) -> dict[str, Any]:
        """The error of one utterance."""
        return await self.until(
            lambda m: m["type"] == "error" and (m.get("details") or {}).get("utterance_index") == index, TIMEOUT_S
        )

    async def refused(self) -> dict[str, Any]:
        """The next error that is not of a job."""
        return await self.until(lambda m: m["type"] == "error" and "details" not in m, TIMEOUT_S)

    async def pong(self) -> dict[str, Any]:
        """Everything said before has been heard when this is answered."""
        await self.say("client_heartbeat", session_id=self.session_id, timestamp=1)
        return await self.until(lambda m: m["type"] == "server_heartbeat", TIMEOUT_S)


class Scenario:
    def __init__(self, harness: Harness, http: aiohttp.ClientSession, redis: Redis, stack: AsyncExitStack) -> None:
        self.harness, self.http, self.redis, self._stack = harness, http, redis, stack
        self.keys, self.turns = Keys(harness.prefix), Turns(redis, Keys(harness.prefix))
        self.src, self.tgt = f"x{uuid4().hex[:8]}", f"y{uuid4().hex[:8]}"

    async def socket(self, at: int = 0, path: str = "/ws/session", **options: Any) -> aiohttp.ClientWebSocketResponse:
        url = f"ws://127.0.0.1:{self.harness.instances[at].port}{path}"
        ws: aiohttp.ClientWebSocketResponse = await self.http.ws_connect(url, max_msg_size=0, **options)
        self._stack.push_async_callback(ws.close)
        return ws

    async def bare_talker(self, at: int = 0) -> Talker:
        """One that has opened no session."""
        return Talker(await self.socket(at))

    async def talker(self, at: int = 0, **init: object) -> Talker:
        talker = await self.bare_talker(at)
        await talker.init(**{"src_lang": self.src, "tgt_lang": self.tgt} | init)
        return talker

    async def say_utterance(self, talker: Talker, index: int, packets: int = 10, **fields: object) -> None:
        await talker.utterance(index, packets, **{"src_lang": self.src, "tgt_lang": self.tgt} | fields)

    async def node(self, at: int = 0, *, work: Work = at_once, **options: Any) -> RawNode:
        """A node that every instance knows of."""
        spoken = options.pop("languages", (self.src, self.tgt))
        node = await RawNode.dial(self.http, self.harness.instances[at].port, languages=spoken, work=work, **options)
        self._stack.push_async_callback(node.close)
        for number in range(len(self.harness.instances)):
            await wait_until(lambda: self.knows(node.id, number), TIMEOUT_S, f"{node.id} known")  # noqa: B023
        return node

    async def sim_node(self, at: int = 0, **options: object) -> NodeProcess:
        """A `dragoman node`, in a process of its own."""
        usual = {"languages": f"{self.src},{self.tgt}", "jitter_ms": 0, "node_id": f"sim-{self.src}"}
        told = usual | options
        log = self.harness.folder / f"{told['node_id']}.log"
        node = NodeProcess([self.harness.instances[at].port], log, **told)
        self._stack.callback(node.close)
        await wait_until(lambda: self.knows(str(told["node_id"]), at), TIMEOUT_S, "the simulated node")
        return node

    async def nodes(self, count: int, **options: Any) -> list[RawNode]:
        return [await self.node(**options) for _ in range(count)]

    async def knows(self, node_id: str, at: int = 0) -> bool:
        cluster = await self.get("/api/v1/cluster", at)
        return any(node["node_id"] == node_id for node in cluster["nodes"])

    async def forgot(self, node_id: str, at: int = 0) -> bool:
        return not await self.knows(node_id, at)

    async def inboxes_are_done(self) -> bool:
        """Whatever was handed to an instance is done."""
        inboxes = Inboxes(self.redis, self.keys, InboxSettings())
        tallies = [await inboxes.counts(f"i{number}") for number in range(len(self.harness.instances))]
        return all(tally.balanced and not tally.waiting and not tally.dead for tally in tallies)

    async def get(self, path: str, at: int = 0) -> Any:
        url = f"http://127.0.0.1:{self.harness.instances[at].port}{path}"
        async with self.http.get(url, headers=self.harness.headers) as answer:
            return await answer.json(content_type=None)

    async def job(self, job_id: str) -> dict[str, Any]:
        return dict(await self.get(f"/api/v1/jobs/{job_id}"))

    async def released(self, job_id: str) -> dict[str, Any]:
        record = await self.job(job_id)
        return record if record.get("state") == "RELEASED" else {}

    async def count(self, metric: str, at: int = 0) -> float:
        return float((await self.get("/api/v1/metrics", at)).get(metric, 0.0))

    async def reserved(self, node: RawNode) -> int:
        return int(await self.redis.call("ZCARD", self.keys.reserved(node.id)))

    async def all_free(self, nodes: list[RawNode]) -> bool:
        return not any([await self.reserved(node) for node in nodes])


@asynccontextmanager
async def new_scenario(harness: Harness) -> AsyncIterator[Scenario]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(connected(harness.redis))
        # A connection that began with HTTP stays with HTTP: none may be kept for a WebSocket.
        no_reuse = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=no_reuse))
        yield Scenario(harness, http, redis, stack)


def after(seconds: float) -> Callable[[], bool]:
    """True from then on; for what must not happen before."""
    loop = asyncio.get_running_loop()
    over = loop.time() + seconds
    return lambda: loop.time() >= over


SECRET = "a secret that is long enough for HS256, and only for these tests"
PACE_S = 0.02  # between utterances of the healthy session: well within what a client may send


def token(typ: str = "client", sub: str = "ann", *, secret: str = SECRET, **claims: object) -> str:
    told = {"iss": "dragoman", "exp": int(time.time()) + 86_400, "typ": typ, "sub": sub, **claims}
    return jwt.encode({k: v for k, v in told.items() if v is not None}, secret, algorithm="HS256")


def is_advice(message: dict[str, Any]) -> bool:
    """To pause because the machine is busy: one with other work to do makes any server send that."""
    return bool(
        message["type"] == "backpressure" and message["message"] in ("waiting for a node", "the server is busy")
    )


class Healthy:
    """A session that goes on speaking, and hears nothing but results."""

    def __init__(self, scenario: Scenario, talker: Talker) -> None:
        self._scenario, self._talker = scenario, talker
        self.spoken = 0

    async def speak_on(self) -> None:
        while True:
            await self._scenario.say_utterance(self._talker, self.spoken)
            result = await self._talker.result(self.spoken, TIMEOUT_S)
            assert "backfilled" not in result
            assert not [m for m in self._talker.heard if m["type"] in ("error", "backpressure") and not is_advice(m)]
            self._talker.heard.clear()
            self.spoken += 1
            await wait_until(after(PACE_S), TIMEOUT_S)


@asynccontextmanager
async def with_healthy_client(harness: Harness, **init: object) -> AsyncIterator[Scenario]:
    """A scenario during which another client gets its results undisturbed, and after it as well."""
    async with new_scenario(harness) as scenario, new_scenario(harness) as other:
        told: dict[str, Any] = {"token": token()} if harness.headers else {}
        node_token: dict[str, Any] = (
            {"token": token("node", "healthy"), "node_id": "healthy"} if harness.headers else {}
        )
        await other.node(features=ACKING, **node_token)
        healthy = Healthy(other, await other.talker(**told))
        speaking = asyncio.create_task(healthy.speak_on())
        try:
            await wait_until(lambda: healthy.spoken > 0 or speaking.done(), TIMEOUT_S)
            yield scenario
            more = healthy.spoken + 2
            await wait_until(lambda: healthy.spoken > more or speaking.done(), TIMEOUT_S)
        finally:
            speaking.cancel()
            done = await asyncio.gather(speaking, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError), done[0]


async def closed_with(ws: aiohttp.ClientWebSocketResponse) -> int | None:
    """Read until the server closes, and say with which code."""
    async with asyncio.timeout(TIMEOUT_S):
        async for _ in ws:
            pass
    return ws.close_code


async def ending(scenario: Scenario, path: str, said: str = "") -> "asyncio.Task[int | None]":
    """A connection that says no more than that, and the code it will be closed with."""
    ws = await scenario.socket(path=path)
    if said:
        await ws.send_str(said)
    return asyncio.create_task(closed_with(ws))
