"""Every fault: what it breaks, which setup it needs, how it is injected and repaired, and the time to recover.

A fault is one function: it breaks something, waits for as long as the fault lasts, and repairs it. It notes the target
and the times in its `Injection`, from which recovery is computed.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import NamedTuple

from dragoman.archive.archive import sqlite_path
from dragoman.domain.chat.shards import shard_of
from dragoman.tools.processes import CannotRun, until
from dragoman.tools.redis_cluster import MASTERS
from dragoman.tools.verify import HEALTHY as HEALTHY_NAME
from dragoman.tools.verify import TITLES
from dragoman.tools.verify.clients import Clients
from dragoman.tools.verify.environment import (
    ROOM_NODES,
    SHARDS,
    TEXT_NODES,
    Environment,
    Fsync,
    Lengths,
    Load,
    RedisMode,
    Setup,
)
from dragoman.tools.verify.recordings import Kind, NodeEvent, read

# -- recovery --------------------------------------------------------------------------------------
#
# Recovery times in seconds, computed from the times in ledgers and injections alone.
#
# Each fault has its own questions. Of several injections, and of several affected clients, the slowest counts. A
# question for which nothing was tried at that time has no answer and is left out.


@dataclass(slots=True)
class Injection:
    """One injection of a fault; times are of `time.monotonic`, 0 is never."""

    target: str = ""
    injected_at: float = 0.0
    repaired_at: float = 0.0
    taken_over_at: float = 0.0  # of an instance that was killed: by the others
    recovered_at: float = 0.0
    shards: tuple[int, ...] = ()  # those of the target
    users: tuple[int, ...] = ()  # those connected to it

    def begin(self, target: str) -> None:
        self.target, self.injected_at = target, time.monotonic()

    def repaired(self) -> None:
        self.repaired_at = time.monotonic()


class Message(NamedTuple):
    """A message as its sender knows it."""

    sender: int
    sent_at: float
    accepted_at: float | None = None
    saved_at: float | None = None


class Connection(NamedTuple):
    """A client is connected again: a chat user, or a speech session."""

    who: int | str
    at: float


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that clients and nodes recorded."""

    messages: Sequence[Message] = ()
    events: Sequence[NodeEvent] = ()
    connections: Sequence[Connection] = ()


Question = Callable[[Injection, Record], float | None]


def first_accepted(injection: Injection, record: Record) -> float | None:
    return _until_first((_promised_at(one) for one in record.messages), injection.repaired_at)


def first_saved(injection: Injection, record: Record) -> float | None:
    return _until_first((one.saved_at for one in record.messages), injection.repaired_at)


def accepted_by_target(injection: Injection, record: Record) -> float | None:
    """By the instance that was cut off, for users that were connected to it all the time."""
    there = set(injection.users)
    return _until_first((_promised_at(one) for one in record.messages if one.sender in there), injection.repaired_at)


def clients_back(injection: Injection, record: Record) -> float | None:
    """Each client of the target has a connection again; speech sessions count as connected when they are resumed."""
    since = [one for one in record.connections if one.at >= injection.injected_at]
    concerned = {one.who for one in since if isinstance(one.who, str)}.union(injection.users)
    return _slowest(
        _until_first((one.at for one in since if one.who == who), injection.injected_at) for who in concerned
    )


def clients_answered(injection: Injection, record: Record) -> float | None:
    """Each of its users has sent a message since that was accepted."""
    return _slowest(
        _until_first((_promised_at(one) for one in record.messages if one.sender == user), injection.injected_at)
        for user in injection.users
    )


def shards_worked(injection: Injection, record: Record) -> float | None:
    """In each shard of the target, a message that a user of another instance has sent since is saved."""
    since = [
        one for one in record.messages if one.sent_at >= injection.injected_at and one.sender not in injection.users
    ]
    return _slowest(
        _until_first((one.saved_at for one in since if shard_of(one.sender, SHARDS) == shard), injection.injected_at)
        for shard in injection.shards
    )


def all_shards_accept(injection: Injection, record: Record) -> float | None:
    since = [one for one in record.messages if one.sent_at >= injection.injected_at]
    return _slowest(
        _until_first(
            (_promised_at(one) for one in since if shard_of(one.sender, SHARDS) == shard), injection.injected_at
        )
        for shard in range(SHARDS)
    )


def jobs_taken_over(injection: Injection, record: Record) -> float | None:
    return injection.taken_over_at - injection.injected_at if injection.taken_over_at else None


def jobs_moved(injection: Injection, record: Record) -> float | None:
    """Every job of the killed node was given to another."""
    before = [one for one in record.events if one.node == injection.target and one.at <= injection.injected_at]
    held = {one.job for one in before if one.kind is Kind.GIVEN} - {one.job for one in before if one.kind is Kind.ENDED}
    given = [one for one in record.events if one.kind is Kind.GIVEN and one.node != injection.target]
    return _slowest(_until_first((one.at for one in given if one.job == job), injection.injected_at) for job in held)


QUESTIONS: dict[str, dict[str, Question]] = {
    "node-kill": {"its jobs on other nodes": jobs_moved},
    "instance-kill": {
        "clients back": clients_back,
        "clients answered": clients_answered,
        "shards": shards_worked,
        "jobs": jobs_taken_over,
    },
    "instance-pause": {"clients answered": clients_answered, "shards": shards_worked},
    "redis-kill": {"first accepted": first_accepted},
    "redis-kill-everysec": {"first accepted": first_accepted},
    "master-kill": {"all shards accept": all_shards_accept},
    "database-stop": {"first saved": first_saved},
    "link-cut": {"first accepted through it": accepted_by_target},
    "link-stall": {"first accepted through it": accepted_by_target},
}


def recovered(fault: str, injections: Iterable[Injection], record: Record) -> dict[str, float]:
    """Answers by question, the slowest of all injections."""
    several = list(injections)
    found = {
        question: _slowest(ask(injection, record) for injection in several)
        for question, ask in QUESTIONS.get(fault, {}).items()
    }
    return {question: seconds for question, seconds in found.items() if seconds is not None}


def _promised_at(one: Message) -> float | None:
    """Accepted; or saved, if it was never confirmed as accepted."""
    return one.saved_at if one.accepted_at is None else one.accepted_at


def _until_first(moments: Iterable[float | None], since: float) -> float | None:
    return min((at - since for at in moments if at is not None and at >= since), default=None)


def _slowest(answers: Iterable[float | None]) -> float | None:
    return max((one for one in answers if one is not None), default=None)


# How long a killed process stays away before it is started again; drawn.
AWAY_S = (0.2, 0.8)
SPOKEN_S = (0.0, 0.8)  # after an utterance was cut: it is recognised, then translated
WORK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class FaultContext:
    environment: Environment
    clients: Clients
    lengths: Lengths


# A log that lost its last entries continues with their numbers, under the same epoch.
WITHOUT_ROOMS = "without rooms"
Inject = Callable[[FaultContext, Random, Injection], Awaitable[None]]
Takes = Callable[[Lengths], float]


@dataclass(frozen=True, slots=True)
class Fault:
    """`takes`: about the time from an injection to recovery; 0 for one that is never injected."""

    name: str
    inject: Inject
    takes: Takes
    redis: RedisMode | None = None
    fsync: Fsync = "always"
    load: Load | None = None
    rooms: bool = True  # whether rooms are part of it

    @property
    def title(self) -> str:
        return TITLES[self.name]

    def missing(self, setup: Setup) -> str:
        """Why this setup cannot have it; '' if it can."""
        if self.redis not in (None, setup.redis):
            return f"needs --redis {self.redis}"
        if self.load == "speech" and not setup.speakers:
            return "needs speech"
        if self.load == "chat" and not setup.chat_users:
            return "needs chat"
        if self.load == "rooms" and not setup.room_members:
            return "needs rooms"
        if not self.rooms and not (setup.speakers or setup.chat_users):
            return WITHOUT_ROOMS
        return ""

    def remark(self, setup: Setup) -> str:
        """What this setup has and the fault leaves out; '' if nothing."""
        return WITHOUT_ROOMS if setup.room_members and not self.rooms else ""


async def nothing(context: FaultContext, rng: Random, injection: Injection) -> None:
    raise AssertionError("the healthy case has no injections")


async def kill_node(context: FaultContext, rng: Random, injection: Injection) -> None:
    """One that is working on a job, if it gets one soon."""
    environment = context.environment
    at = rng.randrange(len(environment.nodes))
    await until(lambda: _is_at_work(environment.recording_files[at]), WORK_TIMEOUT_S)
    environment.nodes[at].kill()
    injection.begin(environment.node_names[at])
    await asyncio.sleep(rng.uniform(*AWAY_S))
    environment.restart_node(at)
    injection.repaired()


async def kill_instance(context: FaultContext, rng: Random, injection: Injection) -> None:
    """It is started again when the others have taken it over."""
    environment = context.environment
    at = await _choose_target(environment, rng, injection)
    environment.instances[at].kill()
    injection.begin(environment.names[at])
    if await until(lambda: environment.is_taken_over(at), context.lengths.presence_s + context.lengths.timeout_s):
        injection.taken_over_at = time.monotonic()
    await environment.restart_instance(at)
    injection.repaired()


async def kill_driver(context: FaultContext, rng: Random, injection: Injection) -> None:
    """Right after it has confirmed a caption: the translations are under way. It is started again at once."""
    environment = context.environment
    at = await _choose_target(environment, rng, injection)
    await until(lambda: _writes(context, environment.names[at]), WORK_TIMEOUT_S)
    environment.instances[at].kill()
    injection.begin(environment.names[at])
    await asyncio.sleep(rng.uniform(*AWAY_S))
    await environment.restart_instance(at)
    injection.repaired()


async def kill_speaking_instance(context: FaultContext, rng: Random, injection: Injection) -> None:
    """The instance of a member that is speaking, while its utterance is recognised or translated."""
    environment = context.environment
    at = await _choose_target(environment, rng, injection)
    await until(lambda: _says(context, environment.names[at]), WORK_TIMEOUT_S)
    await asyncio.sleep(rng.uniform(*SPOKEN_S))
    environment.instances[at].kill()
    injection.begin(environment.names[at])
    await asyncio.sleep(rng.uniform(*AWAY_S))
    await environment.restart_instance(at)
    injection.repaired()


async def kill_recogniser(context: FaultContext, rng: Random, injection: Injection) -> None:
    """A node that recognises speech in rooms, while members speak."""
    environment = context.environment
    at = rng.randrange(len(ROOM_NODES))
    await until(lambda: _says(context, ""), WORK_TIMEOUT_S)
    environment.room_nodes[at].kill()
    injection.begin(ROOM_NODES[at])
    await asyncio.sleep(rng.uniform(*AWAY_S))
    environment.restart_room_node(at)
    injection.repaired()


async def _says(context: FaultContext, instance: str) -> bool:
    """Whether a member on this instance, or on any, has said something aloud."""
    rooms = context.clients.rooms
    places = await context.environment.member_instances(rooms.ledger.room)
    speaker = rooms.speaker_of({session for session, name in places.items() if name == instance or not instance})
    if speaker is not None:
        await speaker.say()
    return speaker is not None


async def kill_text_node(context: FaultContext, rng: Random, injection: Injection) -> None:
    """The only one that translates into its language, right after a caption that it has to translate."""
    environment = context.environment
    await until(lambda: _writes(context, ""), WORK_TIMEOUT_S)
    environment.text_nodes[0].kill()
    injection.begin(next(iter(TEXT_NODES)))
    await asyncio.sleep(rng.uniform(*AWAY_S))
    environment.restart_text_node(0)
    injection.repaired()


async def _writes(context: FaultContext, instance: str) -> bool:
    """Whether a member of the room on this instance, or on any, has written a sentence that is confirmed."""
    rooms = context.clients.rooms
    places = await context.environment.member_instances(rooms.ledger.room)
    writer = rooms.writer_of({session for session, name in places.items() if name == instance or not instance})
    return writer is not None and await writer.write()


async def pause_instance(context: FaultContext, rng: Random, injection: Injection) -> None:
    environment = context.environment
    at = await _choose_target(environment, rng, injection)
    environment.instances[at].signal(SIGSTOP)
    injection.begin(environment.names[at])
    await asyncio.sleep(context.lengths.pause_s)
    environment.instances[at].signal(SIGCONT)
    injection.repaired()


async def kill_redis(context: FaultContext, rng: Random, injection: Injection) -> None:
    server = context.environment.server
    assert server is not None
    await asyncio.to_thread(server.kill)
    injection.begin("Redis")
    await asyncio.sleep(rng.uniform(*AWAY_S))
    await asyncio.to_thread(server.start)
    injection.repaired()


async def kill_master(context: FaultContext, rng: Random, injection: Injection) -> None:
    """Its replica takes over; it comes back as the replica of the new master."""
    cluster = context.environment.cluster
    assert cluster is not None
    dead = await asyncio.to_thread(cluster.kill_master, rng.randrange(MASTERS))
    injection.begin(f"the master on port {dead.port}")
    await asyncio.to_thread(cluster.wait_failover, dead)
    injection.repaired()
    await asyncio.to_thread(dead.start)


async def stop_database(context: FaultContext, rng: Random, injection: Injection) -> None:
    """PostgreSQL is killed. SQLite has no process: it is locked, and writes are refused."""
    environment = context.environment
    if environment.postgres is not None:
        await asyncio.to_thread(environment.postgres.kill)
        injection.begin("PostgreSQL")
        await asyncio.sleep(context.lengths.database_s)
        await asyncio.to_thread(environment.postgres.start)
    else:
        with closing(await asyncio.to_thread(_locked, environment.database)) as file:
            injection.begin("SQLite")
            await asyncio.sleep(context.lengths.database_s)
            file.execute("ROLLBACK")
    injection.repaired()


async def break_link(how: str, context: FaultContext, rng: Random, injection: Injection) -> None:
    environment = context.environment
    at = await _choose_target(environment, rng, injection)
    await environment.link(how, at)
    injection.begin(environment.names[at])
    await asyncio.sleep(context.lengths.link_s)
    await environment.link("restore", at)
    injection.repaired()


async def flap(context: FaultContext, rng: Random, injection: Injection) -> None:
    with _on(context.clients.flap):
        injection.begin("receivers")
        await asyncio.sleep(context.lengths.reader_s)
    injection.repaired()


async def read_slowly(context: FaultContext, rng: Random, injection: Injection) -> None:
    with _on(context.clients.slow_reader):
        injection.begin("readers")
        await asyncio.sleep(context.lengths.reader_s)
    injection.repaired()


def _is_at_work(recordings: Path) -> bool:
    events = read([recordings])
    ended = {event.job for event in events if event.kind is Kind.ENDED}
    return any(event.kind is Kind.STARTED and event.job not in ended for event in events)


@contextmanager
def _on(switch: Callable[[bool], None]) -> Iterator[None]:
    switch(True)
    try:
        yield
    finally:
        switch(False)


async def _choose_target(environment: Environment, rng: Random, injection: Injection) -> int:
    """One of the instances that have users: after a fault, all users may be at one of them."""
    owners = await environment.user_instances()
    busy = [name for name in environment.names if name in owners.values()]
    name = rng.choice(busy or environment.names)
    injection.shards = tuple(shard for shard, holder in enumerate(await environment.holders()) if holder == name)
    injection.users = tuple(user for user, owner in owners.items() if owner == name)
    return environment.names.index(name)


def _locked(url: str) -> sqlite3.Connection:
    file = sqlite3.connect(sqlite_path(url), timeout=30, isolation_level=None, check_same_thread=False)
    file.execute("BEGIN IMMEDIATE")
    return file


def _after(seconds: float) -> Takes:
    return lambda lengths: seconds


_BY_NAME = (
    Fault(HEALTHY_NAME, nothing, _after(0)),
    Fault("node-kill", kill_node, _after(2.0), load="speech"),
    Fault("text-node-kill", kill_text_node, _after(2.0), load="rooms"),
    Fault("instance-kill", kill_instance, lambda lengths: lengths.presence_s + 3.5),
    Fault("driver-kill", kill_driver, _after(3.5), load="rooms"),
    Fault("speaker-kill", kill_speaking_instance, _after(3.5), load="rooms"),
    Fault("recogniser-kill", kill_recogniser, _after(2.0), load="rooms"),
    Fault("instance-pause", pause_instance, lambda lengths: lengths.pause_s + 2.5),
    Fault("redis-kill", kill_redis, _after(2.0), "single"),
    Fault("master-kill", kill_master, _after(5.0), "cluster"),
    Fault("database-stop", stop_database, lambda lengths: lengths.database_s + 0.5, load="chat"),
    Fault("link-cut", partial(break_link, "cut"), lambda lengths: lengths.link_s + 1.0),
    Fault("link-stall", partial(break_link, "stall"), lambda lengths: lengths.link_s + 1.0),
    Fault("receiver-flap", flap, lambda lengths: lengths.reader_s),
    Fault("slow-reader", read_slowly, lambda lengths: lengths.reader_s),
    # Last, because it needs a Redis of its own.
    Fault("redis-kill-everysec", kill_redis, _after(2.0), "single", fsync="everysec", rooms=False),
)
BY_NAME = {fault.name: fault for fault in _BY_NAME}
HEALTHY = BY_NAME[HEALTHY_NAME]
FAULTS: tuple[Fault, ...] = tuple(fault for fault in _BY_NAME if fault is not HEALTHY)


def named(names: Sequence[str]) -> list[Fault]:
    """The faults of these names, in the order of the table; CannotRun for an unknown one."""
    for name in names:
        if name not in BY_NAME:
            raise CannotRun(f"There is no fault {name!r}: choose from {', '.join(BY_NAME)}.")
    return [fault for fault in BY_NAME.values() if fault.name in names]
