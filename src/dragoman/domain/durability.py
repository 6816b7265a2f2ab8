"""What *accepted* guarantees on a given Redis, and whether that Redis can be used at all.

Each class says which failure a confirmed write survives:

- `fsync`: it is on disk before it is confirmed, so it survives `kill -9` of Redis and a power cut.
- `replicated`: replicas have confirmed it (WAIT), so it survives the loss of the master.
- `process`: it survives the death of our own processes; `kill -9` of Redis or a power cut may lose the last 2 s.
- `none`: nothing is guaranteed, because Redis keeps nothing or its settings cannot be read.

If two classes hold, the stronger one is reported. The caller reads INFO and CONFIG. CONFIG is often forbidden on a
managed Redis, which is no reason to refuse it.
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
class Assessment:
    """`problems` are fatal. Each sentence in either list says what to change."""

    durability: DurabilityClass
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def confirmed_by(self, replicas: int) -> DurabilityClass:
        """The class if this many replicas confirm each write; that number may change at runtime."""
        if replicas > 0 and self.durability is not DurabilityClass.FSYNC:
            return DurabilityClass.REPLICATED
        return self.durability


def assess(info: Mapping[str, str], settings: Mapping[str, str] | None, wait_replicas: int = 0) -> Assessment:
    """Assess a server by INFO (server, persistence; memory as well where CONFIG is forbidden) and CONFIG GET.

    `settings` holds appendonly, appendfsync, save, maxmemory and maxmemory-policy, or is None if CONFIG was refused.
    """
    durability, doubt = _durability(settings, wait_replicas)
    warnings = [doubt] if doubt else []
    if info.get("aof_last_write_status", "ok") != "ok":
        warnings.append("Redis could not write its append-only file and refuses writes: check its disk and its log.")
    found = [_version_problem(info), _eviction_problem(info, settings or {})]
    return Assessment(durability, [problem for problem in found if problem], warnings)


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
            "Redis does not allow its settings to be read (CONFIG), so nothing is guaranteed: "
            "allow CONFIG GET, or have writes confirmed by replicas."
        )
    if appendonly:
        return (
            "Redis lets the operating system decide when to write its append-only file to disk, and a power cut may "
            "lose half a minute: set appendfsync to everysec or always."
        )
    if settings.get("save"):
        return (
            "Redis keeps snapshots only, and loses all writes since the last one if it crashes: set appendonly to yes."
        )
    return "Redis keeps nothing on disk, and loses everything if it crashes: set appendonly to yes."


def _version_problem(info: Mapping[str, str]) -> str | None:
    # Valkey reports here the version of Redis that it is compatible with.
    version = info.get("redis_version", "")
    try:
        major, minor, *_ = (int(part) for part in version.split("."))
    except ValueError:
        return f"Redis reports the version {version!r}, which cannot be read: use Redis 6.2 or newer, or Valkey."
    if (major, minor) < OLDEST:
        return f"Redis {version} is too old: use Redis 6.2 or newer, or Valkey."
    return None


def _eviction_problem(info: Mapping[str, str], settings: Mapping[str, str]) -> str | None:
    maxmemory = settings.get("maxmemory", info.get("maxmemory", "0"))
    policy = settings.get("maxmemory-policy", info.get("maxmemory_policy", "noeviction"))
    if maxmemory in ("", "0") or policy == "noeviction":
        return None
    return (
        f"Redis may evict data when its memory is full (maxmemory {maxmemory}, maxmemory-policy {policy}): "
        "set maxmemory-policy to noeviction."
    )
