"""What a checker goes by: its rules, and the stores at rest.

    facts = await gather(Stores(redis, urls, prefix, database, …), sessions, timeout_s=30)

`gather` waits for rest: a slot is released and a lease handed over a moment after the client has its answer. What is
not at rest after the timeout is in the facts too, and the checker reports it.
"""

import asyncio
import math
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import asyncpg  # type: ignore[import-untyped]
import msgspec
import redis

from dragoman.archive import Stored
from dragoman.archive.archive import sqlite_path
from dragoman.archive.rows import COLUMNS, stored
from dragoman.domain.chat.shards import tag
from dragoman.store import inbox
from dragoman.store.chat import shards as chat
from dragoman.store.chat.entries import ShardStatus
from dragoman.store.dead_letters import InboxDeadLetters
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.jobs import Jobs
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.rooms.rooms import RoomBounds, Rooms
from dragoman.store.sessions import EXPECTED, window_of
from dragoman.tools import leftover_keys
from dragoman.tools.verify.chat_ledger import Name
from dragoman.tools.verify.room_ledger import PlannedFact, RoomFact, RoomLedger

# -- findings --------------------------------------------------------------------------------------
#
# What a checker says: findings in words, and the rules it goes by.


class Finding(NamedTuple):
    """One broken promise: its kind, and a sentence with the details."""

    kind: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the instances that promises depend on, and how exact the times in ledgers are."""

    release_s: float = 5.0  # speech.release.ack_timeout_ms
    job_s: float = 30.0  # speech.job_timeout_ms
    overcommit: int = 4  # speech.turn_overcommit
    ack_grace_s: float = 3.0  # what an instance that dies takes with it of acknowledgements it had just read
    slack_s: float = 1.0  # between what happens and what is written down of it
    settle_s: float = 1.5  # until everybody knows of a node that came
    translate_s: float = 4.0  # rooms.translate_timeout_ms
    poll_s: float = 1.0  # between two polls of the index of due rooms, and the loop's own delay
    repair_s: float = 10.0  # what a fault may add to the end of a language: Redis away, a claim that must end


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A time in which something was broken: clients and nodes may have been slow or left out.

    `ports` are those of the affected instances; None: all.
    """

    began: float
    ended: float
    ports: frozenset[int] | None = None

    def overlaps(self, began: float, ended: float) -> bool:
        return self.began <= ended and began <= self.ended


@dataclass(frozen=True, slots=True)
class Tolerated:
    """What does not count as a broken promise, because of the faults.

    `lost_spans`: times before a Redis was killed whose writes it may lose by its durability class. What is lost of them
    is counted apart.
    """

    lost_spans: Sequence[tuple[float, float]] = ()
    disturbed: Sequence[Disturbance] = ()

    def may_be_lost(self, at: float | None) -> bool:
        return at is not None and any(began <= at <= ended for began, ended in self.lost_spans)

    def undisturbed(self, began: float, ended: float, port: int | None = None) -> bool:
        """Whether nothing was broken then that affected the instance at `port`; without a port, nothing at all."""
        return not any(
            one.overlaps(began, ended) and (port is None or one.ports is None or port in one.ports)
            for one in self.disturbed
        )


POLL_S = 0.25
NOT_THERE = (StoreError, redis.RedisError, OSError, asyncpg.PostgresError, sqlite3.OperationalError)
OVER = ("FINISHED", "RELEASED")
_DELIVER_GROUP, _SAVE_GROUP = "im:cg:single_chat:deliver", "im:cg:single_chat:save"
_CLAIM_TTL_MS = 60_000  # of no matter here: nothing is claimed


@dataclass(frozen=True, slots=True)
class JobFact:
    job: str
    session: str
    index: int
    state: str
    outcome: str = ""
    code: str = ""
    attempt: int = 1
    node: str = ""
    created_at: float = 0.0  # of `time.monotonic`, as everything here
    finished_at: float | None = None  # when Redis recorded the end
    recorded_by: str = ""  # the instance that recorded the end, and the Redis server that has the record

    @property
    def is_over(self) -> bool:
        return self.state in OVER and bool(self.outcome)


@dataclass(frozen=True, slots=True)
class SessionFact:
    """A session that can resume, as another instance would take it up."""

    next_index: int
    expected: int  # the lowest index that is not settled
    settled: frozenset[int] = frozenset()  # above that

    def is_settled(self, index: int) -> bool:
        return index < self.expected or index in self.settled

    @property
    def open(self) -> list[int]:
        return [index for index in range(self.expected, self.next_index) if index not in self.settled]


@dataclass(frozen=True, slots=True)
class Facts:
    rows: Sequence[Stored] = ()
    dead: Collection[Name] = ()  # messages that could not be saved
    shards: Sequence[ShardStatus] = ()
    unsaved: Mapping[int, int] = field(default_factory=dict)  # by sender: counted as unsaved, though none is there
    slots: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by node: the jobs that hold one
    inboxes: Mapping[str, inbox.InboxCounts] = field(default_factory=dict)  # by instance
    letters: Sequence[str] = ()  # dead letters of inboxes, in words
    driven: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by instance: jobs it has not done with
    jobs: Mapping[str, JobFact] = field(default_factory=dict)
    sessions: Mapping[str, SessionFact] = field(default_factory=dict)  # those asked for that are there
    room: RoomFact | None = None  # that of the phase, if it has one
    leaks: Sequence[str] = ()  # keys that should not be there, in words
    read_at: float = math.inf  # what nodes saw later than that is not in it

    def unsettled(self) -> Iterator[str]:
        """What may still come to rest by itself."""
        for node, jobs in self.slots.items():
            yield f"node {node} has {len(jobs)} slots taken, by {', '.join(sorted(jobs)[:3])}"
        for number, shard in enumerate(self.shards):
            if shard.backlog or shard.accepted_len or shard.to_save_len:
                yield f"shard {number} has work left: {shard}"
        for sender, count in self.unsaved.items():
            yield f"{count} messages of {sender} are counted as unsaved"
        for instance, tally in self.inboxes.items():
            if tally.waiting:
                yield f"the inbox of {instance} holds {tally.waiting} entries"
        for instance, jobs in self.driven.items():
            yield f"{instance} drives {len(jobs)} jobs still: {', '.join(sorted(jobs)[:3])}"
        for job in self.jobs.values():
            if not job.is_over:
                yield f"job {job.job} (utterance {job.index} of {job.session}) is {job.state} and has no outcome"
        for session, fact in self.sessions.items():
            if fact.open:
                yield f"session {session} waits for utterances {fact.open[:5]}"
        yield from self.leaks


@dataclass(frozen=True, slots=True)
class Stores:
    """`redis` and `urls` lead to the same servers, without the proxy."""

    redis: Redis
    urls: Sequence[str]
    cluster: bool
    prefix: str
    database: str
    shards: int
    nodes: Sequence[str]


async def gather(
    stores: Stores, sessions: Collection[str], since: float, timeout_s: float, rooms: RoomLedger | None = None
) -> Facts:
    """The facts, at rest or after the timeout; of jobs, those recorded `since` then."""
    deadline = time.monotonic() + timeout_s
    rooms = rooms or RoomLedger()
    reader = _Reader(stores, sessions, since, rooms)
    while True:
        may_wait = time.monotonic() < deadline
        try:
            facts = await reader.read()
            outstanding = any(rooms.outstanding(facts.room)) if facts.room is not None else False
            if not (may_wait and (outstanding or any(facts.unsettled()))):
                return replace(facts, rows=await _rows(stores.database))
        except NOT_THERE:  # not back yet, or not known to be
            if not may_wait:
                raise
        await asyncio.sleep(POLL_S)


class _Reader:
    def __init__(self, stores: Stores, sessions: Collection[str], since: float, rooms: RoomLedger) -> None:
        self._stores, self._sessions, self._since = stores, sessions, since
        self._room, self._speakers = rooms.room, rooms.sessions
        self._redis, self._keys = stores.redis, Keys(stores.prefix)
        self._inboxes = Inboxes(stores.redis, self._keys, InboxSettings())
        stream = f"{self._keys.im}:stream:single_chat"
        names = chat.StreamNames(f"{stream}:accepted", f"{stream}:to_save", _DELIVER_GROUP, _SAVE_GROUP)
        self._shards = chat.Shards(stores.redis, self._keys, names, stores.shards, _CLAIM_TTL_MS)

    async def read(self) -> Facts:
        read_at = time.monotonic()
        instances = [name.decode() for name in await self._redis.call("SMEMBERS", self._keys.instances)]
        jobs = await self._jobs()
        driven = {name: await Jobs(self._redis, self._keys).driven_by(name, 1000) for name in instances}
        return Facts(
            dead=await self._dead(),
            shards=[await self._shards.status(shard) for shard in range(self._stores.shards)],
            unsaved=await self._unsaved(),
            slots=await self._slots(),
            inboxes={name: await self._inboxes.counts(name) for name in instances},
            letters=await self._letters(),
            driven={name: jobs for name, jobs in driven.items() if jobs},
            jobs=jobs,
            sessions=await self._states(),
            room=await self._room_fact(jobs) if self._room else None,
            leaks=await asyncio.to_thread(self._leaks),
            read_at=read_at,
        )

    async def _dead(self) -> list[Name]:
        found = list[Name]()
        for shard in range(self._stores.shards):
            for _, fields in await self._redis.call("XRANGE", self._shards.dead(shard), "-", "+"):
                texts = dict(zip(fields[::2], fields[1::2], strict=True))
                found.append(Name(int(texts[b"fromUserId"]), texts[b"clientMsgId"].decode()))
        return found

    async def _unsaved(self) -> dict[int, int]:
        found = dict[int, int]()
        for shard in range(self._stores.shards):
            flat = await self._redis.call("HGETALL", self._keys.unsaved(tag(shard)))
            found |= {int(sender): int(count) for sender, count in zip(flat[::2], flat[1::2], strict=True)}
        return found

    async def _slots(self) -> dict[str, list[str]]:
        """Those that have not lapsed: what a dead driver held comes back by itself."""
        found = dict[str, list[str]]()
        for node in self._stores.nodes:
            now_ms = int(time.time() * 1000)
            jobs = await self._redis.call("ZRANGEBYSCORE", self._keys.reserved(node), now_ms, "+inf")
            if jobs:
                found[node] = [job.decode() for job in jobs]
        return found

    async def _letters(self) -> list[str]:
        letters = InboxDeadLetters(self._redis, self._keys, self._inboxes)
        return [
            f"{letter.kind} to {name}: {letter.reason}"
            for name in await letters.instances()
            for letter in await letters.list(name)
        ]

    async def _jobs(self) -> dict[str, JobFact]:
        offset_s = time.time() - time.monotonic()
        found = dict[str, JobFact]()
        async for _, record in Jobs(self._redis, self._keys).recent(since_ms=int((self._since + offset_s) * 1000)):
            finished_ms = record.get("finished_ms")
            server = self._redis.address_of(self._keys.job(record["job_id"]))
            found[record["job_id"]] = JobFact(
                record["job_id"],
                record.get("session_id", ""),
                int(record.get("utterance_index", -1)),
                record.get("state", ""),
                record.get("outcome", ""),
                record.get("code", ""),
                int(record.get("attempt", 1)),
                record.get("node_id", ""),
                int(record.get("created_ms", 0)) / 1000 - offset_s,
                int(finished_ms) / 1000 - offset_s if finished_ms else None,
                f"{record.get('driver', '')} at {server.host}:{server.port}",
            )
        return found

    async def _states(self) -> dict[str, SessionFact]:
        found = dict[str, SessionFact]()
        for session in self._sessions:
            flat = await self._redis.call("HGETALL", self._keys.session_state(session))
            state = {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
            if "next_index" in state or EXPECTED in state:
                found[session] = _session(state)
        return found

    async def _room_fact(self, jobs: Mapping[str, JobFact]) -> RoomFact:
        rooms, room = Rooms(self._redis, self._keys, RoomBounds()), self._room
        pending, info = await rooms.pending(room), await rooms.info(room)
        flat = await self._redis.call("HGETALL", self._keys.room_captions(room))
        langs = {
            caption.decode(): msgspec.json.decode(row)["langs"] for caption, row in zip(*[iter(flat)] * 2, strict=True)
        }
        planned = {
            (caption, lang): PlannedFact(int(state["n"]), int(state["seq"]))
            for caption, states in langs.items()
            for lang, state in (states.items() if states else ())
        }
        members = [one.session for one in await rooms.members(room)]
        seq = info.seq if info is not None else 0
        return RoomFact(await rooms.read_all(room), seq, planned, pending, members, self._recognised(jobs))

    def _recognised(self, jobs: Mapping[str, JobFact]) -> dict[tuple[str, int], list[int]]:
        """The attempts of the jobs that recognised what was said in the room. A job without an attempt that was
        cancelled gave way to another one with the same request."""
        found = defaultdict[tuple[str, int], list[int]](list)
        for job in jobs.values():
            if job.session in self._speakers and not (job.outcome == "cancelled" and not job.node):
                found[job.session, job.index].append(job.attempt)
        return dict(found)

    def _leaks(self) -> list[str]:
        with closing(leftover_keys.client(self._stores.urls[0], cluster=self._stores.cluster)) as client:
            return leftover_keys.leaks(leftover_keys.look(client, self._stores.prefix), self._stores.prefix)


def _session(state: Mapping[str, str]) -> SessionFact:
    expected, settled = window_of(state)
    return SessionFact(int(state.get("next_index", 0)), expected, frozenset(settled))


async def _rows(database: str) -> list[Stored]:
    query = f"SELECT {COLUMNS} FROM message ORDER BY id"
    if database.startswith("postgresql"):
        db = await asyncpg.connect(database)
        try:
            return [stored(row) for row in await db.fetch(query)]
        finally:
            await db.close()
    return await asyncio.to_thread(_sqlite_rows, database, query)


def _sqlite_rows(database: str, query: str) -> list[Stored]:
    with closing(sqlite3.connect(sqlite_path(database), timeout=30)) as db:
        return [stored(row) for row in db.execute(query)]
