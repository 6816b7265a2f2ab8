"""What *accepted* is worth on the Redis we were given, and whether we can work on it at all.

Each class says which death a write survives:

- `fsync`: it is on the disk before it is answered; a Redis killed -9 or a power cut takes nothing.
- `replicated`: replicas have it (WAIT); a master that dies takes nothing with it.
- `process`: our own processes may die; a Redis killed -9 or a power cut may take the last two seconds.
- `none`: nothing is promised, because nothing is known or nothing is kept.

The stronger one is named when two hold. Reading INFO and CONFIG is left to the caller; CONFIG is often forbidden on
a managed Redis, which is no reason to refuse it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OLDEST = (6, 2)


class DurabilityClass(StrEnum):
    FSYNC = "fsync"
    REPLICATED = "replicated"
    PROCESS = "process"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`problems` are fatal; each sentence in either list says what to change."""

    durability: DurabilityClass
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def confirmed_by(self, replicas: int) -> DurabilityClass:
        """What a write is worth that so many replicas confirm before it is answered: that may change while we run."""
        if replicas > 0 and self.durability is not DurabilityClass.FSYNC:
            return DurabilityClass.REPLICATED
        return self.durability


def judge(info: Mapping[str, str], settings: Mapping[str, str] | None, wait_replicas: int = 0) -> Judgement:
    """Judge a server by INFO (server, persistence; memory as well where CONFIG is forbidden) and CONFIG GET.

    `settings` holds appendonly, appendfsync, save, maxmemory and maxmemory-policy, or is None when CONFIG was refused.
    """
    durability, doubt = _durability(settings, wait_replicas)
    warnings = [doubt] if doubt else []
    if info.get("aof_last_write_status", "ok") != "ok":
        warnings.append("Redis could not write its append-only file and refuses writes: look at its disk and its log.")
    found = [_version_problem(info), _eviction_problem(info, settings or {})]
    return Judgement(durability, [problem for problem in found if problem], warnings)


def _durability(settings: Mapping[str, str] | None, wait_replicas: int) -> tuple[DurabilityClass, str | None]:
    appendonly = settings is not None and settings.get("appendonly") == "yes"
    appendfsync = settings.get("appendfsync") if settings is not None else None
    if appendonly and appendfsync == "always":
        return DurabilityClass.FSYNC, None
    if wait_replicas > 0:
        return DurabilityClass.REPLICATED, None
    if appendonly and appendfsync == "everysec":
        return DurabilityClass.PROCESS, None
    return DurabilityClass.NONE, _doubt(settings, appendonly)


def _doubt(settings: Mapping[str, str] | None, appendonly: bool) -> str:
    if settings is None:
        return (
            "Redis does not let us read its settings (CONFIG), so nothing is promised about what it keeps: "
            "allow CONFIG GET, or have writes confirmed by replicas."
        )
    if appendonly:
        return (
            "Redis leaves it to the system when its append-only file reaches the disk, and a power cut may take half a "
            "minute: set appendfsync to everysec or always."
        )
    if settings.get("save"):
        return "Redis keeps snapshots only, and its end takes all since the last one: set appendonly to yes."
    return "Redis keeps nothing on disk, and its end takes everything: set appendonly to yes."


def _version_problem(info: Mapping[str, str]) -> str | None:
    # Valkey tells here the version of Redis that it is compatible with, which is what the question is about.
    told = info.get("redis_version", "")
    try:
        major, minor, *_ = (int(part) for part in told.split("."))
    except ValueError:
        return f"Redis tells its version as {told!r}, which cannot be read: use Redis 6.2 or newer, or Valkey."
    if (major, minor) < OLDEST:
        return f"Redis {told} is too old: use Redis 6.2 or newer, or Valkey."
    return None


def _eviction_problem(info: Mapping[str, str], settings: Mapping[str, str]) -> str | None:
    maxmemory = settings.get("maxmemory", info.get("maxmemory", "0"))
    policy = settings.get("maxmemory-policy", info.get("maxmemory_policy", "noeviction"))
    if maxmemory in ("", "0") or policy == "noeviction":
        return None
    return (
        f"Redis may throw away our data when its memory is full (maxmemory {maxmemory}, maxmemory-policy {policy}): "
        "set maxmemory-policy to noeviction."
    )
