"""Instances as others see them: presence, the open inbox, and the takeover of a dead instance.

    presence   expires after `ttl`, renewed every third of it   the instance lives
    open       the incarnation that reads the inbox             pushes are accepted

An instance that was declared dead may come back during the takeover. Each side writes first and reads after: the
returning instance writes presence and then reads `open`; the instance that takes over marks `open` and then reads
presence. Whatever the order, at least one of them sees the other.

An owner is the instance that has the connection of a node, or that has a session. It counts only while the presence of
its instance does; the TTL here merely clears what the dead left. An instance that closes a connection deletes the owner
key only if it names that instance.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from dragoman.store.interface import in_slices
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

DELETE_IF_EQUAL = Script.beside(__file__, "delete_if_equal")
RENEW_IF_EQUAL = Script.beside(__file__, "renew_if_equal")
OPEN_INBOX = Script.beside(__file__, "open_inbox")
MARK_TAKEOVER = Script.beside(__file__, "mark_takeover")
CLOSE_INBOX = Script.beside(__file__, "close_inbox")

MARK = "takeover:"
GONE_MS: Final = 600_000  # how long an instance that ended is listed
LEFT: Final = "left"  # it ended by itself
LOST: Final = "lost"  # it died, and another instance took over


class Presence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an instance says of itself."""

    instance: str
    incarnation: str
    v: int = 1
    host: str = ""
    pid: int = 0
    machine: str = ""  # boot and PID namespace, in which `pid` and `start_ticks` name one process
    start_ticks: int = 0
    port: int = 0
    admin_port: int = 0
    version: str = ""
    started_ms: int = 0
    durability: str = ""
    sessions: int = 0
    nodes: int = 0
    jobs: int = 0
    draining: bool = False
    save_lag: tuple[int, ...] = ()  # buckets of chat, from accepted to saved


@dataclass(frozen=True, slots=True)
class Gone:
    """An instance that ended: how, and when by the clock of Redis."""

    instance: str
    how: str
    at_ms: int


_decode = msgspec.json.Decoder(Presence).decode


def channel_of(keys: Keys, instance: str) -> str:
    """Nothing is published to it. Each instance subscribes to its own, and Redis counts the subscribers."""
    return f"{keys.announcements}:{instance}"


class Instances:
    """Presence and takeover, on one prefix."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys

    async def open(self, instance: str, incarnation: str, group: str) -> str:
        """Open the inbox for `incarnation`; 'OK', or the incarnation that has it."""
        await self.redis.call("SADD", self.keys.instances, instance)
        opened, inbox = self.keys.open(instance), self.keys.inbox(instance)
        return _word(await OPEN_INBOX(self.redis, opened=opened, inbox=inbox, incarnation=incarnation, group=group))

    async def renew(self, presence: Presence, ttl_ms: int) -> bool:
        """Write presence, then read which incarnation has the inbox. False: the instance was declared dead."""
        data = msgspec.json.encode(presence)
        await asyncio.gather(
            self.redis.call("SET", self.keys.presence(presence.instance), data, "PX", ttl_ms),
            # The name each time: the takeover of an earlier incarnation removes it last, perhaps after we have opened.
            self.redis.call("SADD", self.keys.instances, presence.instance),
        )
        holder = await self.redis.call("GET", self.keys.open(presence.instance))
        return bool(holder == presence.incarnation.encode())

    async def presence(self, instance: str) -> Presence | None:
        return self.parse(await self.redis.call("GET", self.keys.presence(instance)))

    async def all(self) -> dict[str, Presence | None]:
        """Every known instance; None: no presence, so it is dead or was never quite born."""
        names = sorted(name.decode() for name in await self.redis.call("SMEMBERS", self.keys.instances))
        found = await asyncio.gather(*(self.redis.call("GET", self.keys.presence(name)) for name in names))
        return {name: self.parse(data) for name, data in zip(names, found, strict=True)}

    async def is_present(self, instance: str) -> bool:
        """Whether the presence key exists, also with a value of a later release that cannot be read here."""
        return bool(await self.redis.call("EXISTS", self.keys.presence(instance)))

    async def presence_and_ttl(self, instance: str) -> tuple[bytes | None, int]:
        """The raw presence and its TTL in ms, as PTTL returns it."""
        key = self.keys.presence(instance)
        data, ttl_ms = await asyncio.gather(self.redis.call("GET", key), self.redis.call("PTTL", key))
        return data, int(ttl_ms)

    async def drop_presence(self, instance: str, data: bytes) -> None:
        """Delete the presence if it is still `data`."""
        await DELETE_IF_EQUAL(self.redis, key=self.keys.presence(instance), value=data)

    async def withdraw_presence(self, instance: str, incarnation: str) -> None:
        """Delete the presence if `incarnation` wrote it."""
        data = await self.redis.call("GET", self.keys.presence(instance))
        if data is not None and incarnation.encode() in data:
            await self.drop_presence(instance, data)

    async def sessions_of(self, instance: str) -> list[str]:
        return [one.decode() for one in await self.redis.call("SMEMBERS", self.keys.sessions_of(instance))]

    async def nodes_of(self, instance: str) -> list[str]:
        return [one.decode() for one in await self.redis.call("SMEMBERS", self.keys.nodes_of(instance))]

    async def holder(self, instance: str) -> str | None:
        """The incarnation (or takeover mark) at the instance's inbox."""
        found = await self.redis.call("GET", self.keys.open(instance))
        return found.decode() if found is not None else None

    async def mark_takeover(self, instance: str, incarnation: str) -> str:
        opened = self.keys.open(instance)
        return _word(await MARK_TAKEOVER(self.redis, opened=opened, incarnation=incarnation, mark=MARK + incarnation))

    async def unmark_takeover(self, instance: str, incarnation: str) -> str:
        """The instance lives: give the inbox back."""
        opened = self.keys.open(instance)
        return _word(await MARK_TAKEOVER(self.redis, opened=opened, incarnation=MARK + incarnation, mark=incarnation))

    async def inherit(self, instance: str, incarnation: str) -> None:
        """Give an inbox that is marked for takeover, with its entries, to a new incarnation of the instance."""
        holder = await self.holder(instance)
        if holder is not None and holder.startswith(MARK):
            opened = self.keys.open(instance)
            await MARK_TAKEOVER(self.redis, opened=opened, incarnation=holder, mark=incarnation)

    async def lock_takeover(self, instance: str, by: str, ttl_ms: int) -> bool:
        return bool(await self.redis.call("SET", self.keys.takeover(instance), by, "NX", "PX", ttl_ms))

    async def renew_takeover(self, instance: str, by: str, ttl_ms: int) -> bool:
        return _word(await RENEW_IF_EQUAL(self.redis, key=self.keys.takeover(instance), value=by, ttl=ttl_ms)) == "OK"

    async def unlock_takeover(self, instance: str, by: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.takeover(instance), value=by)

    async def close(self, instance: str, holder: str) -> str:
        """Close the inbox if it is empty: 'OK', 'BUSY', 'OTHER' or 'NONE'."""
        keys = self.keys
        return _word(
            await CLOSE_INBOX(
                self.redis,
                opened=keys.open(instance),
                inbox=keys.inbox(instance),
                counts=keys.counts(instance),
                holder=holder,
            )
        )

    async def forget(self, instance: str, incarnation: str) -> None:
        """The last step of a clean end: delete what names the instance."""
        keys = self.keys
        for key in (keys.jobs_of(instance), keys.sessions_of(instance), keys.nodes_of(instance)):
            await self.redis.call("DEL", key)
        found = await self.presence(instance)
        if found is not None and found.incarnation == incarnation:
            await self.redis.call("DEL", keys.presence(instance))
        await self.strike_out(instance, LEFT)

    async def strike_out(self, instance: str, how: str) -> None:
        """Remove the name of an instance that ended. It is listed as gone first, so that it is always in a list."""
        now_ms, gone = await self.now_ms(), self.keys.instances_gone
        # In one flush: an instance that is killed in between would leave a key without a TTL.
        await asyncio.gather(
            self.redis.call("ZADD", gone, now_ms, f"{how} {instance}"),
            self.redis.call("ZREMRANGEBYSCORE", gone, "-inf", now_ms - GONE_MS),
            self.redis.call("PEXPIRE", gone, GONE_MS),
        )
        await self.redis.call("SREM", self.keys.instances, instance)

    async def gone(self) -> list[Gone]:
        """The instances that ended within `GONE_MS`, the last first; also those that are back."""
        since_ms = await self.now_ms() - GONE_MS
        command = ("ZREVRANGEBYSCORE", self.keys.instances_gone, "+inf", since_ms, "WITHSCORES")
        flat = await self.redis.call(*command)
        found: dict[str, Gone] = {}
        for member, at in zip(flat[::2], flat[1::2], strict=True):
            how, _, instance = member.decode().partition(" ")
            found.setdefault(instance, Gone(instance, how, int(float(at))))
        return list(found.values())

    async def answering(self, names: Iterable[str]) -> set[str]:
        """Those with an open connection to Redis: of a process that died, the system closes it at once."""
        channels = {channel_of(self.keys, name).encode(): name for name in names}
        if not channels:
            return set()
        counted = await self.redis.on_each("PUBSUB", "NUMSUB", *channels)
        return {channels[channel] for one in counted for channel, many in zip(one[::2], one[1::2], strict=True) if many}

    async def now_ms(self) -> int:
        """The time of Redis."""
        return max(int(seconds) * 1000 + int(micros) // 1000 for seconds, micros in await self.redis.on_each("TIME"))

    @staticmethod
    def parse(data: bytes | None) -> Presence | None:
        try:
            return _decode(data) if data is not None else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


def _word(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


# -- owners ----------------------------------------------------------------------------------------


CLAIM_NODE = Script.beside(__file__, "claim_node")

EPOCH_TTL_MS = 3_600_000

Standing = Literal["token", "anonymous", "unasked"]  # of a node; unasked: no node has to show a token


class NodeIdTaken(Exception):
    """An anonymous node claims the id of one that showed a token."""


class Owners:
    def __init__(self, redis: Redis, keys: Keys, ttl_ms: int) -> None:
        self.redis, self.keys, self.ttl_ms = redis, keys, ttl_ms

    async def claim_node(self, node: str, instance: str, standing: Standing = "unasked") -> int:
        """Own a node's socket; returns the epoch, which no other connection of the node has. Raises NodeIdTaken."""
        claimed = CLAIM_NODE(
            self.redis,
            owner=self.keys.node_owner(node),
            epoch=self.keys.node_epoch(node),
            named=self.keys.node_named(node),
            instance=instance,
            ttl=self.ttl_ms,
            epoch_ttl=EPOCH_TTL_MS,
            standing=standing,
        )
        if standing == "anonymous" and await claimed == b"TAKEN":
            raise NodeIdTaken(node)
        _, epoch = await asyncio.gather(self.redis.call("SADD", self.keys.nodes_of(instance), node), claimed)
        return int(epoch)

    async def leave_node(self, node: str, instance: str) -> None:
        await asyncio.gather(
            DELETE_IF_EQUAL(self.redis, key=self.keys.node_owner(node), value=instance),
            self.redis.call("SREM", self.keys.nodes_of(instance), node),
        )

    async def disown_node(self, node: str, instance: str) -> None:
        """Remove the owner of a node, if that is `instance`; the node stays in the instance's list."""
        await DELETE_IF_EQUAL(self.redis, key=self.keys.node_owner(node), value=instance)

    async def claim_session(self, session: str, instance: str) -> None:
        await asyncio.gather(
            self.redis.call("SADD", self.keys.sessions_of(instance), session),
            self.redis.call("SET", self.keys.session_owner(session), instance, "PX", self.ttl_ms),
        )

    async def index_session(self, session: str, instance: str) -> None:
        """So that a takeover finds it. The resume has written the owner; a second write could overwrite a later one."""
        await self.redis.call("SADD", self.keys.sessions_of(instance), session)

    async def leave_session(self, session: str, instance: str) -> None:
        await asyncio.gather(
            DELETE_IF_EQUAL(self.redis, key=self.keys.session_owner(session), value=instance),
            self.redis.call("SREM", self.keys.sessions_of(instance), session),
        )

    async def node_owner(self, node: str) -> str | None:
        found = await self.redis.call("GET", self.keys.node_owner(node))
        return found.decode() if found is not None else None

    async def session_owner(self, session: str) -> str | None:
        found = await self.redis.call("GET", self.keys.session_owner(session))
        return found.decode() if found is not None else None

    async def renew(
        self, instance: str, nodes: Iterable[str], sessions: Iterable[str], named: Iterable[str] = ()
    ) -> None:
        """Prolong every owner key we hold, and write again what a Redis that came back empty has forgotten.

        What names another by now is left to it: ours is the older socket. `named`: the nodes that showed a token.
        """
        marks = [self.keys.node_named(node) for node in named]
        await in_slices(marks, lambda key: self.redis.call("SET", key, instance, "PX", self.ttl_ms))
        owned = [self.keys.node_owner(node) for node in nodes] + [self.keys.session_owner(one) for one in sessions]
        kept = await in_slices(owned, lambda key: RENEW_IF_EQUAL(self.redis, key=key, value=instance, ttl=self.ttl_ms))
        lost = [key for key, word in zip(owned, kept, strict=True) if word == b"NONE"]
        await in_slices(lost, lambda key: self.redis.call("SET", key, instance, "NX", "PX", self.ttl_ms))
