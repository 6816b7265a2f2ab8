"""The shards of chat in Redis: one slot each, with its two streams, its counts, its claims and its lease.

    accept ─▶ accepted ─save stage─▶ (a row)
                             └─▶ dead

Earlier releases moved entries from `accepted` to `to_save` before they saved them. What such a holder left there is
older than anything in `accepted`, so the next holder saves it first.

Every script that moves an entry compares the lease first, so a holder that was overtaken changes nothing. At any
time: accepted = saved + dead + backlog, kept by the same scripts that move the entries.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.domain.chat.shards import shard_of, tag
from dragoman.domain.limits.rates import DAY_S, cost
from dragoman.store.chat.entries import AcceptReply, ChatEntry, SavedEntry, ShardStatus, Unreadable, sender_of
from dragoman.store.instances import DELETE_IF_EQUAL, RENEW_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, Redis
from dragoman.store.script import Script

ACCEPT_MESSAGE = Script.beside(__file__, "accept_message")
SPEND_BYTES = Script.beside(__file__, "spend_bytes")
REMEMBER_MESSAGE = Script.beside(__file__, "remember_message")
RAISE_LAST_ID = Script.beside(__file__, "raise_last_id")
TAKE_LEASE = Script.beside(__file__, "take_lease")
FINISH_SAVED = Script.beside(__file__, "finish_saved")
MOVE_TO_DEAD = Script.beside(__file__, "move_to_dead")
TRIM_DEAD_LETTERS = Script.beside(__file__, "trim_dead_letters")

PAGE = 200  # entries of a stream that are searched at a time
DAY_MS = int(DAY_S * 1000)


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Streams and groups as configured; the streams' names without the shard's tag."""

    accepted: str
    to_save: str
    deliver_group: str
    save_group: str


@dataclass(frozen=True, slots=True)
class DeadLetterLimits:
    """Of one shard."""

    max_letters: int = 1000
    max_age_ms: int = 30 * 86_400_000


class Shards:
    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        names: StreamNames,
        shards: int,
        claim_ttl_ms: int,
        dead_letter_limits: DeadLetterLimits | None = None,
        bytes_per_day: int = 0,
    ) -> None:
        self.redis, self.keys, self.names, self.count, self.claim_ttl_ms = redis, keys, names, shards, claim_ttl_ms
        self.dead_letter_limits, self.bytes_per_day = dead_letter_limits or DeadLetterLimits(), bytes_per_day
        self._tags = [tag(shard) for shard in range(shards)]
        self._fixed = [
            (self.accepted(shard), keys.shard(self._tags[shard]), keys.unsaved(self._tags[shard]))
            for shard in range(shards)
        ]

    def shard_of(self, user: int) -> int:
        return shard_of(user, self.count)

    def accepted(self, shard: int) -> str:
        return f"{self.names.accepted}:{{{self._tags[shard]}}}"

    def to_save(self, shard: int) -> str:
        return f"{self.names.to_save}:{{{self._tags[shard]}}}"

    def dead(self, shard: int) -> str:
        return self.keys.dead(self._tags[shard])

    # -- accepting -------------------------------------------------------------------------------

    async def accept(
        self, message: ChatEntry, digest: str, share: int, redis: Redis | None = None, *, without_quota: bool = False
    ) -> tuple[AcceptReply, int]:
        """Claim and append in one step; the number is the serverMsgId, the backlog, the bytes of the sender's day or
        the shard's last id. `without_quota`: the sender's quota does not count."""
        shard = self.shard_of(message.sender)
        accepted, counts, unsaved = self._fixed[shard]
        word, number = await ACCEPT_MESSAGE(
            redis or self.redis,
            claim=self.keys.claim(self._tags[shard], message.sender, message.client_msg_id),
            accepted=accepted,
            shard=counts,
            unsaved=unsaved,
            id=message.id,
            to=message.to,
            digest=digest,
            sender=message.sender,
            share=share,
            ttl=self.claim_ttl_ms,
            spent=self.keys.spent(self._tags[shard], message.sender),
            size=cost(message.body),
            quota=0 if without_quota else self.bytes_per_day,
            day=DAY_MS,
            fields=message.fields(),
        )
        return AcceptReply(word.decode()), int(number)

    async def spend(self, sender: int, size: int) -> tuple[int, float]:
        """The sender stored so many bytes past `accept`; the bytes of its day, and the seconds that are left of it."""
        used, left_ms = await SPEND_BYTES(self.redis, spent=self._spent(sender), size=size, day=DAY_MS)
        return int(used), max(int(left_ms), 0) / 1000

    async def spent(self, sender: int) -> tuple[int, float]:
        """The same without storing anything."""
        key = self._spent(sender)
        used, left_ms = await asyncio.gather(self.redis.call("GET", key), self.redis.call("PTTL", key))
        return int(used or 0), max(int(left_ms), 0) / 1000

    def _spent(self, sender: int) -> str:
        return self.keys.spent(self._tags[self.shard_of(sender)], sender)

    def remember(self, sender: int, client_msg_id: str, id: int, to: int, digest: str) -> "asyncio.Future[bytes]":
        """A message that was saved at once: its claim, and its id. On its way when this returns."""
        shard = self.shard_of(sender)
        claim, counts = self.keys.claim(self._tags[shard], sender, client_msg_id), self._fixed[shard][1]
        return REMEMBER_MESSAGE(
            self.redis, claim=claim, shard=counts, id=id, to=to, digest=digest, ttl=self.claim_ttl_ms
        )

    def raise_last_id(self, sender: int, id: int) -> "asyncio.Future[bytes]":
        """The same without a claim."""
        return RAISE_LAST_ID(self.redis, shard=self._fixed[self.shard_of(sender)][1], id=id)

    async def unsaved(self, user: int) -> int:
        """How many accepted messages of this sender are not rows yet."""
        return int(await self.redis.call("HGET", self._fixed[self.shard_of(user)][2], user) or 0)

    async def last_id(self, user: int) -> int:
        """The highest serverMsgId in the shard of this sender, as far as Redis knows."""
        return int(await self.redis.call("HGET", self._fixed[self.shard_of(user)][1], "last_id") or 0)

    async def unsaved_body(self, sender: int, id: int) -> str | None:
        """The body of an accepted message that is not a row yet.

        Entries go from `accepted` to `to_save`, and both are in the order of ids: what is in neither is a row or dead.
        """
        shard = self.shard_of(sender)
        for stream in (self.accepted(shard), self.to_save(shard)):
            start = "-"
            while rows := await self.redis.call("XRANGE", stream, start, "+", "COUNT", PAGE):
                for row in rows:
                    entry = ChatEntry.parse(*row)
                    if isinstance(entry, ChatEntry) and entry.id == id:
                        return entry.body
                start = f"({rows[-1][0].decode()}"
        return None

    async def claim(self, sender: int, client_msg_id: str) -> dict[str, str]:
        key = self.keys.claim(self._tags[self.shard_of(sender)], sender, client_msg_id)
        flat = await self.redis.call("HGETALL", key)
        return {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}

    async def drop_claims(self, sender: int, client_msg_ids: Sequence[str]) -> int:
        """How many there were."""
        name, dropped = self._tags[self.shard_of(sender)], 0
        for first in range(0, len(client_msg_ids), PAGE):
            keys = [self.keys.claim(name, sender, one) for one in client_msg_ids[first : first + PAGE]]
            dropped += int(await self.redis.call("UNLINK", *keys))
        return dropped

    async def has_entries(self, sender: int) -> bool:
        """Whether a message of it is in a stream of its shard."""
        shard = self.shard_of(sender)
        for stream in (self.accepted(shard), self.to_save(shard)):
            start = "-"
            while rows := await self.redis.call("XRANGE", stream, start, "+", "COUNT", PAGE):
                if any(sender_of(fields) == sender for _, fields in rows):
                    return True
                start = f"({rows[-1][0].decode()}"
        return False

    # -- the lease -------------------------------------------------------------------------------

    async def take_lease(self, shard: int, instance: str, fence: int, ttl_ms: int) -> int:
        """The fence of a lease that is ours now, or 0."""
        keys, name = self.keys, self._tags[shard]
        lease, counts = keys.lease(name), keys.shard(name)
        reply = await TAKE_LEASE(self.redis, lease=lease, shard=counts, instance=instance, fence=fence, ttl=ttl_ms)
        return int(reply[1]) if reply[0] == b"OK" else 0

    async def renew_lease(self, shard: int, holder: str, ttl_ms: int) -> bool:
        lease = self.keys.lease(self._tags[shard])
        return bool(await RENEW_IF_EQUAL(self.redis, key=lease, value=holder, ttl=ttl_ms) == b"OK")

    async def release_lease(self, shard: int, holder: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.lease(self._tags[shard]), value=holder)

    # -- the streams -----------------------------------------------------------------------------

    def reader(self, shard: int) -> Dedicated:
        return Dedicated(self.redis, self.accepted(shard), f"chat-reader-{shard}")

    async def next_entries(
        self, reader: Dedicated, stream: str, after: str, count: int, block_ms: int = 0
    ) -> list[ChatEntry | Unreadable]:
        """The entries after an id, waiting for the first; with `block_ms` 0 those that are there.

        A shard is read by position: reading takes nothing from the stream, and entries stay until they are finished. So
        a holder that was overtaken and reads on takes nothing away from the next one.
        """
        block = ("BLOCK", block_ms) if block_ms else ()
        command = ("XREAD", "COUNT", count, *block, "STREAMS", stream, after)
        found = await reader.call(*command, patience_s=block_ms / 1000 + 5)
        return [ChatEntry.parse(entry, fields) for entry, fields in found[0][1]] if found else []

    async def finish_saved(
        self, shard: int, holder: str, stream: str, rows: Sequence[SavedEntry]
    ) -> list[SavedEntry] | None:
        """Delete entries that are rows. Returns those whose sender has repeated the message since, or None if fenced.

        Those that stay have their current number of repeats.
        """
        name, keys = self._tags[shard], self.keys
        reply = await FINISH_SAVED(
            self.redis,
            lease=keys.lease(name),
            stream=stream,
            shard=keys.shard(name),
            unsaved=keys.unsaved(name),
            claims=[keys.claim(name, row.entry.sender, row.entry.client_msg_id) for row in rows],
            holder=holder,
            entries=[part for row in rows for part in row.parts()],
        )
        if reply[0] != b"OK":
            return None
        stay = zip(reply[1::2], reply[2::2], strict=True)
        return [replace(rows[int(number) - 1], repeats=int(repeats)) for number, repeats in stay]

    async def move_to_dead(
        self,
        shard: int,
        holder: str,
        stream: str,
        what: ChatEntry | Unreadable,
        reason: str,
        tries: int,
        *,
        notified: int = 0,
        keep: bool = True,
    ) -> int | None:
        """One entry becomes a dead letter, unless its sender has asked again more often than `asked`.

        0: it is one, or was dealt with before; else how often its sender has asked. None when fenced. Without `keep`
        it is dropped instead.
        """
        name, keys = self._tags[shard], self.keys
        if isinstance(what, ChatEntry):
            sender, client, id = str(what.sender), what.client_msg_id, str(what.id)
        else:
            sender, client = what.fields.get("fromUserId", "?"), what.fields.get("clientMsgId", "?")
            id = what.fields.get("serverMsgId", "?")
        reply = await MOVE_TO_DEAD(
            self.redis,
            lease=keys.lease(name),
            source=stream,
            dead=self.dead(shard),
            shard=keys.shard(name),
            unsaved=keys.unsaved(name),
            claim=keys.claim(name, sender, client),
            holder=holder,
            entry=what.entry,
            sender=sender,
            id=id,
            reason=reason[:500],
            tries=tries,
            keep=int(keep),
            notified=notified,
        )
        match reply:
            case [b"REPEATED", repeats]:
                return int(repeats)
            case [b"FENCED"]:
                return None
        if keep:
            await self.trim_dead_letters(shard)
        return 0

    async def trim_dead_letters(self, shard: int) -> int:
        """Delete dead letters that are too old or too many; how many were."""
        keys, limits = {"dead": self.dead(shard), "shard": self._fixed[shard][1]}, self.dead_letter_limits
        trimmed = TRIM_DEAD_LETTERS(self.redis, **keys, max_letters=limits.max_letters, max_age=limits.max_age_ms)
        return int(await trimmed)

    # -- what can be seen ------------------------------------------------------------------------

    async def status(self, shard: int) -> ShardStatus:
        name, call = self._tags[shard], self.redis.call
        streams = (self.accepted(shard), self.to_save(shard))
        futures = [
            call("HMGET", self.keys.shard(name), "backlog", "accepted", "saved", "dead", "fence", "dropped"),
            call("GET", self.keys.lease(name)),
            *(call("XLEN", stream) for stream in (*streams, self.dead(shard))),
            *(call("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams),
        ]
        counts, holder, accepted_len, to_save_len, dead_len, *firsts = await asyncio.gather(*futures)
        backlog, accepted_ever, saved, dead, fence, dropped = (int(count or 0) for count in counts)
        return ShardStatus(
            backlog, accepted_ever, saved, dead, fence, (holder or b"").decode(), accepted_len, to_save_len, dead_len,
            dropped, _oldest(firsts),
        )  # fmt: skip


def _oldest(firsts: Sequence[Sequence[Any]]) -> int:
    """Of the first entry of each stream: ids begin with the ms of Redis."""
    return min((int(rows[0][0].partition(b"-")[0]) for rows in firsts if rows), default=0)
