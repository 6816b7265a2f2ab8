"""Recovery times in seconds, computed from the times in ledgers and injections alone.

Each fault has its own questions. Of several injections, and of several affected clients, the slowest counts. A question
for which nothing was tried at that time has no answer and is left out.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.domain.chat.shards import shard_of
from dragoman.tools.verify.recordings import Kind, NodeEvent
from dragoman.tools.verify.settings import SHARDS


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
