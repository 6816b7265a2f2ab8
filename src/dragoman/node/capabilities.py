"""What a node tells the server about itself: in node_register on each connection, in node_heartbeat every 15 s."""

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.protocol import codec
from dragoman.protocol.fields import MAX_PAIRS
from dragoman.protocol.node import (
    Capability,
    Hardware,
    InstalledService,
    LanguageCapabilities,
    NodeHeartbeat,
    NodeRegister,
    ResourceUsage,
    advanced_features,
)

CAPABILITY_SCHEMA_VERSION = "2.0"
_FEW = 8


def usage_of_this_machine() -> ResourceUsage:
    """Load and memory as the operating system reports them; zeros where it does not."""
    cpu = 0.0
    if hasattr(os, "getloadavg"):
        cpu = min(100.0, 100.0 * os.getloadavg()[0] / (os.cpu_count() or 1))
    return ResourceUsage(round(cpu, 1), _memory_percent(), 0)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a node can do; the server reads it at every registration and heartbeat.

    A server assumes that a node serves *every* pair of a language in `asr` and a language in `semantic`. For text jobs
    it counts only on the pairs in `text_pairs`. A node may serve either, or both.
    """

    asr: Sequence[str] = ()  # languages it recognises
    semantic: Sequence[str] = ()  # languages it translates into
    tts: Sequence[str] = ()  # languages it speaks; empty: text only
    slots: int = 1  # jobs at a time
    version: str = "1.0.0"  # of the node's own software
    services: Sequence[InstalledService] | None = None  # None: one service for each type that is ready
    ready: Mapping[str, bool] | None = None  # by type: asr, nmt, semantic, tts; None: derived from the languages
    public: bool = True  # takes jobs of every tenant
    # Source and target of text jobs; source `auto`: the node detects it. None: what the handler can do, see Node.
    text_pairs: Sequence[tuple[str, str]] | None = None
    previews: int | None = (
        None  # utterances recognised while they are spoken, at a time; None: `slots`, if the node can
    )

    @classmethod
    def of(cls, languages: Sequence[str], slots: int = 1) -> "Capabilities":
        """Every pair of these languages, with a voice for each."""
        return cls(languages, languages, languages, slots)

    def __post_init__(self) -> None:
        if len(self.text_pairs or ()) > MAX_PAIRS:
            raise ValueError(f"text_pairs has more than {MAX_PAIRS} pairs: leave some out")

    @property
    def summary(self) -> str:
        text = f"text {_few([f'{src} → {tgt}' for src, tgt in self.text_pairs or ()])}"
        if not self.asr and self.text_pairs:
            return f"{text}; {self.slots} slots"
        voice = "" if self.tts else ", text only"
        speech = f"{_few(self.asr)} → {_few(self.semantic)}{voice}"
        return f"{speech}; {text}; {self.slots} slots" if self.text_pairs else f"{speech}; {self.slots} slots"

    def register(self, node_id: str | None, token: str | None, draining: bool) -> NodeRegister:
        return NodeRegister(
            version=self.version,
            capability_schema_version=CAPABILITY_SCHEMA_VERSION,
            platform=platform.system().lower(),
            hardware=Hardware(os.cpu_count() or 1, _memory_gb()),
            installed_models=[],
            installed_services=self._services(),
            capability_by_type=self._capabilities(draining),
            features_supported=codec.raw({}),
            accept_public_jobs=self.public,
            node_id=node_id,
            advanced_features=advanced_features(
                self.slots, text_jobs=bool(self.text_pairs), previews=self.previews or 0 if self.asr else 0
            ),
            language_capabilities=self._languages(),
            text_pairs=list(self.text_pairs) if self.text_pairs else None,
            token=token,
        )

    def heartbeat(self, node_id: str, usage: ResourceUsage, draining: bool) -> NodeHeartbeat:
        return NodeHeartbeat(
            node_id=node_id,
            timestamp=time.time_ns() // 1_000_000,
            resource_usage=usage,
            installed_services=self._services(),
            capability_by_type=self._capabilities(draining),
            language_capabilities=self._languages(),
        )

    def _types(self) -> dict[str, bool]:
        if self.ready is not None:
            return dict(self.ready)
        speech, text = bool(self.semantic), bool(self.text_pairs)
        return {"asr": bool(self.asr), "nmt": speech or text, "semantic": speech, "tts": bool(self.tts)}

    def _capabilities(self, draining: bool) -> list[Capability]:
        # Every server, also an old one, gives no jobs to a node that is ready for nothing.
        return [Capability(type, ready and not draining) for type, ready in self._types().items()]

    def _services(self) -> list[InstalledService]:
        if self.services is not None:
            return list(self.services)
        return [
            InstalledService(f"dragoman-{type}", type, "cpu", "running", self.version)
            for type, ready in self._types().items()
            if ready
        ]

    def _languages(self) -> LanguageCapabilities:
        return LanguageCapabilities(list(self.asr), list(self.tts), list(self.semantic), bool(self.semantic))


def _few(languages: Sequence[str]) -> str:
    more = f" and {len(languages) - _FEW} more" if len(languages) > _FEW else ""
    return (", ".join(languages[:_FEW]) or "no language") + more


def _memory_gb() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return 0.0


def _memory_percent() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    kib = dict(_meminfo(lines))
    if not kib.get("MemTotal"):
        return 0.0
    return round(100.0 * (1 - kib.get("MemAvailable", 0) / kib["MemTotal"]), 1)


def _meminfo(lines: Iterable[str]) -> Iterable[tuple[str, int]]:
    for line in lines:
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            yield name, int(rest.split()[0])
