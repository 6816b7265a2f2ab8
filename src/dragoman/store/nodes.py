"""The fleet as Redis knows it, the slots of nodes, and the nodes that get no jobs for a while.

Every heartbeat writes four keys, so a lost race with the clean-up heals itself:

    nodes:all        which ids there are          nodes:presence:<id>   the node is online
    nodes:last_seen  its last heartbeat           nodes:snapshot:<id>   what it can and how loaded it is

A reader asks `last_seen` for what changed since it last looked, not for the fleet.

A slot is reserved with an expiry, renewed by the driver of its job, and released exactly once. Python chooses the node
on its own view; whether a slot is free is decided here, by one script per node. If the driver dies, the slot expires.

The storm guard is shared, so that one instance's experience with a node spares the others theirs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from dragoman.domain.fleet import Node
from dragoman.domain.storm import StormSettings, StormVerdict
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

MARK_NODE_SEEN = Script.beside(__file__, "mark_node_seen")
FORGET_NODES = Script.beside(__file__, "forget_nodes")

VERSION = 1


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as instances see it."""

    id: str
    epoch: int
    instance: str
    v: int = VERSION
    slots: int = 0
    asr: list[str] = []
    semantic: list[str] = []
    tts: list[str] = []
    text: list[tuple[str, str]] = []  # the pairs of its text jobs
    previews: int = 0  # at a time
    ready: list[str] | None = None
    features: list[str] = []
    services: dict[str, str] = {}  # service id → its type
    gpu_queue: int = 0
    running: int = 0
    draining: bool = False
    public: bool = True
    tenant: str = "default"
    version: str = ""
    platform: str = ""
    seen_ms: int = 0

    def node(self) -> Node:
        return Node(
            id=self.id,
            epoch=self.epoch,
            instance=self.instance,
            slots=self.slots,
            asr=frozenset(self.asr),
            semantic=frozenset(self.semantic),
            tts=frozenset(self.tts),
            ready=None if self.ready is None else frozenset(self.ready),
            features=frozenset(self.features),
            gpu_queue=self.gpu_queue,
            running=self.running,
            draining=self.draining,
            public=self.public,
            tenant=self.tenant,
            seen_ms=self.seen_ms,
            text=frozenset(self.text),
            previews=self.previews,
        )


_decode = msgspec.json.Decoder(Snapshot).decode


def parse_snapshot(data: bytes) -> Snapshot | None:
    """None for what does not parse or was written by a later release: a heartbeat replaces it soon enough."""
    try:
        snapshot = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return snapshot if snapshot.v <= VERSION else None


@dataclass(frozen=True, slots=True)
class Changes:
    seen: list[Snapshot]
    gone: list[str]  # with a heartbeat since then, and without presence or snapshot
    unreadable: list[str]
    until_ms: int  # where the next read begins


class Nodes:
    def __init__(self, redis: Redis, keys: Keys, presence_ttl_ms: int) -> None:
        self.redis, self.keys, self.presence_ttl_ms = redis, keys, presence_ttl_ms

    async def last_seen(self, count: int) -> list[tuple[str, int]]:
        """The nodes that were seen last, with when in ms, the latest first."""
        flat = await self.redis.call("ZREVRANGE", self.keys.nodes_last_seen, 0, count - 1, "WITHSCORES")
        return [(node.decode(), int(float(at))) for node, at in zip(flat[::2], flat[1::2], strict=True)]

    async def write(self, snapshot: Snapshot) -> None:
        """Write all four keys of one heartbeat, in one flush."""
        redis, keys, ttl = self.redis, self.keys, self.presence_ttl_ms
        await asyncio.gather(
            redis.call("SADD", keys.nodes_all, snapshot.id),
            redis.call("SET", keys.node_presence(snapshot.id), snapshot.epoch, "PX", ttl),
            redis.call("SET", keys.node_snapshot(snapshot.id), msgspec.json.encode(snapshot), "PX", ttl),
            # Last: an instance that finds the id here must find the other keys.
            MARK_NODE_SEEN(redis, last_seen=keys.nodes_last_seen, node=snapshot.id),
        )

    async def gone(self, node: str) -> None:
        """The node's socket closed: offline at once, not when its keys expire; unless another instance owns it now."""
        if await self.redis.call("EXISTS", self.keys.node_owner(node)):
            return
        await asyncio.gather(
            self.redis.call("DEL", self.keys.node_presence(node)),
            self.redis.call("DEL", self.keys.node_snapshot(node)),
            MARK_NODE_SEEN(self.redis, last_seen=self.keys.nodes_last_seen, node=node),
        )

    async def changed_since(self, since_ms: int, limit: int = 10_000) -> Changes:
        """Nodes with a heartbeat at or after `since_ms`, oldest first. Ties are read twice rather than missed."""
        redis, keys = self.redis, self.keys
        flat = await redis.call(
            "ZRANGEBYSCORE", keys.nodes_last_seen, since_ms, "+inf", "WITHSCORES", "LIMIT", 0, limit
        )
        ids = [id.decode() for id in flat[::2]]
        reads = [(redis.call("GET", keys.node_presence(id)), redis.call("GET", keys.node_snapshot(id))) for id in ids]
        seen: list[Snapshot] = []
        gone: list[str] = []
        unreadable: list[str] = []
        for id, (presence, snapshot) in zip(ids, reads, strict=True):
            present, data = await presence, await snapshot
            parsed = parse_snapshot(data) if data is not None else None
            if present is None or data is None:
                gone.append(id)
            elif parsed is None:
                unreadable.append(id)
            else:
                seen.append(parsed)
        return Changes(seen, gone, unreadable, int(float(flat[-1])) if flat else since_ms)

    async def snapshot(self, node: str) -> Snapshot | None:
        data = await self.redis.call("GET", self.keys.node_snapshot(node))
        return parse_snapshot(data) if data is not None else None

    async def online(self, node: str) -> bool:
        return bool(await self.redis.call("EXISTS", self.keys.node_presence(node)))

    async def all(self) -> list[str]:
        return sorted(id.decode() for id in await self.redis.call("SMEMBERS", self.keys.nodes_all))

    async def forget(self, older_ms: int, limit: int = 1000) -> list[str]:
        """Remove nodes without a heartbeat for `older_ms`; a later heartbeat adds them again."""
        reply = await FORGET_NODES(self.redis, last_seen=self.keys.nodes_last_seen, older_ms=older_ms, limit=limit)
        ids = [id.decode() for id in reply]
        if ids:
            await self.redis.call("SREM", self.keys.nodes_all, *ids)
        return ids


# -- slots -----------------------------------------------------------------------------------------


RESERVE_SLOT = Script.beside(__file__, "reserve_slot")
RENEW_SLOTS = Script.beside(__file__, "renew_slots")
RELEASE_SLOT = Script.beside(__file__, "release_slot")


class ReserveReply(StrEnum):
    OK = "OK"
    HELD = "HELD"
    FULL = "FULL"


class ReleaseReply(StrEnum):
    OK = "OK"
    FREED = "FREED"  # the node was full: notify jobs that wait for a slot
    NONE = "NONE"  # it was released before


@dataclass(frozen=True, slots=True)
class Reserved:
    verdict: ReserveReply
    free_in_ms: int = 0  # when FULL: until a slot can expire at the earliest

    @classmethod
    def parse(cls, reply: bytes) -> "Reserved":
        word, _, ms = reply.decode().partition(" ")
        return cls(ReserveReply(word), int(ms or 0))


class Reservations:
    def __init__(self, redis: Redis, keys: Keys, ttl_ms: int) -> None:
        self.redis, self.keys, self.ttl_ms = redis, keys, ttl_ms

    def reserve(self, node: str, job: str, limit: int) -> "asyncio.Future[bytes]":
        """Starts the script and returns its reply's future (see `Reserved.parse`), to travel with other commands."""
        return RESERVE_SLOT(self.redis, reserved=self.keys.reserved(node), job=job, ttl=self.ttl_ms, limit=limit)

    async def count(self, node: str, now_ms: int) -> int:
        """The slots of a node that are reserved at `now_ms`."""
        return int(await self.redis.call("ZCOUNT", self.keys.reserved(node), now_ms, "+inf"))

    async def renew(self, node: str, jobs: Sequence[str]) -> list[str]:
        """Keep slots; returns the jobs that hold none any more."""
        lost = await RENEW_SLOTS(self.redis, reserved=self.keys.reserved(node), ttl=self.ttl_ms, jobs=jobs)
        return [job.decode() for job in lost]

    async def release(self, node: str, job: str, limit: int) -> ReleaseReply:
        reply = await RELEASE_SLOT(self.redis, reserved=self.keys.reserved(node), job=job, limit=limit)
        return ReleaseReply(reply.decode())

    async def held(self, node: str) -> list[str]:
        return [job.decode() for job in await self.redis.call("ZRANGE", self.keys.reserved(node), 0, -1)]


# -- cool-downs and pauses -------------------------------------------------------------------------


REPORT_UNAVAILABLE = Script.beside(__file__, "report_unavailable")
PAUSE_NODE = Script.beside(__file__, "pause_node")


@dataclass(frozen=True, slots=True)
class CoolDowns:
    """What a node is not asked for, in ms of Redis."""

    services: dict[str, int] = field(default_factory=dict)  # service → until; `*` for the whole node
    paused_until_ms: int = 0  # after a run of failures; 0 if there was none
    pauses: int = 0  # in a row


class Storm:
    def __init__(self, redis: Redis, keys: Keys, settings: StormSettings) -> None:
        self.redis, self.keys, self.settings = redis, keys, settings

    async def report(self, node: str, service: str) -> StormVerdict:
        """A node answered MODEL_NOT_AVAILABLE for `service` (id@version)."""
        reply = await REPORT_UNAVAILABLE(
            self.redis,
            storm=self.keys.storm(node),
            service=service,
            debounce_ms=int(self.settings.debounce_window_s * 1000),
            ttl_ms=int(self.settings.unavailable_ttl_s * 1000),
            limit=self.settings.rate_limit,
            window_ms=int(self.settings.rate_window_s * 1000),
        )
        return StormVerdict(reply.decode())

    async def pause(self, node: str) -> int:
        """A node failed several jobs in a row: for how many ms it is paused; 0 if it is paused already."""
        settings = self.settings
        return int(
            await PAUSE_NODE(
                self.redis,
                storm=self.keys.storm(node),
                first_ms=int(settings.first_pause_s * 1000),
                ttl_ms=int(settings.unavailable_ttl_s * 1000),
            )
        )

    async def recovered(self, node: str) -> None:
        """A node that was paused did a job."""
        await self.redis.call("HDEL", self.keys.storm(node), "paused", "pauses")

    async def now_ms(self, node: str) -> int:
        """The time of the server that has the cool-downs of the node."""
        seconds, micros = await self.redis.call_at(self.keys.storm(node), "TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def cooling(self, node: str) -> CoolDowns:
        flat = await self.redis.call("HGETALL", self.keys.storm(node))
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        ttl_ms = int(self.settings.unavailable_ttl_s * 1000)
        services = {name[2:].decode(): int(at) + ttl_ms for name, at in found.items() if name.startswith(b"m:")}
        if b"whole" in found:
            services["*"] = int(found[b"whole"])
        return CoolDowns(services, int(found.get(b"paused", 0)), int(found.get(b"pauses", 0)))
