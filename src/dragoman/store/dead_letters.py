"""Dead letters of inboxes, for operators: list, show, replay, drop.

A replay is a push like any other: to the instance the letter was for if it still reads its inbox, otherwise
to one that does and that re-resolves the owner. The letter goes when the push has succeeded, so a crash in
between sends it twice rather than never. What a letter carries may be megabytes: only `get` brings it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.protocol.codes import ProtocolError
from dragoman.protocol.peer import decode_inbox
from dragoman.store.inbox import Inboxes, PushReply
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

PAGE = 20


class CannotReplay(Exception):
    """It can only be dropped; `str()` says why."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    id: str
    instance: str
    kind: str
    reason: str
    deliveries: int
    trace_id: str
    added_ms: int
    dead_ms: int
    size: int
    data: bytes

    @classmethod
    def parse(cls, instance: str, id: bytes, fields: Sequence[bytes]) -> "DeadLetter":
        pairs = {k.decode(errors="replace"): v for k, v in zip(fields[::2], fields[1::2], strict=False)}

        def text(name: str) -> str:
            return pairs.get(name, b"").decode(errors="replace")

        def number(name: str) -> int:
            return int(text(name)) if text(name).isdecimal() else 0

        return cls(
            id.decode(),
            instance,
            text("type"),
            text("reason"),
            number("deliveries"),
            text("trace_id"),
            number("added_ms"),
            number("dead_ms"),
            number("size"),
            pairs.get("data", b""),
        )


class InboxDeadLetters:
    def __init__(self, redis: Redis, keys: Keys, inboxes: Inboxes) -> None:
        self.redis, self.keys, self.inboxes = redis, keys, inboxes

    async def instances(self) -> list[str]:
        """The instances that have letters, dead ones included."""
        return sorted(name.decode() for name in await self.redis.call("SMEMBERS", self.keys.dlq_instances))

    async def counts(self) -> dict[str, int]:
        """How many each has. One that is named without having any is not named any more."""
        names = await self.instances()
        found = await asyncio.gather(*(self.redis.call("XLEN", self.keys.dlq(name)) for name in names))
        for name, count in zip(names, found, strict=True):
            if not count:
                await self._forget(name)
        return {name: int(count) for name, count in zip(names, found, strict=True) if count}

    async def list(self, instance: str, count: int = 100, after: str = "") -> list[DeadLetter]:
        """The oldest ones, or the oldest after one; without their data."""
        found: list[DeadLetter] = []
        while len(found) < count:
            page, start = min(PAGE, count - len(found)), f"({after}" if after else "-"
            rows = await self.redis.call("XRANGE", self.keys.dlq(instance), start, "+", "COUNT", page)
            found += (replace(DeadLetter.parse(instance, id, fields), data=b"") for id, fields in rows)
            if len(rows) < page:
                break
            after = found[-1].id
        return found

    async def get(self, instance: str, id: str) -> DeadLetter | None:
        rows = await self.redis.call("XRANGE", self.keys.dlq(instance), id, id)
        return DeadLetter.parse(instance, *rows[0]) if rows else None

    async def replay(self, letter: DeadLetter, otherwise: str) -> PushReply:
        """Send it again, to its instance or `otherwise`; it is gone from the letters only when that is OK."""
        try:
            decode_inbox(letter.data)
        except ProtocolError as error:
            raise CannotReplay(error.message) from None
        verdict = await self.inboxes.push(letter.instance, letter.kind, letter.data, letter.trace_id)
        if verdict is PushReply.GONE and otherwise != letter.instance:
            verdict = await self.inboxes.push(otherwise, letter.kind, letter.data, letter.trace_id)
        if verdict is PushReply.OK:
            await self.drop(letter.instance, letter.id)
        return verdict

    async def drop(self, instance: str, id: str) -> bool:
        gone = bool(await self.redis.call("XDEL", self.keys.dlq(instance), id))
        if not await self.redis.call("XLEN", self.keys.dlq(instance)):
            await self._forget(instance)
        return gone

    async def _forget(self, instance: str) -> None:
        """Take an instance without letters off the index."""
        await self.redis.call("SREM", self.keys.dlq_instances, instance)
        # One may have been added meanwhile; then the index must name it again.
        if await self.redis.call("XLEN", self.keys.dlq(instance)):
            await self.redis.call("SADD", self.keys.dlq_instances, instance)
