"""Slots of nodes: taken with an expiry, renewed by the job's driver, released exactly once.

Python chose the node on its own view; whether a slot is really free is decided here, by one script a
node. What its driver stops renewing — because it died — comes back by itself.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

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
