"""The setup of a verification, and the configuration of its instances.

Short lengths are for everyday use: presences, graces and faults of a few seconds. Real lengths go with the default
settings: a database stopped for a minute, an instance paused for 20 seconds, a link cut for 10.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from dragoman.config import Config, load
from dragoman.tools.verify.speech_load import SETTINGS as SPEECH_SETTINGS

RedisMode = Literal["single", "cluster"]
Database = Literal["sqlite", "postgres"]
Fsync = Literal["always", "everysec"]
Load = Literal["speech", "chat"]
MessagePath = Literal["save_first", "deliver_first", "off"]

PATHS: tuple[MessagePath, ...] = get_args(MessagePath)
SHARDS = 4
PRESENCE = "scheduler.phase2.instance_presence_ttl_seconds"
# Long enough for a process that waits for CPU on a busy machine, short enough to wait for.
_SHORT: dict[str, object] = {
    PRESENCE: 3,
    "scheduler.phase2.owner_ttl_seconds": 20,
    "scheduler.phase2.stream_block_ms": 200,
    "scheduler.phase2.dlq_min_idle_ms": 300,
    "scheduler.phase2.dlq_scan_interval_ms": 200,
    "scheduler.phase2.node_snapshot.refresh_interval_ms": 500,
    "speech.node_grace_ms": 300,
    "speech.reservation_ttl_ms": 6000,
    "chat.resend_after_s": 3.0,
    "archive.busy_ms": 200,
    "server.drain_s": 2,
}
_LOAD: dict[str, object] = {
    "scheduler.phase2.enabled": True,
    "server.admin_port": 0,
    # A few clients make the load of many.
    "limits.frames_per_s": 100_000,
    "limits.chat_frames_per_s": 100_000,
    "limits.chat_bytes_per_day": 0,
    "chat.two_phase.shards": SHARDS,
    "log.format": "json",
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long each fault lasts, and how long to wait for the end, in seconds."""

    database_s: float
    pause_s: float
    link_s: float
    reader_s: float
    presence_s: float
    timeout_s: float


SHORT = Lengths(database_s=1.5, pause_s=4.0, link_s=1.5, reader_s=2.0, presence_s=3.0, timeout_s=60.0)
REAL = Lengths(database_s=60.0, pause_s=20.0, link_s=10.0, reader_s=20.0, presence_s=6.0, timeout_s=120.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """One cluster and its clients."""

    redis: RedisMode = "single"
    database: Database = "sqlite"
    real_lengths: bool = False
    instances: int = 2
    nodes: int = 3
    speakers: int = 6
    chat_users: int = 8
    messages_per_s: float = 60.0
    utterances_per_s: float = 10.0
    path: MessagePath = "save_first"  # two-phase, before receivers or after; or confirmed once

    @property
    def lengths(self) -> Lengths:
        return REAL if self.real_lengths else SHORT

    def only(self, load: Load | None) -> "Setup":
        """The same with one kind of load alone."""
        if load == "chat":
            return replace(self, speakers=0, utterances_per_s=0.0)
        return replace(self, chat_users=0, messages_per_s=0.0) if load == "speech" else self

    def of_seed(self, seed: int) -> "Setup":
        """Each way that messages can take gets its turn, the first seed saves first."""
        return replace(self, path=PATHS[(seed - 1) % len(PATHS)])


def configured(setup: Setup, name: str, port: int, redis_urls: Sequence[str], prefix: str, database: str) -> Config:
    """One instance of that setup."""
    redis = "scheduler.phase2.redis"
    where: dict[str, object] = {
        "scheduler.phase2.instance_id": name,
        "server.port": port,
        f"{redis}.mode": setup.redis,
        f"{redis}.key_prefix": prefix,
        "archive.url": database,
        "chat.two_phase.enabled": setup.path != "off",
        "chat.two_phase.deliver_before_saved": setup.path == "deliver_first",
    }
    if setup.redis == "cluster":
        # What a master accepts and its replica has not seen dies with it: here it is confirmed by both.
        where |= {f"{redis}.cluster_urls": list(redis_urls), "chat.two_phase.wait_replicas": 1}
    else:
        where[f"{redis}.url"] = redis_urls[0]
    return load(None, {}, {**({} if setup.real_lengths else _SHORT), **_LOAD, **SPEECH_SETTINGS, **where})


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'chat.sqlite3'}"
