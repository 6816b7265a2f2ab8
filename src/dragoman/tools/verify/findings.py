"""What a checker says: findings in words, and the rules it goes by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


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
