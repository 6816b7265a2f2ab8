"""Every fault there is: what it breaks, where it can be had, how it is done and mended.

A fault is one function: it strikes, waits for as long as the fault lasts, mends, and returns when the cluster is whole
again. What it notes in its `Blow` (who was hit, when, when it was mended) is what recovery is computed from.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP

from dragoman.archive.urls import sqlite_path
from dragoman.tools.redis_cluster import MASTERS
from dragoman.tools.verify.crowds import Crowds
from dragoman.tools.verify.errors import CannotRun
from dragoman.tools.verify.fault_names import HEALTHY as HEALTHY_NAME
from dragoman.tools.verify.fault_names import TITLES
from dragoman.tools.verify.node_events import Kind, read
from dragoman.tools.verify.settings import Fsync, Lengths, Load, RedisMode, Setup
from dragoman.tools.verify.stage import Stage
from dragoman.tools.verify.waiting import until

# How long a killed process stays away before somebody starts it again; drawn.
AWAY_S = (0.2, 0.8)
WORK_PATIENCE_S = 2.0


@dataclass(slots=True)
class Blow:
    """One strike of a fault; times are of `time.monotonic`."""

    victim: str = ""
    struck_at: float = 0.0
    mended_at: float = 0.0
    buried_at: float = 0.0  # an instance that was gone: when the survivors had done with it
    well_at: float = 0.0
    shards: tuple[int, ...] = ()  # those the victim worked
    users: tuple[int, ...] = ()  # those connected to it

    def strike(self, victim: str) -> None:
        self.victim, self.struck_at = victim, time.monotonic()

    def mend(self) -> None:
        self.mended_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class Scene:
    stage: Stage
    crowds: Crowds
    lengths: Lengths


Strike = Callable[[Scene, Random, Blow], Awaitable[None]]
Takes = Callable[[Lengths], float]


@dataclass(frozen=True, slots=True)
class Fault:
    """`takes`: from a strike until all is well again, about; 0 for one that never strikes."""

    name: str
    strike: Strike
    takes: Takes
    redis: RedisMode | None = None
    fsync: Fsync = "always"
    load: Load | None = None

    @property
    def title(self) -> str:
        return TITLES[self.name]

    def missing(self, setup: Setup) -> str:
        """Why it cannot be had in this setup; '' when it can."""
        if self.redis not in (None, setup.redis):
            return f"needs --redis {self.redis}"
        if self.load == "speech" and not setup.speakers:
            return "needs speech"
        if self.load == "chat" and not setup.chatters:
            return "needs chat"
        return ""


async def nothing(scene: Scene, rng: Random, blow: Blow) -> None:
    raise AssertionError("the healthy case has no strikes")


async def kill_node(scene: Scene, rng: Random, blow: Blow) -> None:
    """One that is at work, if it gets some before long."""
    stage = scene.stage
    at = rng.randrange(len(stage.nodes))
    await until(lambda: _is_at_work(stage.recording_files[at]), WORK_PATIENCE_S)
    stage.nodes[at].kill()
    blow.strike(stage.node_names[at])
    await asyncio.sleep(rng.uniform(*AWAY_S))
    stage.restart_node(at)
    blow.mend()


async def kill_instance(scene: Scene, rng: Random, blow: Blow) -> None:
    """It comes back when the survivors have buried it: in between, everything it had is theirs."""
    stage = scene.stage
    at = await _victim(stage, rng, blow)
    stage.instances[at].kill()
    blow.strike(stage.names[at])
    if await until(lambda: stage.is_buried(at), scene.lengths.presence_s + scene.lengths.patience_s):
        blow.buried_at = time.monotonic()
    await stage.restart_instance(at)
    blow.mend()


async def pause_instance(scene: Scene, rng: Random, blow: Blow) -> None:
    stage = scene.stage
    at = await _victim(stage, rng, blow)
    stage.instances[at].signal(SIGSTOP)
    blow.strike(stage.names[at])
    await asyncio.sleep(scene.lengths.pause_s)
    stage.instances[at].signal(SIGCONT)
    blow.mend()


async def kill_redis(scene: Scene, rng: Random, blow: Blow) -> None:
    server = scene.stage.server
    assert server is not None
    await asyncio.to_thread(server.kill)
    blow.strike("Redis")
    await asyncio.sleep(rng.uniform(*AWAY_S))
    await asyncio.to_thread(server.start)
    blow.mend()


async def kill_master(scene: Scene, rng: Random, blow: Blow) -> None:
    """Its replica takes over; it comes back as the replica of that one."""
    cluster = scene.stage.cluster
    assert cluster is not None
    dead = await asyncio.to_thread(cluster.kill_master, rng.randrange(MASTERS))
    blow.strike(f"the master on port {dead.port}")
    await asyncio.to_thread(cluster.wait_failover, dead)
    blow.mend()
    await asyncio.to_thread(dead.start)


async def stop_database(scene: Scene, rng: Random, blow: Blow) -> None:
    """PostgreSQL is killed. SQLite has no process: it is locked, and whoever writes is refused."""
    stage = scene.stage
    if stage.postgres is not None:
        await asyncio.to_thread(stage.postgres.kill)
        blow.strike("PostgreSQL")
        await asyncio.sleep(scene.lengths.database_s)
        await asyncio.to_thread(stage.postgres.start)
    else:
        with closing(await asyncio.to_thread(_locked, stage.database)) as file:
            blow.strike("SQLite")
            await asyncio.sleep(scene.lengths.database_s)
            file.execute("ROLLBACK")
    blow.mend()


async def cut_link(scene: Scene, rng: Random, blow: Blow) -> None:
    await _unlink("cut", scene, rng, blow)


async def hold_link(scene: Scene, rng: Random, blow: Blow) -> None:
    await _unlink("hold", scene, rng, blow)


async def _unlink(how: str, scene: Scene, rng: Random, blow: Blow) -> None:
    stage = scene.stage
    at = await _victim(stage, rng, blow)
    await stage.link(how, at)
    blow.strike(stage.names[at])
    await asyncio.sleep(scene.lengths.link_s)
    await stage.link("mend", at)
    blow.mend()


async def flap(scene: Scene, rng: Random, blow: Blow) -> None:
    with _on(scene.crowds.flap):
        blow.strike("receivers")
        await asyncio.sleep(scene.lengths.reader_s)
    blow.mend()


async def read_slowly(scene: Scene, rng: Random, blow: Blow) -> None:
    with _on(scene.crowds.slow_reader):
        blow.strike("readers")
        await asyncio.sleep(scene.lengths.reader_s)
    blow.mend()


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


async def _victim(stage: Stage, rng: Random, blow: Blow) -> int:
    """One of the instances that somebody is connected to: after a fault, all may be at the one that survived it."""
    owners = await stage.whereabouts()
    busy = [name for name in stage.names if name in owners.values()]
    name = rng.choice(busy or stage.names)
    blow.shards = tuple(shard for shard, holder in enumerate(await stage.holders()) if holder == name)
    blow.users = tuple(user for user, owner in owners.items() if owner == name)
    return stage.names.index(name)


def _locked(url: str) -> sqlite3.Connection:
    file = sqlite3.connect(sqlite_path(url), timeout=30, isolation_level=None, check_same_thread=False)
    file.execute("BEGIN IMMEDIATE")
    return file


def _after(seconds: float) -> Takes:
    return lambda lengths: seconds


_BY_NAME = (
    Fault(HEALTHY_NAME, nothing, _after(0)),
    Fault("node-kill", kill_node, _after(2.0), load="speech"),
    Fault("instance-kill", kill_instance, lambda lengths: lengths.presence_s + 3.5),
    Fault("instance-pause", pause_instance, lambda lengths: lengths.pause_s + 2.5),
    Fault("redis-kill", kill_redis, _after(2.0), "single"),
    Fault("master-kill", kill_master, _after(5.0), "cluster"),
    Fault("database-stop", stop_database, lambda lengths: lengths.database_s + 0.5, load="chat"),
    Fault("link-cut", cut_link, lambda lengths: lengths.link_s + 1.0),
    Fault("link-hold", hold_link, lambda lengths: lengths.link_s + 1.0),
    Fault("receiver-flap", flap, lambda lengths: lengths.reader_s),
    Fault("slow-reader", read_slowly, lambda lengths: lengths.reader_s),
    # Last, because it needs a Redis of its own.
    Fault("redis-kill-everysec", kill_redis, _after(2.0), "single", fsync="everysec"),
)
BY_NAME = {fault.name: fault for fault in _BY_NAME}
HEALTHY = BY_NAME[HEALTHY_NAME]
FAULTS: tuple[Fault, ...] = tuple(fault for fault in _BY_NAME if fault is not HEALTHY)


def named(names: Sequence[str]) -> list[Fault]:
    """The faults of these names, in the order of the table; CannotRun for one there is not."""
    for name in names:
        if name not in BY_NAME:
            raise CannotRun(f"There is no fault {name!r}: choose from {', '.join(BY_NAME)}.")
    return [fault for fault in BY_NAME.values() if fault.name in names]
