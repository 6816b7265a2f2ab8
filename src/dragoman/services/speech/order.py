"""What a session orders: one utterance into one language; and what it hears of it.

The session is the listener here. Later a room's member may be one: nothing below knows the difference.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from dragoman.domain.job import Outcome
from dragoman.domain.placement import Assign, NoNode, Receipt
from dragoman.domain.turn import Turn
from dragoman.protocol.audio import decode_base64, duration_ms
from dragoman.protocol.errors import BadAudio
from dragoman.protocol.node import JobAssign, JobResult, NodePartial

MAX_LATEST = 64  # nodes of one session whose latest index is remembered


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended."""

    outcome: Outcome
    code: str = ""
    message: str = ""
    result: JobResult | None = None
    node_id: str | None = None
    receipt: Receipt | None = None  # of a placement that found nobody, to be recorded with the end


class Listener(Protocol):
    def job_waits(self, order: "Order", why: NoNode) -> None: ...

    def job_dispatched(self, order: "Order", node_id: str) -> None: ...

    def job_taken(self, order: "Order") -> None: ...

    def job_partial(self, order: "Order", partial: NodePartial) -> None: ...

    def job_moved(self, order: "Order") -> None: ...

    def job_ended(self, order: "Order", end: End) -> None: ...


class TurnLine:
    """A turn and the queue of its jobs: each is placed when the one before is placed or has failed."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.jobs = 0
        self._tail: asyncio.Future[None] | None = None

    def join(self) -> "Place":
        self.jobs += 1
        before, mine = self._tail, asyncio.get_running_loop().create_future()
        self._tail = mine
        return Place(before, mine)


class Place:
    """A place in a turn's queue, taken in the order of the cuts."""

    __slots__ = ("_before", "_mine")

    def __init__(self, before: "asyncio.Future[None] | None", mine: "asyncio.Future[None]") -> None:
        self._before, self._mine = before, mine

    async def my_turn(self) -> None:
        if self._before is not None:
            await asyncio.shield(self._before)

    def leave(self) -> None:
        if not self._mine.done():
            self._mine.set_result(None)


@dataclass(slots=True)
class Order:
    job_id: str
    request_id: str
    listener: Listener
    assignment: JobAssign  # attempt_id is that of the attempt under way
    cut_at: float
    line: TurnLine
    place: Place
    ends_turn: bool
    audio_ms: int | None = None  # None: to be counted
    held_by_node: bool = False  # cut by length: an old node may keep it until its turn goes on
    needs: frozenset[str] = frozenset()
    tenant: str = "default"
    seen: set[str] = field(default_factory=set)  # nodes that had this job
    failed_on: set[str] = field(default_factory=set)  # nodes that failed this job: never asked for it again
    latest_on: dict[str, int] = field(default_factory=dict)  # node → latest index of the session it had; the session's
    held: Assign | None = None  # where it has a slot now
    advanced: "asyncio.Future[bool] | None" = None  # the session's state says that this index is used
    client_lag_ms: float | None = None  # from the client to us, of the last chunk in it
    sent_at: float | None = None  # to a node that acknowledges jobs
    ack_ms: float | None = None  # from then to its acknowledgement
    release_state: str = ""  # how the release window settled its index, or why it dropped the result

    @property
    def audio_s(self) -> float:
        """The length of its audio; 0 if that is not known."""
        if self.audio_ms is None:
            about = self.assignment
            try:
                self.audio_ms = duration_ms(about.audio_format, decode_base64(about.audio), about.sample_rate)
            except BadAudio:
                self.audio_ms = 0
        return self.audio_ms / 1000

    def sent_to(self, node_id: str) -> None:
        self.seen.add(node_id)
        latest = max(self.index, self.latest_on.pop(node_id, 0))
        self.latest_on[node_id] = latest
        if len(self.latest_on) > MAX_LATEST:
            del self.latest_on[next(iter(self.latest_on))]

    @property
    def later_on(self) -> frozenset[str]:
        """Nodes that had a later index of the session."""
        return frozenset(node for node, index in self.latest_on.items() if index > self.index)

    @property
    def session_id(self) -> str:
        return self.assignment.session_id

    @property
    def index(self) -> int:
        return self.assignment.utterance_index

    @property
    def trace_id(self) -> str:
        return self.assignment.trace_id
