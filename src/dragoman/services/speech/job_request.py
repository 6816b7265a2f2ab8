"""What a session asks for, and of whom: the job of one utterance, or of one text, into one language.

- `JobRequest` goes to the dispatcher, which notifies its `Listener`.
- `TurnQueue` is a turn and its jobs, which are placed one after the other.
- `RoomSpeech` is what a session asks of the room it is in: how to speak there. The rooms implement it; sessions know
  nothing else of them.

      first cut of a turn ─▶ begin_turn      every cut ─▶ utterance      end of a job ─▶ publish
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dragoman.domain.job_signals import End
from dragoman.domain.placement import NoNode, Turn
from dragoman.protocol.audio import decode_base64, duration_ms
from dragoman.protocol.codes import BadAudio, TextKind
from dragoman.protocol.node import JobAssign, NodePartial
from dragoman.protocol.peer import RoomUtterance
from dragoman.protocol.session import Utterance
from dragoman.services.loops import Tasks, resolve, retry
from dragoman.store.jobs import Turns


@dataclass(frozen=True, slots=True)
class RoomTurn:
    """How the utterances of one turn are spoken in a room. Decided at its first cut: an old node merges the audio of a
    turn by its target language."""

    room_id: str
    lang: str  # spoken
    target: str  # into which a job translates, too; '' = it only recognises
    voice: bool  # whether the translation should be spoken


@dataclass(frozen=True, slots=True)
class InRoom:
    """One utterance of such a turn. `refused`: why it is not shown in the room, and not recognised either."""

    turn: RoomTurn
    utterance: RoomUtterance
    vocabulary: tuple[str, ...] = ()
    context: str = ""
    refused: End | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """The end of the job of an utterance. `epoch`: of the session now."""

    session_id: str
    index: int
    utterance: RoomUtterance
    end: End
    epoch: int
    account: str
    highest_sent: int  # the highest index of the session that has a result


class RoomSpeech(Protocol):
    def begin_turn(self, session_id: str, src_lang: str | None) -> RoomTurn | None:
        """None: the session is in no room. `src_lang`: the spoken language, if the utterance states it."""

    def utterance(self, session_id: str, turn: RoomTurn, epoch: int, audio_ms: int) -> InRoom: ...

    def publish(self, spoken: Spoken, then: Callable[[End], object]) -> None:
        """Make a caption of it, or note that it was lost. `then` is called with its end when that is in the log; with a
        failure if the room has refused it."""

    def partial(self, session_id: str, index: int, text: str) -> None: ...

    def vocabulary(self, session_id: str) -> tuple[str, ...]: ...

    def language(self, session_id: str) -> str | None:
        """That the session speaks in its room; None: it is in no room."""

    def over(self, session_id: str) -> None:
        """The session has ended, or continues on another instance."""


class NoRooms:
    """For sessions of an instance, or a test, without rooms."""

    def begin_turn(self, session_id: str, src_lang: str | None) -> RoomTurn | None:
        return None

    def utterance(self, session_id: str, turn: RoomTurn, epoch: int, audio_ms: int) -> InRoom:
        raise AssertionError("there is no room to speak in")

    def publish(self, spoken: Spoken, then: Callable[[End], object]) -> None:
        then(spoken.end)

    def partial(self, session_id: str, index: int, text: str) -> None: ...

    def vocabulary(self, session_id: str) -> tuple[str, ...]:
        return ()

    def language(self, session_id: str) -> str | None:
        return None

    def over(self, session_id: str) -> None: ...


class TurnQueue:
    """A turn and the queue of its jobs: each is placed when the one before is placed or has failed."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.jobs = 0
        self.room: RoomTurn | None = None  # if it is spoken in a room; decided at its first cut
        self._tail: asyncio.Future[None] | None = None

    def speak_in(self, room: RoomTurn | None) -> None:
        self.room = room

    def join(self) -> "TurnPosition":
        self.jobs += 1
        before, mine = self._tail, asyncio.get_running_loop().create_future()
        self._tail = mine
        return TurnPosition(before, mine)


class TurnPosition:
    """A position in a turn's queue, in the order of the cuts."""

    __slots__ = ("_before", "_mine")

    def __init__(self, before: "asyncio.Future[None] | None", mine: "asyncio.Future[None]") -> None:
        self._before, self._mine = before, mine

    async def wait(self) -> None:
        """For the jobs before this one."""
        if self._before is not None:
            await asyncio.shield(self._before)

    def leave(self) -> None:
        resolve(self._mine)


class SessionTurns:
    """The open turns of one session."""

    def __init__(self, session_id: str, store: Turns, tasks: Tasks) -> None:
        self._session_id, self._store, self._tasks = session_id, store, tasks
        self._open: dict[str, TurnQueue] = {}

    def open(self, turn: Turn) -> TurnQueue:
        queue = self._open[turn.id] = TurnQueue(turn)
        return queue

    def get(self, turn_id: str) -> TurnQueue | None:
        return self._open.get(turn_id)

    def all(self) -> list[TurnQueue]:
        return list(self._open.values())

    def forget(self, queue: TurnQueue) -> None:
        """The turn has ended, and no affinity was written for it."""
        self._open.pop(queue.turn.id, None)

    def end(self, queue: TurnQueue) -> None:
        """After the last job of the turn was placed, remove its affinity. The next turn does not wait for this."""
        self.forget(queue)
        self._tasks.spawn(self._end(queue.turn, queue.join()), "end-turn")

    async def _end(self, turn: Turn, position: TurnPosition) -> None:
        await position.wait()
        try:
            if turn.node_id is not None:  # retried for ever: the key has no TTL
                await retry(lambda: self._store.end(self._session_id, turn.id))
        finally:
            turn.end()
            position.leave()


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
