"""What a session that can resume leaves in Redis: its state, what its listener has not confirmed, what came late.

    state   epoch, hash of the token, languages, next_index, audio_seq, audio_split, the window with its open indexes
    outbox  every numbered message, before it is written to the socket; freed by the client's last_seq
    parked  results that arrived while no owner could be reached

All in the session's slot, together with its owner key. The epoch fences: whoever had the session before the
last resume can write nothing any more.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

OPEN_SESSION = Script.beside(__file__, "open_session")
WRITE_SESSION = Script.beside(__file__, "write_session")
TRIM_OUTBOX = Script.beside(__file__, "trim_outbox")
RESUME_SESSION = Script.beside(__file__, "resume_session")
PARK_RESULT = Script.beside(__file__, "park_result")
READ_PARKED = Script.beside(__file__, "read_parked")
DELETE_PARKED = Script.beside(__file__, "delete_parked")
END_SESSION = Script.beside(__file__, "end_session")
START_GRACE = Script.beside(__file__, "start_grace")
LIST_EXPIRED_GRACE = Script.beside(__file__, "list_expired_grace")

# Names of fields of the state; after the last two comes an index. No other name has a colon (write_session.lua).
EXPECTED, SETTLED, OPENED = "expected", "settled:", "open:"
AUDIO, SPLIT = "audio_seq", "audio_split"
MAX_ENTRIES = 256
MAX_BYTES = 4 * 1024 * 1024
MAX_PARKED = 1024


@dataclass(frozen=True, slots=True)
class Resumed:
    epoch: int
    former_owner: str
    state: dict[str, str]
    outbox: list[bytes]  # what the client has not had yet, in order

    @property
    def window(self) -> tuple[int, dict[int, str]]:
        return window_of(self.state)

    @property
    def open(self) -> dict[int, tuple[str, str]]:
        return open_of(self.state)


def window_fields(
    expected: int, settled: Mapping[int, str], opened: Mapping[int, tuple[str, str]]
) -> dict[str, str | int]:
    """The release window as fields of the state. Each index has one of its own, so that a change is written alone."""
    fields: dict[str, str | int] = {EXPECTED: expected}
    fields |= {f"{SETTLED}{index}": how for index, how in settled.items()}
    fields |= {f"{OPENED}{index}": f"{job} {trace}" for index, (job, trace) in opened.items()}
    return fields


def audio_fields(seq: int | None, split_seq: int | None, split_bytes: int) -> dict[str, str | int]:
    """The last chunk that is settled, and how much of the one after it is."""
    fields: dict[str, str | int] = {} if seq is None else {AUDIO: seq}
    return fields | ({} if split_seq is None else {SPLIT: f"{split_seq} {split_bytes}"})


def audio_of(state: Mapping[str, str]) -> tuple[int | None, int | None, int]:
    seq = int(state[AUDIO]) if AUDIO in state else None
    split_seq, split_bytes = map(int, state[SPLIT].split()) if SPLIT in state else (None, 0)
    return seq, split_seq, split_bytes


def window_of(state: Mapping[str, str]) -> tuple[int, dict[int, str]]:
    """The lowest index that is not settled, and how those above it are."""
    settled = {int(name[len(SETTLED) :]): how for name, how in state.items() if name.startswith(SETTLED)}
    return int(state.get(EXPECTED, 0)), settled


def open_of(state: Mapping[str, str]) -> dict[int, tuple[str, str]]:
    """Job and trace of every index that was cut and is not settled."""
    expected, settled = window_of(state)
    left = {int(name[len(OPENED) :]): jobs for name, jobs in state.items() if name.startswith(OPENED)}
    jobs = {index: job.partition(" ") for index, job in sorted(left.items())}
    # An index is settled a moment before it is no longer open.
    return {
        index: (job, trace) for index, (job, _, trace) in jobs.items() if index >= expected and index not in settled
    }


def hashed(token: str) -> str:
    """Only hashes of tokens are stored: a reader of Redis cannot take sessions over."""
    return hashlib.sha256(token.encode()).hexdigest()


class ResumableSessions:
    def __init__(self, redis: Redis, keys: Keys, *, owner_ttl_ms: int, grace_ms: int) -> None:
        self.redis, self.keys, self.owner_ttl_ms, self.grace_ms = redis, keys, owner_ttl_ms, grace_ms
        # While it is owned its TTL is renewed with the owner key; after that the grace must be left of it.
        self.ttl_ms = owner_ttl_ms + grace_ms

    async def open(self, session: str, token: str, subject: str, fields: Mapping[str, Any]) -> None:
        flat = [part for pair in fields.items() for part in pair]
        state = self.keys.session_state(session)
        await OPEN_SESSION(self.redis, state=state, token=hashed(token), subject=subject, ttl=self.ttl_ms, fields=flat)

    def write(
        self,
        session: str,
        epoch: int,
        seq: int = 0,
        frame: bytes = b"",
        fields: Mapping[str, Any] | None = None,
        version: int = 0,
        after: int = 0,
        second: bytes = b"",
        base: int = 0,
        gone: Sequence[str] = (),
        whole: bool = False,
    ) -> "asyncio.Future[bytes]":
        """What changed in the state, and a message if `seq` is given, in one step: b'OK' or b'FENCED'. A `version` not
        above the one that is there is passed over. Nothing is written, and the answer is b'EARLY', if message `after`
        or the version `base` is missing. `second` is the message `seq` + 1. `gone` are fields that are no more; with
        `whole`, all fields of the window that are not given."""
        return WRITE_SESSION(
            self.redis,
            state=self.keys.session_state(session),
            outbox=self.keys.session_outbox(session),
            epoch=epoch,
            ttl=self.ttl_ms,
            max_entries=MAX_ENTRIES,
            max_bytes=MAX_BYTES,
            seq=seq,
            frame=frame,
            second=second,
            after=after,
            base=base,
            version=version,
            whole=int(whole),
            gone=len(gone),
            fields=[*gone, *(part for pair in (fields or {}).items() for part in pair)],
        )

    def free(self, session: str, epoch: int, last_seq: int) -> "asyncio.Future[Any]":
        return TRIM_OUTBOX(
            self.redis,
            state=self.keys.session_state(session),
            outbox=self.keys.session_outbox(session),
            epoch=epoch,
            last_seq=last_seq,
            ttl=self.ttl_ms,
        )

    async def resume(self, session: str, token: str, subject: str, last_seq: int, instance: str) -> Resumed | str:
        """Take the session over, or a word: NONE, DENIED, TOO_OLD."""
        keys = self.keys
        reply = await RESUME_SESSION(
            self.redis,
            state=keys.session_state(session),
            owner=keys.session_owner(session),
            outbox=keys.session_outbox(session),
            token=hashed(token),
            subject=subject,
            last_seq=last_seq,
            instance=instance,
            owner_ttl=self.owner_ttl_ms,
            ttl=self.ttl_ms,
        )
        if reply[0] != b"OK":
            return str(reply[0].decode())
        _, epoch, before, flat, missed = reply
        state = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
        return Resumed(int(epoch), before.decode(), state, missed)

    async def parked(self, session: str, epoch: int) -> list[bytes] | None:
        """Results that arrived while no owner could be reached; None if the session was resumed elsewhere since."""
        state, parked = self.keys.session_state(session), self.keys.session_parked(session)
        found = await READ_PARKED(self.redis, state=state, parked=parked, epoch=epoch)
        return None if found == b"FENCED" else found

    async def unpark(self, session: str, epoch: int, handled: list[bytes]) -> None:
        """Delete parked results whose outcome is written."""
        state, parked = self.keys.session_state(session), self.keys.session_parked(session)
        await DELETE_PARKED(self.redis, state=state, parked=parked, epoch=epoch, handled=handled)

    async def park(self, session: str, data: bytes, tried: str = "") -> str:
        """A word: OK, OWNED (by another than was `tried`: look up the owner again), FULL, NONE."""
        keys = self.keys
        reply = await PARK_RESULT(
            self.redis,
            state=keys.session_state(session),
            owner=keys.session_owner(session),
            parked=keys.session_parked(session),
            data=data,
            tried=tried,
            max_parked=MAX_PARKED,
            ttl=self.ttl_ms,
        )
        return str(reply.decode())

    async def epoch(self, session: str) -> int | None:
        """None: it cannot resume, or is over."""
        found = await self.redis.call("HGET", self.keys.session_state(session), "epoch")
        return int(found) if found is not None else None

    async def keep(self, session: str) -> None:
        """A session may be silent for an hour and be resumed after."""
        await asyncio.gather(
            self.redis.call("PEXPIRE", self.keys.session_state(session), self.ttl_ms),
            self.redis.call("PEXPIRE", self.keys.session_outbox(session), self.ttl_ms),
        )

    async def end(self, session: str, epoch: int) -> bool:
        keys = self.keys
        reply = await END_SESSION(
            self.redis,
            state=keys.session_state(session),
            outbox=keys.session_outbox(session),
            parked=keys.session_parked(session),
            epoch=epoch,
        )
        return bool(reply == b"OK")

    # -- for reports -----------------------------------------------------------------------------

    async def state(self, session: str) -> dict[str, str]:
        """Every field of the session's state; empty for a session that cannot resume."""
        flat = await self.redis.call("HGETALL", self.keys.session_state(session))
        return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}

    async def parked_count(self, session: str) -> int:
        return int(await self.redis.call("LLEN", self.keys.session_parked(session)))

    async def in_grace(self) -> set[str]:
        members = await self.redis.call("ZRANGE", self.keys.sessions_grace, 0, -1)
        return {member.decode().rpartition("|")[0] for member in members}

    # -- sessions without an owner ---------------------------------------------------------------

    async def end_unowned(self, session: str) -> bool:
        """End a session that waits for its client. False: there is none, or it was resumed at the same moment."""
        epoch = await self.redis.call("HGET", self.keys.session_state(session), "epoch")
        return epoch is not None and await self.end(session, int(epoch))

    async def leave_behind(self, session: str, epoch: int) -> None:
        """It has no owner now. If it is not resumed within its grace period, an instance ends it."""
        await START_GRACE(self.redis, grace=self.keys.sessions_grace, member=f"{session}|{epoch}", after=self.grace_ms)

    async def grant_grace(self, session: str, dead: str) -> str:
        """Its owner died: leave it behind. A word: OK, OWNED (it goes on elsewhere), NONE (it cannot resume)."""
        # The epoch is read first: a later resume raises it, and the grace period ends only this epoch.
        epoch = await self.epoch(session)
        owner = await self.redis.call("GET", self.keys.session_owner(session))
        if owner is not None and owner.decode() != dead:
            return "OWNED"
        if epoch is None:
            return "NONE"
        await self.leave_behind(session, epoch)
        return "OK"

    async def overdue(self, limit: int = 100) -> list[tuple[str, int]]:
        """Sessions whose grace is over, with the epoch they had: a later one means that they were resumed."""
        members = await LIST_EXPIRED_GRACE(self.redis, grace=self.keys.sessions_grace, limit=limit)
        pairs = (member.decode().rpartition("|") for member in members)
        return [(session, int(epoch)) for session, _, epoch in pairs]

    async def settled(self, session: str, epoch: int) -> None:
        await self.redis.call("ZREM", self.keys.sessions_grace, f"{session}|{epoch}")
