"""How long it took until things went on, in seconds: from the times in ledgers and blows, and from nothing else.

Each fault is asked the questions that make sense for it; of several strikes, and of several who were hit, the slowest
counts. What nobody tried while it mattered has no answer, and is left out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dragoman.domain.chat.shards import shard_of
from dragoman.tools.verify.node_events import Kind, NodeEvent
from dragoman.tools.verify.settings import SHARDS


class Blow(Protocol):
    """One strike of a fault, as `faults` notes it; times are monotonic, 0 is never."""

    @property
    def victim(self) -> str: ...
    @property
    def struck_at(self) -> float: ...
    @property
    def mended_at(self) -> float: ...
    @property
    def buried_at(self) -> float: ...
    @property
    def shards(self) -> Sequence[int]: ...
    @property
    def users(self) -> Sequence[int]: ...


class Message(NamedTuple):
    """A message as its sender knows it."""

    sender: int
    sent_at: float
    accepted_at: float | None = None
    saved_at: float | None = None


class Connection(NamedTuple):
    """A client is connected again: a user of chat, or a session of speech."""

    who: int | str
    at: float


@dataclass(frozen=True, slots=True)
class Told:
    """All that was written down."""

    messages: Sequence[Message] = ()
    events: Sequence[NodeEvent] = ()
    connections: Sequence[Connection] = ()


Question = Callable[[Blow, Told], float | None]


def first_accepted(blow: Blow, told: Told) -> float | None:
    return _until_first((_told_at(one) for one in told.messages), blow.mended_at)


def first_saved(blow: Blow, told: Told) -> float | None:
    return _until_first((one.saved_at for one in told.messages), blow.mended_at)


def accepted_there(blow: Blow, told: Told) -> float | None:
    """Through the instance that was cut off: by those who were connected to it all the time."""
    there = set(blow.users)
    return _until_first((_told_at(one) for one in told.messages if one.sender in there), blow.mended_at)


def clients_back(blow: Blow, told: Told) -> float | None:
    """Each who was connected to the victim has a connection again; sessions of speech tell so when they are resumed."""
    since = [one for one in told.connections if one.at >= blow.struck_at]
    concerned = {one.who for one in since if isinstance(one.who, str)}.union(blow.users)
    return _slowest(_until_first((one.at for one in since if one.who == who), blow.struck_at) for who in concerned)


def clients_answered(blow: Blow, told: Told) -> float | None:
    """Each of its users has sent something since, and was told that it is accepted."""
    return _slowest(
        _until_first((_told_at(one) for one in told.messages if one.sender == user), blow.struck_at)
        for user in blow.users
    )


def shards_worked(blow: Blow, told: Told) -> float | None:
    """Something sent since by somebody who is elsewhere is saved in each shard that was the victim's."""
    since = [one for one in told.messages if one.sent_at >= blow.struck_at and one.sender not in blow.users]
    return _slowest(
        _until_first((one.saved_at for one in since if shard_of(one.sender, SHARDS) == shard), blow.struck_at)
        for shard in blow.shards
    )


def all_shards_accept(blow: Blow, told: Told) -> float | None:
    since = [one for one in told.messages if one.sent_at >= blow.struck_at]
    return _slowest(
        _until_first((_told_at(one) for one in since if shard_of(one.sender, SHARDS) == shard), blow.struck_at)
        for shard in range(SHARDS)
    )


def buried(blow: Blow, told: Told) -> float | None:
    return blow.buried_at - blow.struck_at if blow.buried_at else None


def jobs_moved(blow: Blow, told: Told) -> float | None:
    """Every job the dead node had in hand was given to another."""
    before = [one for one in told.events if one.node == blow.victim and one.at <= blow.struck_at]
    held = {one.job for one in before if one.kind is Kind.GIVEN} - {one.job for one in before if one.kind is Kind.ENDED}
    given = [one for one in told.events if one.kind is Kind.GIVEN and one.node != blow.victim]
    return _slowest(_until_first((one.at for one in given if one.job == job), blow.struck_at) for job in held)


QUESTIONS: dict[str, dict[str, Question]] = {
    "node-kill": {"its jobs on other nodes": jobs_moved},
    "instance-kill": {
        "clients back": clients_back,
        "clients answered": clients_answered,
        "shards": shards_worked,
        "jobs": buried,
    },
    "instance-pause": {"clients answered": clients_answered, "shards": shards_worked},
    "redis-kill": {"first accepted": first_accepted},
    "redis-kill-everysec": {"first accepted": first_accepted},
    "master-kill": {"all shards accept": all_shards_accept},
    "database-stop": {"first saved": first_saved},
    "link-cut": {"first accepted through it": accepted_there},
    "link-hold": {"first accepted through it": accepted_there},
}


def recovered(fault: str, blows: Iterable[Blow], told: Told) -> dict[str, float]:
    """Answers by question, the slowest of all blows."""
    struck = list(blows)
    found = {
        question: _slowest(ask(blow, told) for blow in struck) for question, ask in QUESTIONS.get(fault, {}).items()
    }
    return {question: seconds for question, seconds in found.items() if seconds is not None}


def _told_at(one: Message) -> float | None:
    """Accepted; or saved, where nobody told accepted before."""
    return one.saved_at if one.accepted_at is None else one.accepted_at


def _until_first(moments: Iterable[float | None], since: float) -> float | None:
    return min((at - since for at in moments if at is not None and at >= since), default=None)


def _slowest(answers: Iterable[float | None]) -> float | None:
    return max((one for one in answers if one is not None), default=None)
