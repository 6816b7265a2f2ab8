"""The fleet as Redis knows it: every heartbeat writes four keys, so a lost race with the clean-up heals itself.

    nodes:all        which ids there are          nodes:presence:<id>   the node is online
    nodes:last_seen  its last heartbeat           nodes:snapshot:<id>   what it can and how loaded it is

A reader asks `last_seen` for what changed since it last looked, not for the fleet.
"""

import asyncio
from dataclasses import dataclass

import msgspec

from dragoman.domain.fleet import Node
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

    async def heard(self, snapshot: Snapshot) -> None:
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
