"""Jobs in Redis: the state machine of `domain/job.py`, one script call a step, and the binding of requests.

A request (session, utterance, target) is bound to one job however many instances create it at the same
moment: a lock for the time of creation, then a binding that outlives the job. The lock's holder is named
in it, so that one whose lock has expired cannot release the lock of another.

The last jobs are listed, for people: that list may miss one, and names jobs that are gone already.

The node of a turn has its literal names. `scheduler:turn:<turn>` has one field, `affinity_node_id`: written once by the
first job of a turn that continues, read once by an instance that takes the turn over, deleted when the turn ends. No
TTL, no fallback. `scheduler:session:<session>` has one field, `current_turn_id`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from time import time
from typing import Any

import msgspec

from dragoman.domain.job import OUTCOME_OF, Event, Outcome, Reply
from dragoman.store.instances import DELETE_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

CREATE_JOB = Script.beside(__file__, "create_job")
ADVANCE_JOB = Script.beside(__file__, "advance_job")
DRIVE_JOB = Script.beside(__file__, "drive_job")
NOTE_LATE_RESULT = Script.beside(__file__, "note_late_result")
NOTE_RELEASE_STATE = Script.beside(__file__, "note_release_state")

LOCK_MS = 2000
JOB_TTL_MS = 3_600_000
MAX_RECENT = 10_000
TRIM_EVERY = 128
LISTED = (
    "state", "outcome", "code", "attempt", "node_id", "session_id", "utterance_index", "turn_id", "src_lang",
    "tgt_lang", "driver", "created_ms", "dispatched_ms", "finished_ms", "waited_ms", "tenant", "release_state",
    "text_kind",
)  # fmt: skip


_OF_ATTEMPT = re.compile(r"attempt_(\d+)_(node_id|reason|dispatched_ms|ended_ms)")


def with_attempts(record: Mapping[str, str]) -> dict[str, Any]:
    """The record with `attempts`: where each attempt that was taken back went, when, and why it ended; in order."""
    shown: dict[str, Any] = {}
    attempts: dict[int, dict[str, str]] = {}
    for name, value in record.items():
        if (found := _OF_ATTEMPT.fullmatch(name)) is not None:
            attempts.setdefault(int(found[1]), {"attempt": found[1]})[found[2]] = value
        else:
            shown[name] = value
    if attempts:
        shown["attempts"] = [attempts[number] for number in sorted(attempts)]
    return shown


class Binding(msgspec.Struct, frozen=True):
    job_id: str
    driver: str
    v: int = 1


_decode_binding = msgspec.json.Decoder(Binding).decode


class Jobs:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys
        self._noted = 0

    # -- requests -------------------------------------------------------------------------------

    def binding(self, request: str) -> "asyncio.Future[bytes | None]":
        return self.redis.call("GET", self.keys.request_binding(request))

    def lock(self, request: str, job: str) -> "asyncio.Future[bytes | None]":
        """b'OK', or None if another instance is creating this request."""
        return self.redis.call("SET", self.keys.request_lock(request), job, "NX", "PX", LOCK_MS)

    async def has_lock(self, request: str, job: str) -> bool:
        return bool(await self.redis.call("GET", self.keys.request_lock(request)) == job.encode())

    def unlock(self, request: str, job: str) -> "asyncio.Future[bytes]":
        return DELETE_IF_EQUAL(self.redis, key=self.keys.request_lock(request), value=job)

    def bind(self, request: str, binding: Binding) -> "asyncio.Future[bytes | None]":
        """b'OK', or None when it is bound already."""
        data = msgspec.json.encode(binding)
        return self.redis.call("SET", self.keys.request_binding(request), data, "NX", "PX", JOB_TTL_MS)

    @staticmethod
    def parse_binding(data: bytes | None) -> Binding | None:
        try:
            return _decode_binding(data) if data is not None else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    # -- the job itself -------------------------------------------------------------------------

    def create(
        self, job: str, fields: Mapping[str, Any], node: str = "", epoch: int | str = ""
    ) -> "asyncio.Future[bytes]":
        """CREATED, or DISPATCHED at once when `node` is given: 'OK', 'ALREADY' or 'ENDED'."""
        flat = [part for pair in fields.items() for part in pair]
        return CREATE_JOB(self.redis, job=self.keys.job(job), node=node, epoch=epoch, ttl=JOB_TTL_MS, fields=flat)

    async def advance(
        self,
        job: str,
        event: Event,
        *,
        attempt: int | None,
        node: str = "",
        outcome: Outcome | None = None,
        code: str = "",
        **fields: Any,
    ) -> Reply:
        """One step of the table; `fields` are written when it takes effect.

        `outcome` defaults to what the event means: no job ends without one.
        """
        started = self.advancing(job, event, attempt=attempt, node=node, outcome=outcome, code=code, **fields)
        return Reply((await started).decode())

    def advancing(
        self,
        job: str,
        event: Event,
        *,
        attempt: int | None,
        node: str = "",
        outcome: Outcome | None = None,
        code: str = "",
        **fields: Any,
    ) -> "asyncio.Future[bytes]":
        """The same, started: for a caller that does not wait, or sends more in the same flush."""
        outcome = outcome or OUTCOME_OF.get(event)
        return ADVANCE_JOB(
            self.redis,
            job=self.keys.job(job),
            event=event,
            attempt="" if attempt is None else attempt,
            node=node,
            outcome=outcome or "",
            code=code,
            ttl=JOB_TTL_MS,
            fields=[part for pair in fields.items() for part in pair],
        )

    async def late_result(self, job: str, node: str) -> bool:
        """Note a result of a job that was skipped, failed or expired before; False if it is none of those."""
        return bool(await NOTE_LATE_RESULT(self.redis, job=self.keys.job(job), node=node) == b"LATE")

    async def note_release_state(self, job: str, state: str) -> bool:
        """Write how the release window settled the job's index; False if the job is not known."""
        return bool(await NOTE_RELEASE_STATE(self.redis, job=self.keys.job(job), state=state) == b"OK")

    async def get(self, job: str) -> dict[str, str] | None:
        flat = await self.redis.call("HGETALL", self.keys.job(job))
        return {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)} if flat else None

    # -- what its driver must leave to be found --------------------------------------------------

    def drive(self, instance: str, incarnation: str, job: str, deadline_ms: int) -> "asyncio.Future[bytes]":
        """Before anything of the job is recorded: b'OK', or b'DECLARED_DEAD'."""
        opened, driven = self.keys.open(instance), self.keys.jobs_of(instance)
        return DRIVE_JOB(
            self.redis, opened=opened, driven=driven, incarnation=incarnation, job=job, deadline=deadline_ms
        )

    def driven(self, instance: str, job: str, deadline_ms: int) -> "asyncio.Future[int]":
        """The same of a job that is recorded, whatever becomes of the instance."""
        return self.redis.call("ZADD", self.keys.jobs_of(instance), deadline_ms, job)

    async def set_driver(self, job: str, instance: str) -> None:
        await self.redis.call("HSET", self.keys.job(job), "driver", instance)

    def undriven(self, instance: str, job: str) -> "asyncio.Future[int]":
        return self.redis.call("ZREM", self.keys.jobs_of(instance), job)

    async def driven_by(self, instance: str, limit: int) -> list[str]:
        return [job.decode() for job in await self.redis.call("ZRANGE", self.keys.jobs_of(instance), 0, limit - 1)]

    # -- the last ones, for people ---------------------------------------------------------------

    def note(self, job: str) -> "list[asyncio.Future[int]]":
        """List it, started: it travels with the job's first write. The list is cut now and then, not each time."""
        recent = self.keys.jobs_recent
        started = [self.redis.call("ZADD", recent, int(time() * 1000), job)]
        if self._noted % TRIM_EVERY == 0:
            started.append(self.redis.call("ZREMRANGEBYRANK", recent, 0, -MAX_RECENT - 1))
        self._noted += 1
        return started

    async def recent(
        self, before: str = "", since_ms: int = 0, page: int = 200
    ) -> AsyncIterator[tuple[str, dict[str, str]]]:
        """The last jobs that are still there, the newest first, each with where it is in the list.

        `before`: only those behind that place.
        """
        at, _, last = before.partition("|")
        highest, lowest, skipped = at or "+inf", max(since_ms, int(time() * 1000) - JOB_TTL_MS), 0
        while True:
            flat = await self.redis.call(
                "ZREVRANGEBYSCORE", self.keys.jobs_recent, highest, lowest, "WITHSCORES", "LIMIT", skipped, page
            )
            rows = [(id.decode(), str(int(float(at_ms)))) for id, at_ms in zip(flat[::2], flat[1::2], strict=True)]
            # Of one millisecond they come in the reverse order of their ids.
            new = [(id, at_ms) for id, at_ms in rows if not (at_ms == at and id >= last)]
            found = await asyncio.gather(*(self.redis.call("HMGET", self.keys.job(id), *LISTED) for id, _ in new))
            for (id, at_ms), values in zip(new, found, strict=True):
                shown = {name: value.decode() for name, value in zip(LISTED, values, strict=True) if value is not None}
                if shown:
                    yield f"{at_ms}|{id}", {"job_id": id, **shown}
            if len(rows) < page:
                return
            skipped += page


# -- turns -----------------------------------------------------------------------------------------


END_TURN = Script.beside(__file__, "end_turn")

AFFINITY = "affinity_node_id"
CURRENT = "current_turn_id"


class Turns:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys

    def binding(self, session: str, turn: str, node: str) -> "list[asyncio.Future[int]]":
        """Both writes of a first job, started: they travel with whatever else its placing writes."""
        return [
            self.redis.call("HSETNX", self.keys.turn(turn), AFFINITY, node),
            self.redis.call("HSET", self.keys.session_turn(session), CURRENT, turn),
        ]

    async def bind(self, session: str, turn: str, node: str) -> None:
        await asyncio.gather(*self.binding(session, turn, node))

    async def node_of(self, turn: str) -> str | None:
        found = await self.redis.call("HGET", self.keys.turn(turn), AFFINITY)
        return found.decode() if found is not None else None

    async def current(self, session: str) -> str | None:
        found = await self.redis.call("HGET", self.keys.session_turn(session), CURRENT)
        return found.decode() if found is not None else None

    async def end(self, session: str, turn: str) -> None:
        await asyncio.gather(
            self.redis.call("HDEL", self.keys.turn(turn), AFFINITY),
            END_TURN(self.redis, session=self.keys.session_turn(session), turn=turn),
        )

    async def end_current(self, session: str) -> None:
        """A session ends in mid-turn: its turn's key goes with it."""
        turn = await self.current(session)
        if turn is not None:
            await self.end(session, turn)
