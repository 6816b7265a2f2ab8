"""The states of a job, as one table.

Every change of a job is an event looked up here; one script in Redis does the same step. An attempt is one try on one
node: only REASSIGN raises it, and every event of an older one is STALE. Events may arrive twice or overtake each
other: one whose target is at or behind the current state is ALREADY and changes nothing. No job ends without an
outcome, and its slot is released once, by RELEASE.

What the driver does next is decided in `job_run`, deadlines in `deadlines`.
"""

from dataclasses import dataclass
from enum import StrEnum, auto


class State(StrEnum):
    """In order of progress."""

    CREATED = "CREATED"
    DISPATCHED = "DISPATCHED"
    ACCEPTED = "ACCEPTED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    RELEASED = "RELEASED"


class Event(StrEnum):
    DISPATCH = auto()
    ACK = auto()
    START = auto()
    RESULT = auto()
    EXPIRE = auto()
    CANCEL = auto()
    GIVE_UP = auto()
    RELEASE = auto()
    REASSIGN = auto()


class Reply(StrEnum):
    OK = "OK"
    ALREADY = "ALREADY"
    STALE = "STALE"
    ILLEGAL = "ILLEGAL"
    WRONG_NODE = "WRONG_NODE"
    UNKNOWN = "UNKNOWN"  # no such job; only a store can say so


class Outcome(StrEnum):
    OK = auto()
    EMPTY = auto()
    FAILED = auto()
    EXPIRED = auto()
    CANCELLED = auto()


_ENDS = {
    Event.RESULT: State.FINISHED,
    Event.EXPIRE: State.FINISHED,
    Event.CANCEL: State.FINISHED,
    Event.GIVE_UP: State.FINISHED,
    Event.REASSIGN: State.CREATED,
}

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.CREATED: {Event.DISPATCH: State.DISPATCHED, **_ENDS},
    State.DISPATCHED: {Event.ACK: State.ACCEPTED, Event.START: State.RUNNING, **_ENDS},
    State.ACCEPTED: {Event.START: State.RUNNING, **_ENDS},
    State.RUNNING: {**_ENDS},
    State.FINISHED: {Event.RELEASE: State.RELEASED},
    State.RELEASED: {},
}

PROGRESS: dict[State, int] = {state: step for step, state in enumerate(State)}
TARGET: dict[Event, State] = {event: to for row in TRANSITIONS.values() for event, to in row.items()}
FROM_NODE = frozenset({Event.ACK, Event.START, Event.RESULT})
OUTCOME_OF = {
    Event.RESULT: Outcome.OK,
    Event.EXPIRE: Outcome.EXPIRED,
    Event.CANCEL: Outcome.CANCELLED,
    Event.GIVE_UP: Outcome.FAILED,
}


@dataclass(slots=True)
class Job:
    state: State = State.CREATED
    attempt: int = 1
    node_id: str | None = None
    outcome: Outcome | None = None
    code: str | None = None

    def apply(
        self,
        event: Event,
        attempt: int | None,
        node_id: str | None = None,
        outcome: Outcome | None = None,
        code: str | None = None,
    ) -> Reply:
        """One step. `attempt` None matches any: NO_TEXT_ASSIGNED results may carry another job's.

        `outcome` defaults to what the event means; `code` says why.
        """
        if attempt is not None and attempt != self.attempt:
            return Reply.STALE
        if event in FROM_NODE and node_id is not None and node_id != self.node_id:
            return Reply.WRONG_NODE
        target = TRANSITIONS[self.state].get(event)
        if target is None:
            return self._refuse(event)
        self.state = target
        if event is Event.DISPATCH:
            self.node_id = node_id
        elif event is Event.REASSIGN:
            self.attempt += 1
            self.node_id = None
        elif event in OUTCOME_OF:
            self.outcome = outcome or OUTCOME_OF[event]
            self.code = code
        return Reply.OK

    def _refuse(self, event: Event) -> Reply:
        # Reassigning leads back to the start, so "behind" would be true of it everywhere; what has ended stays ended.
        if event is not Event.REASSIGN and PROGRESS[TARGET[event]] <= PROGRESS[self.state]:
            return Reply.ALREADY
        return Reply.ILLEGAL


def chart() -> str:
    """The table as a Mermaid state chart."""
    lines = ["stateDiagram-v2", "    [*] --> CREATED: create"]
    for state, row in TRANSITIONS.items():
        events: dict[State, list[str]] = {}
        for event, target in row.items():
            events.setdefault(target, []).append(event.replace("_", " "))
        lines += [f"    {state} --> {target}: {', '.join(names)}" for target, names in events.items()]
    lines.append("    RELEASED --> [*]")
    return "\n".join(lines) + "\n"
