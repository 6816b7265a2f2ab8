"""What can be switched while a cluster runs, which way a sender's next message goes, and whether it may ask Redis.

    OFF            save, ACK saved, deliver — while the sender waits
    SAVE_FIRST     accepted → save → ACK saved → deliver
    DELIVER_FIRST  accepted → deliver → save → ACK saved

A sender changes its way only between two messages and when nothing of it is unsaved: a message that is saved at
once would overtake those that are still on their way.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from dragoman.domain.chat.shards import in_rollout

LONGEST = 20  # digits of a number: Python refuses to read thousands of them
WAIT_S = 2.0
STAY_S = 10.0


class Path(StrEnum):
    OFF = "off"
    SAVE_FIRST = "save_first"
    DELIVER_FIRST = "deliver_first"


class BadSwitch(ValueError):
    """One sentence that names the switch."""


RANGES = {"rollout_percent": (0, 100), "batch_size": (1, 4096), "block_ms": (10, 60_000)} | {
    "max_backlog": (1, 100_000_000),
    "wait_replicas": (0, 16),
}


@dataclass(frozen=True, slots=True)
class Switches:
    enabled: bool = False
    deliver_before_saved: bool = False
    fail_open: bool = True
    rollout_percent: int = 100
    batch_size: int = 256
    block_ms: int = 1000
    max_backlog: int = 100_000
    wait_replicas: int = 0

    def path_of(self, user: int) -> Path:
        """The way new messages of this sender should go."""
        if not self.enabled or not in_rollout(user, self.rollout_percent):
            return Path.OFF
        return Path.DELIVER_FIRST if self.deliver_before_saved else Path.SAVE_FIRST

    def changed(self, texts: dict[str, str]) -> "Switches":
        """With these values, given as text; raises BadSwitch."""
        values: dict[str, Any] = {name: _parse(name, text) for name, text in texts.items()}
        return replace(self, **values)

    def texts(self) -> dict[str, str]:
        return {name: _text(getattr(self, name)) for name in NAMES}


NAMES = tuple(field.name for field in fields(Switches))
_BOOLS = frozenset(field.name for field in fields(Switches) if field.type is bool)
_WORDS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


def _text(value: bool | int) -> str:
    return str(value).lower()


def _parse(name: str, text: str) -> bool | int:
    if name not in NAMES:
        raise BadSwitch(f"there is no switch {name!r}; there are {', '.join(NAMES)}")
    if name in _BOOLS:
        if text.lower() not in _WORDS:
            raise BadSwitch(f"{name} is on or off, not {text!r}")
        return _WORDS[text.lower()]
    low, high = RANGES[name]
    if not text.isdecimal() or len(text) > LONGEST or not low <= int(text) <= high:
        raise BadSwitch(f"{name} is a number from {low} to {high}, not {text!r}")
    return int(text)


@dataclass(slots=True)
class ConnectionPath:
    """The path one connection is on. `None` until its first message: then nothing of it is known to be on its way."""

    path: Path | None = None
    retry_at: float = 0.0

    def wants_change(self, wanted: Path, now: float) -> bool:
        """Whether the sender's unsaved messages must be counted before its next one."""
        return wanted is not self.path and now >= self.retry_at

    def must_wait(self, unsaved: int, asked_at: float, now: float) -> bool:
        """Whether the message waits until earlier ones are saved. The first of a connection does not: after a crash it
        would wait until the shards of the dead instance are taken over."""
        return unsaved > 0 and self.path is not None and now < asked_at + WAIT_S

    def decide(self, wanted: Path, unsaved: int, now: float) -> Path:
        """Take the wanted path if nothing is on its way, else stay and try again later."""
        if unsaved == 0:
            self.path, self.retry_at = wanted, 0.0
        else:
            # A connection that finds messages of its sender under way was not there when they were accepted:
            # behind any of them it is safe to be saved first.
            self.path = self.path if self.path is not None else Path.SAVE_FIRST
            self.retry_at = now + STAY_S
        return self.path


# -- gate ------------------------------------------------------------------------------------------
#
# A circuit breaker for Redis: after a failure no message asks Redis for REST_S, then one message tries.
#
# If Redis takes half a second to fail, only one message a second pays for it. If the message that tries never reports
# how it went, because its connection was closed meanwhile, another one tries after REST_S.

REST_S = 1.0


class Gate:
    def __init__(self) -> None:
        self._closed_until: float | None = None

    def may_ask(self, now: float) -> bool:
        """Always while Redis works; after a failure once in REST_S."""
        if self._closed_until is None:
            return True
        if now < self._closed_until:
            return False
        self._closed_until = now + REST_S
        return True

    def failed(self, now: float) -> None:
        self._closed_until = now + REST_S

    def worked(self) -> None:
        self._closed_until = None

    @property
    def open(self) -> bool:
        return self._closed_until is None
