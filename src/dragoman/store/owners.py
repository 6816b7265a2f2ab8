"""Owners: the instance that has the connection of a node, and the instance that has a session.

An owner counts only while its instance's presence does; the TTL here merely clears what the dead left.
An instance that closes a connection deletes the owner key only if it names that instance.
"""

import asyncio
from collections.abc import Iterable
from typing import Literal

from dragoman.store.instances import DELETE_IF_EQUAL, RENEW_IF_EQUAL
from dragoman.store.interface import in_slices
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

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
