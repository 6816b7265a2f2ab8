"""What a session asks for: one utterance, or one text, into one language; and the interface by which it is notified.

The session is the listener. Drivers know nothing else of it, so a member of a room can be a listener, too.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from dragoman.domain.job_signals import End
from dragoman.domain.placement import NoNode
from dragoman.protocol.audio import decode_base64, duration_ms
from dragoman.protocol.codes import TextKind
from dragoman.protocol.errors import BadAudio
from dragoman.protocol.node import JobAssign, NodePartial
from dragoman.protocol.peer import RoomUtterance
from dragoman.protocol.session import Utterance
from dragoman.services.loops import resolve
from dragoman.services.speech.turn_queue import TurnPosition, TurnQueue

MAX_NODES = 64  # of one session whose latest index is known


class Listener(Protocol):
    def job_waits(self, request: "JobRequest", why: NoNode) -> None: ...

    def job_dispatched(self, request: "JobRequest", node_id: str, attempt: int) -> None: ...

    def job_accepted(self, request: "JobRequest") -> None: ...

    def job_partial(self, request: "JobRequest", partial: NodePartial) -> None: ...

    def job_moved(self, request: "JobRequest") -> None: ...

    def job_ended(self, request: "JobRequest", end: End) -> None: ...


class LatestIndexes:
    """The latest index of one session that each node was sent: an old node does not translate an earlier one then."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def sent(self, node_id: str, index: int) -> None:
        self._of[node_id] = max(index, self._of.pop(node_id, 0))
        if len(self._of) > MAX_NODES:
            del self._of[next(iter(self._of))]

    def is_after(self, node_id: str, index: int) -> bool:
        return self._of.get(node_id, index) > index

    def nodes_after(self, index: int) -> frozenset[str]:
        return frozenset([node_id for node_id, latest in self._of.items() if latest > index])


@dataclass(slots=True)
class JobRequest:
    job_id: str
    request_id: str
    listener: Listener
    assignment: JobAssign  # as for a first attempt
    cut_at: float
    turn_queue: TurnQueue
    position: TurnPosition
    ends_turn: bool
    audio_ms: int | None = None  # None: to be counted
    may_park: bool = False  # cut by length: an old node keeps it until the next job of its turn
    needs: frozenset[str] = frozenset()
    tenant: str = "default"
    account: str = ""  # whose job it is
    latest: LatestIndexes = field(default_factory=LatestIndexes)  # the session's
    preview_node: str | None = None  # that previewed its utterance
    client_lag_ms: float | None = None  # from the client to this instance, of its last chunk
    text_kind: TextKind | None = None  # of a text job: what asked for it
    timeout_ms: int | None = None  # of the whole job; None: as configured
    room: RoomUtterance | None = None  # if it was spoken in a room
    published: "asyncio.Future[None] | None" = None  # done when its caption, or its loss, is in the log of the room
    release_state: str = ""  # how the release window settled its index, or why it dropped the result
    # Copies from the assignment: a job asks for them some forty times.
    session_id: str = field(init=False)
    index: int = field(init=False)
    trace_id: str = field(init=False)

    def __post_init__(self) -> None:
        about = self.assignment
        self.session_id, self.index, self.trace_id = about.session_id, about.utterance_index, about.trace_id

    def settled(self, release_state: str) -> None:
        """The state is written with the last step of the job."""
        self.release_state = release_state

    def publishing(self) -> None:
        """Its end goes to a room: until it is in the log there, another instance may have to note the loss."""
        if self.published is None:
            self.published = asyncio.get_running_loop().create_future()

    def was_published(self) -> None:
        if self.published is not None:
            resolve(self.published)

    @property
    def is_text(self) -> bool:
        return self.text_kind is not None

    @property
    def audio_s(self) -> float:
        """The length of its audio; 0 if that is not known."""
        if self.audio_ms is None:
            self.audio_ms = audio_ms_of(self.assignment)
        return self.audio_ms / 1000


def audio_ms_of(message: JobAssign | Utterance) -> int:
    """0 if it cannot be read."""
    try:
        return duration_ms(message.audio_format, decode_base64(message.audio), message.sample_rate)
    except BadAudio:
        return 0
