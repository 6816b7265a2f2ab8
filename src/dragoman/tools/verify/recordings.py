"""The events that nodes record, one JSON line each, and what follows from them: attempts of jobs, load of nodes.

    began        the process has started              given       a job_assign arrived
    registered   the server accepted the node         started     the node began to work on the job
    lost         the connection is gone               ended       answered: ok, empty or failed
    alive        several a second                     cancelled   a job_cancel arrived

Times are of `time.monotonic`, which all processes of one machine share. Each line is one write, so a node that is
killed leaves whole lines; only the last one may be cut off.
"""

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum, auto
from pathlib import Path
from urllib.parse import urlsplit

import msgspec


class Kind(StrEnum):
    BEGAN = auto()
    REGISTERED = auto()
    LOST = auto()
    ALIVE = auto()
    GIVEN = auto()
    STARTED = auto()
    ENDED = auto()
    CANCELLED = auto()


class NodeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    kind: Kind
    node: str
    pid: int
    slots: int = 0
    url: str = ""  # of the instance it is connected to
    job: str = ""
    attempt: int = 0
    session: str = ""
    index: int = -1
    turn: str = ""
    outcome: str = ""
    pieces: str = ""  # as `pieces.text` writes them


_decode = msgspec.json.Decoder(NodeEvent).decode


class EventFile:
    """Appended to by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: NodeEvent) -> None:
        os.write(self._file, msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(paths: Iterable[Path], since: float = 0.0) -> list[NodeEvent]:
    """All events of these files since then, in order of time."""
    found = list[NodeEvent]()
    for path in paths:
        if path.exists():
            found += [_decode(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return sorted((event for event in found if event.at >= since), key=lambda event: event.at)


@dataclass(slots=True)
class Attempt:
    """One attempt of a job on one node."""

    job: str
    attempt: int
    node: str
    pid: int
    session: str
    index: int
    turn: str
    given: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    ended: list[tuple[float, str]] = field(default_factory=list)
    pieces: str | None = None

    @property
    def ok_at(self) -> float | None:
        """When it was last answered with a result."""
        return max((at for at, outcome in self.ended if outcome == "ok"), default=None)


class Recordings:
    def __init__(self, events: Sequence[NodeEvent]) -> None:
        self.events = sorted(events, key=lambda event: event.at)
        self.attempts: dict[tuple[str, int, str], Attempt] = {}
        self._by_utterance: dict[tuple[str, int], list[Attempt]] = defaultdict(list)
        self._indexes: dict[str, set[int]] = defaultdict(set)
        self._signs: dict[tuple[str, int], list[float]] = defaultdict(list)  # by node and process
        self._links: dict[str, list[NodeEvent]] = defaultdict(list)  # comings and goings of a node
        for event in self.events:
            self._note(event)

    def _note(self, event: NodeEvent) -> None:
        self._signs[event.node, event.pid].append(event.at)
        match event.kind:
            case Kind.BEGAN | Kind.REGISTERED | Kind.LOST:
                self._links[event.node].append(event)
            case Kind.GIVEN:
                self._attempt(event).given.append(event.at)
            case Kind.STARTED:
                attempt = self._attempt(event)
                attempt.started.append(event.at)
                attempt.pieces = event.pieces
            case Kind.ENDED:
                self._attempt(event).ended.append((event.at, event.outcome))

    def _attempt(self, event: NodeEvent) -> Attempt:
        key = (event.job, event.attempt, event.node)
        if key not in self.attempts:
            one = Attempt(event.job, event.attempt, event.node, event.pid, event.session, event.index, event.turn)
            self.attempts[key] = one
            self._by_utterance[event.session, event.index].append(one)
            self._indexes[event.session].add(event.index)
        return self.attempts[key]

    # -- utterances ----------------------------------------------------------------------------------

    def of(self, session: str, index: int) -> list[Attempt]:
        return self._by_utterance.get((session, index), [])

    def indexes(self, session: str) -> Set[int]:
        return self._indexes.get(session, set())

    def only(self, session: str, index: int) -> Attempt | None:
        """Its attempt, if there was just one and it was answered."""
        attempts = self.of(session, index)
        return attempts[0] if len(attempts) == 1 and attempts[0].ok_at is not None else None

    def was_empty(self, session: str, index: int) -> bool:
        outcomes = {outcome for one in self.of(session, index) for _, outcome in one.ended}
        return outcomes == {"empty"}

    def turns(self) -> Iterator[list[Attempt]]:
        """The first attempts of each turn of several jobs, in the order they were spoken."""
        found: dict[tuple[str, str], dict[int, Attempt]] = defaultdict(dict)
        for one in self.attempts.values():
            if one.turn and one.given:
                first = found[one.session, one.turn].setdefault(one.index, one)
                if min(one.given) < min(first.given):
                    found[one.session, one.turn][one.index] = one
        yield from ([jobs[index] for index in sorted(jobs)] for jobs in found.values() if len(jobs) > 1)

    # -- nodes ---------------------------------------------------------------------------------------

    def port_of(self, node: str, at: float, settle_s: float) -> int | None:
        """Of the instance the node was connected to then, known to all; None if it was not there."""
        before = [event for event in self._links[node] if event.at <= at]
        if not before or before[-1].kind is not Kind.REGISTERED or before[-1].at > at - settle_s:
            return None
        signs = self._signs[node, before[-1].pid]
        lives_on = bisect_right(signs, at) < len(signs)
        return urlsplit(before[-1].url).port or 0 if lives_on else None

    def was_lost(self, node: str, began: float, ended: float) -> bool:
        """Whether it lost its connection or its life then."""
        return any(event.kind is not Kind.REGISTERED and began <= event.at <= ended for event in self._links[node])


@dataclass(frozen=True, slots=True)
class Assignment:
    """A node at the moment it was given a job: how many others it had that were still its own."""

    event: NodeEvent
    others: int
    free: int  # those of them that were the first of their turn there
    bound: bool  # it had another job of the same turn before


def assignments(recordings: Recordings, over_at: dict[str, float], within_s: float = 1.0) -> Iterator[Assignment]:
    """`over_at`: when each job was over, by the stores. Never more than Redis counted at that time: an answer, a lost
    connection, a later attempt elsewhere and a job's end all count as the slot given back. So does a job that was
    called back `within_s` and not begun: it was late, and had been given up when it came."""
    withdrawn = set(_withdrawn(recordings.events, within_s))
    held: dict[str, dict[str, bool]] = defaultdict(dict)  # by node: its jobs, and whether each is bound
    turns: dict[str, set[str]] = defaultdict(set)
    for event in recordings.events:
        match event.kind:
            case Kind.BEGAN | Kind.LOST:
                held[event.node].clear()
            case Kind.ENDED | Kind.CANCELLED:
                held[event.node].pop(event.job, None)
            case Kind.GIVEN:
                for node, jobs in held.items():
                    if node != event.node:
                        jobs.pop(event.job, None)
                if event in withdrawn:
                    continue
                mine = held[event.node]
                for job in [job for job in mine if over_at.get(job, event.at + 1) <= event.at]:
                    del mine[job]
                others = [bound for job, bound in mine.items() if job != event.job]
                bound = mine.get(event.job, event.turn in turns[event.node])
                yield Assignment(event, len(others), others.count(False), bound)
                mine[event.job] = bound
                turns[event.node].add(event.turn)


def _withdrawn(events: Iterable[NodeEvent], within_s: float) -> Iterator[NodeEvent]:
    waiting: dict[tuple[str, str], NodeEvent] = {}
    for event in events:
        match event.kind:
            case Kind.GIVEN:
                waiting[event.node, event.job] = event
            case Kind.STARTED:
                waiting.pop((event.node, event.job), None)
            case Kind.CANCELLED:
                given = waiting.pop((event.node, event.job), None)
                if given is not None and event.at - given.at <= within_s:
                    yield given


def max_jobs(found: Iterable[Assignment], node: str, at: float, within_s: float) -> int:
    """How many jobs the node had at most around that time."""
    near = (one.others + 1 for one in found if one.event.node == node and abs(one.event.at - at) <= within_s)
    return max(near, default=0)
