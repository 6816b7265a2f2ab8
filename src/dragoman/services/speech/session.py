"""One session: jobs are created from its input, and their results go through the release window to its client.

    chunks, utterances ─▶ SessionInput ─▶ job request ─▶ dispatcher
    end of a job ─▶ release window ─▶ SessionOutput ─▶ socket

Nothing awaits here: every method is called by the event loop's thread and returns at once. A job that fails delays no
other. A session may be without a socket for some time (detached), and after it was resumed on this instance, another
instance may drive some of its jobs (remote jobs).
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, assert_never

import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.limits.sessions import Headroom, Holder, SessionLimits, headroom_for_job
from dragoman.domain.placement import NoNode, Turn
from dragoman.domain.release import Drop, ReleaseWindow, Settled
from dragoman.domain.segmenter import AudioMark, Cut, Output, SegmenterSettings, Silence, TurnEnded, Withheld
from dragoman.protocol import ids
from dragoman.protocol.codes import (
    BackpressureAction,
    CancelReason,
    Close,
    ErrorCode,
    ProtocolError,
    RoomErrorCode,
    UiEventName,
)
from dragoman.protocol.fields import Message
from dragoman.protocol.node import NodePartial
from dragoman.protocol.peer import RoomUtterance
from dragoman.protocol.session import Backpressure, SessionCloseAck, SessionInit, Utterance
from dragoman.services.loops import resolve
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.job_request import (
    InRoom,
    JobRequest,
    NoRooms,
    RoomSpeech,
    SessionTurns,
    Spoken,
    TurnQueue,
    audio_ms_of,
)
from dragoman.services.speech.messages import About, NoJob
from dragoman.services.speech.previews import Previews, Speaker
from dragoman.services.speech.remote import RemoteJob, WorkingElsewhere
from dragoman.services.speech.session_input import NumberedUtterance, SessionInput
from dragoman.services.speech.session_output import Outbox, SessionOutput
from dragoman.store.sessions import audio_fields, window_fields

log = structlog.get_logger(__name__)

DRAIN_PAUSE_MS = 2000
PAUSE_INTERVAL_S = 1.0
PAUSE_MS = 1000  # then the client is asked again, if its jobs still wait
SLOW_PLACEMENT_S = 0.5
NEAR_S = 1.0
SILENCE_NOTE_S = 5.0  # how often Redis is told how much audio was silence
LATE_S = 1.0  # from the cut to the node; beyond it this instance is overloaded
PAUSE_MARGIN_MS = 500  # until the audio of a client that was paused arrives
SHUTTING_DOWN = "this instance is shutting down; connect again"
CLOSED_EARLY = "the session was closed before there was an answer"
TOO_LATE = "a later utterance was sent, and this one was not answered in time"
OVERLOADED = "this instance has too many jobs waiting"
MANY_OPEN = "many utterances of this client wait for their results"
OUTSIDE_ITS_ROOM = "the token is for one room: join it, then speak"
TOO_MANY_OPEN = "too many utterances of this client wait for their results: wait for some, then send it again"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    segmenter: SegmenterSettings
    ack_timeout_ms: int = 5000
    span: int = 1024
    reorder_ms: int = 300
    close_wait_ms: int = 5000
    open_jobs: int = 128
    binary_frames: bool = False
    resume_grace_s: float = 30.0
    detached_session_s: float = 600.0
    placement_wait_s: float = 2.0
    limits: SessionLimits = field(default_factory=SessionLimits)
    silence_ms: int = 500
    previews: bool = True


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state that the last owner of a session wrote, its open jobs and its turn."""

    trace_id: str
    numbered: bool | None
    audio: AudioMark
    next_index: int
    expected: int
    settled: Mapping[int, Settled]
    open_jobs: Sequence[RemoteJob]
    turn: Turn | None


class Session:
    def __init__(
        self,
        id: str,
        socket: Socket | None,
        init: SessionInit,
        dispatcher: Dispatcher,
        metrics: Metrics,
        settings: SessionSettings,
        turns: SessionTurns,
        previews: Previews | None,
        *,
        holder: Holder,
        count_job: Callable[[], object],
        guard: Callable[..., bool],
        on_closed: Callable[["Session"], None],
        rooms: RoomSpeech | None = None,
        restored: SessionState | None = None,
    ) -> None:
        """`previews`: if its client wants them. `restored`: of a session that another instance owned before."""
        now = monotonic()
        state = restored or SessionState(init.trace_id or ids.trace_id(), None, AudioMark(), 0, 0, {}, (), None)
        self.id, self.init, self.subject, self.trace_id = id, init, holder.owner, state.trace_id
        self.room_claim = holder.room_claim
        self.closing = self.over = self.draining = False
        self.input = SessionInput(
            settings.segmenter,
            settings.reorder_ms,
            settings.span,
            id,
            init,
            next_index=state.next_index,
            numbered=state.numbered,
            settled=state.audio,
            silence_ms=settings.silence_ms,
            tenant=ids.tenant_of(holder.owner),
            account=holder.job_account,
        )
        self.remote_jobs = {job.index: job for job in state.open_jobs}
        self.window = ReleaseWindow.restore(
            state.expected, state.settled, now, self.remote_jobs.keys(), settings.ack_timeout_ms, settings.span
        )
        self._rooms = rooms or NoRooms()
        self.output = SessionOutput(id, init, self.trace_id, self.input, socket, self._rooms)
        self._turns, self._speaker = turns, None
        if previews is not None:
            self._speaker = Speaker(previews, id, init, self.trace_id, self.input, self.output, turns, self._rooms)
        if state.turn is not None:
            turns.open(state.turn)
            self.input.segmenter.resume_turn(state.turn.id, now)
        self._dispatcher, self._metrics, self._settings = dispatcher, metrics, settings
        self._holder, self._count_job, self._guard, self._on_closed = holder, count_job, guard, on_closed
        self._requests: dict[int, JobRequest] = {}
        self._said_in_room: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._close_by: float | None = None
        self._asked_to_pause_at = float("-inf")
        self._noted_at = now

    @property
    def socket(self) -> Socket | None:
        """The session's own socket; None while it is detached."""
        return self.output.socket

    @property
    def outbox(self) -> Outbox | None:
        """None for a session that cannot resume."""
        return self.output.outbox

    # -- from the client -------------------------------------------------------------------------

    def chunk(self, audio: bytes, is_final: bool, seq: int, sent_at_ms: int | None = None) -> None:
        """`sent_at_ms`: by the client's clock."""
        self._require_open()
        self._take_cuts(self.input.chunk(audio, is_final, seq, sent_at_ms, monotonic()))

    def utterance(self, message: Utterance, socket: Socket | None) -> None:
        """A whole utterance, numbered by the client; its result goes to the socket at which it arrived."""
        self._require_open()
        now = monotonic()
        self._skip(now)
        reply_to = None if socket is self.socket else socket
        self._take_utterances(self.input.utterance(message, reply_to, now, self.window.expected))
        self.set_timer()

    def tts_started(self) -> None:
        self.input.segmenter.tts_started(monotonic())
        self.set_timer()

    def tts_ended(self) -> None:
        self.input.segmenter.tts_ended(monotonic())
        self.set_timer()

    def close(self) -> None:
        """Cut the audio that is left, wait `close_wait_ms` for results, fail the rest, then confirm."""
        if self.closing:
            return
        self.closing = True
        now = monotonic()
        self._close_by = now + self._settings.close_wait_ms / 1000
        self._take_utterances(self.input.reorder.poll(float("inf")))  # no earlier one will arrive
        self._take_cuts(self.input.segmenter.close(now))
        self._close_if_done()

    def detached(self) -> None:
        """Its socket is gone."""
        self.output.attach(None)
        self._stop_preview()

    def _stop_preview(self) -> None:
        if self._speaker is not None:
            self._speaker.stop()

    def reopen(self) -> None:
        """The client has resumed. If it was closing the session, it asks again."""
        self.closing, self._close_by = False, None

    def stop_accepting(self) -> None:
        """The instance is about to end, and this session with it: no new jobs. Running jobs may finish."""
        if not self.draining:
            self.draining = True
            self.pause(SHUTTING_DOWN, DRAIN_PAUSE_MS)

    def drain(self) -> None:
        self.stop_accepting()
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        """With no open job left, close the socket: the client connects to another instance and loses less audio."""
        if (
            self.draining
            and not self.closing
            and not self._requests
            and not self.remote_jobs
            and self.socket is not None
        ):
            self.socket.close(Close.SHUTDOWN, SHUTTING_DOWN)

    def end(self, reason: str) -> None:
        """The session is over: stop, cancel its jobs and end its turns."""
        self.stop()
        self._dispatcher.cancel_session(self.id, reason)
        closed = End(Outcome.FAILED, ErrorCode.SESSION_CLOSED, CLOSED_EARLY)
        for remote in self.remote_jobs.values():
            if remote.room is not None:
                self._publish(remote, remote.room, closed)
        for queue in self._turns.all():
            self._end_turn(queue)

    def stop(self) -> None:
        """Create no more jobs, send nothing more. The session may continue on another instance."""
        self._stop_preview()
        self.over = True
        self._stop_timer()
        if self.outbox is not None:
            self.outbox.stop()

    def _require_open(self) -> None:
        if self.closing:
            raise ProtocolError(ErrorCode.SESSION_CLOSED, "The session is being closed.")

    # -- to the client ---------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """To the session's own socket."""
        self.output.send(message)

    def pause(self, message: str, resume_after_ms: int) -> None:
        """Ask the client to send nothing for `resume_after_ms`. Always PAUSE: after BUSY or SLOW_DOWN the original web
        client stops its timer when its queue is empty, and sends nothing more until it reconnects."""
        self.send(Backpressure(action=BackpressureAction.PAUSE, message=message, resume_after_ms=resume_after_ms))
        self.client_paused(resume_after_ms)

    def _ask_to_pause(self, why: str) -> None:
        """The client's jobs wait. Sent at most once a second, because the message is load, too."""
        now = monotonic()
        if now - self._asked_to_pause_at >= PAUSE_INTERVAL_S and not self.over:
            self._asked_to_pause_at = now
            self.pause(why, PAUSE_MS)

    def client_paused(self, resume_after_ms: int) -> None:
        """The client was asked to send nothing: meanwhile its silence ends no turn."""
        self.input.segmenter.client_paused((resume_after_ms + PAUSE_MARGIN_MS) / 1000, monotonic())
        self.set_timer()

    def state(self) -> Mapping[str, Any]:
        """What another instance needs to resume this session."""
        expected, settled = self.window.snapshot()
        opened = {index: (request.job_id, request.trace_id) for index, request in self._requests.items()}
        opened |= {one.index: (one.job_id, one.trace_id) for one in self.remote_jobs.values()}
        source = self.input
        return {
            "next_index": source.next_index,
            "numbered": "" if source.numbered is None else int(source.numbered),
            **window_fields(expected, {index: how.value for index, how in settled.items()}, opened),
            **audio_fields(*source.settled),
        }

    # -- jobs ------------------------------------------------------------------------------------

    def _take_cuts(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Cut():
                    self.input.settle(output.settled)
                    queue = self._turns.get(output.turn_id) or self._turns.open(Turn(output.turn_id))
                    preview = self._speaker.cut(output) if self._speaker is not None else None
                    in_room = self._in_room(queue, output.duration_ms)
                    self._dispatch(self.input.request_of_cut(output, queue, self, in_room, preview), in_room)
                case TurnEnded():
                    if (ended := self._turns.get(output.turn_id)) is not None:
                        self._end_turn(ended)
                case Withheld():
                    self.input.settle(output.settled)
                    self._metrics.withheld.inc()
                    if self._speaker is not None:
                        self._speaker.withheld()
                case Silence():
                    self.input.settle(output.settled)
                    self._note_silence()
                case _:
                    assert_never(output)
        if self._speaker is not None and self.socket is not None and not self.draining and self._may_be_heard:
            self._speaker.follow()
        self.set_timer()

    def _note_silence(self) -> None:
        """So that a client that resumes elsewhere after a long silence need not send it again."""
        now = monotonic()
        if self.outbox is not None and now - self._noted_at >= SILENCE_NOTE_S:
            self._noted_at = now
            self.outbox.note(self.state())

    def _take_utterances(self, ready: list[NumberedUtterance]) -> None:
        for message, reply_to in ready:
            queue = self._turns.open(Turn(ids.turn_id()))
            self.output.reply_to(message.utterance_index, reply_to)
            in_room = self._in_room(queue, audio_ms_of(message), message.src_lang)
            self._dispatch(self.input.request_of_utterance(message, queue, self, in_room), in_room)

    def _in_room(self, queue: TurnQueue, audio_ms: int, src_lang: str | None = None) -> InRoom | None:
        """How the next utterance of a turn is spoken in the room of the session; None: it is in no room."""
        if not queue.jobs:
            queue.speak_in(self._rooms.begin_turn(self.id, src_lang))
        epoch = self.outbox.epoch if self.outbox is not None else 0
        return self._rooms.utterance(self.id, queue.room, epoch, audio_ms) if queue.room is not None else None

    def end_turn(self) -> None:
        """Cut what was said until now: what follows belongs to another turn."""
        if not self.over and not self.closing:
            self._take_cuts(self.input.segmenter.close(monotonic()))

    async def said_in_room(self, timeout_s: float) -> None:
        """Cut what was said until now, and wait until everything that was said in a room is in its log."""
        self.end_turn()
        loop = asyncio.get_running_loop()
        self._said_in_room = waiting = loop.create_future()
        timer = loop.call_later(timeout_s, resolve, waiting)
        self._check_said_in_room()
        await waiting
        timer.cancel()

    def _check_said_in_room(self) -> None:
        said = self._said_in_room
        if said is not None and not any(one.room is not None for one in self._open()):
            resolve(said)

    def _open(self) -> "Iterator[JobRequest | RemoteJob]":
        yield from self._requests.values()
        yield from self.remote_jobs.values()

    def _dispatch(self, request: JobRequest, in_room: InRoom | None) -> None:
        queue = request.turn_queue
        self._requests[request.index] = request
        self._count_job()
        outside = End(Outcome.FAILED, RoomErrorCode.NOT_IN_ROOM, OUTSIDE_ITS_ROOM) if self.room_claim else None
        if (refused := (in_room.refused if in_room is not None else outside) or self._refusal()) is not None:
            request.position.leave()
            self.job_ended(request, refused)
        else:
            self._dispatcher.take(request, self.outbox.note(self.state()) if self.outbox is not None else None)
        if request.ends_turn and queue.jobs == 1 and queue.turn.node_id is None:
            self._turns.forget(queue)  # a turn of one job has no affinity
        elif request.ends_turn:
            self._end_turn(queue)

    def _refusal(self) -> End | None:
        """Why the job that was just added cannot run; None if it can."""
        if self.draining:
            return End(Outcome.FAILED, ErrorCode.SESSION_CLOSED, SHUTTING_DOWN)
        if self._dispatcher.is_full:
            self._ask_to_pause(OVERLOADED)
            return End(Outcome.FAILED, ErrorCode.NODE_OVERLOADED, OVERLOADED)
        return None if self._is_within_limits() else End(Outcome.FAILED, ErrorCode.LIMIT_EXCEEDED, TOO_MANY_OPEN)

    @property
    def account(self) -> str:
        """Under which its jobs are counted."""
        return self._holder.job_account

    @property
    def may_ask_for_texts(self) -> bool:
        """Whether its client has few enough open jobs for more text jobs."""
        limit = self._settings.limits.open_jobs_of(self._holder)
        if headroom_for_job(self._dispatcher.open_jobs(self.account) + 1, limit) is not Headroom.NONE:
            return True
        self._metrics.session_limits.labels("jobs").inc()
        return False

    @property
    def _may_be_heard(self) -> bool:
        """A client whose token is for one room speaks in that room only."""
        return self.room_claim is None or self._rooms.language(self.id) is not None

    def _is_within_limits(self) -> bool:
        """Whether the job that was just added is within the limits of the session and of its client; near a limit the
        client is asked to pause."""
        settings, holder = self._settings, self._holder
        headroom = (
            headroom_for_job(len(self._requests) + len(self.remote_jobs), settings.open_jobs),
            headroom_for_job(self._dispatcher.open_jobs(holder.job_account) + 1, settings.limits.open_jobs_of(holder)),
        )
        if headroom != (Headroom.ENOUGH, Headroom.ENOUGH):
            self._ask_to_pause(MANY_OPEN)
        if Headroom.NONE in headroom:
            self._metrics.session_limits.labels("jobs").inc()
        return Headroom.NONE not in headroom

    def _end_turn(self, queue: TurnQueue) -> None:
        self._turns.end(queue)
        self._dispatcher.turn_ended(self.id, queue.turn.id)

    # -- notifications of jobs (Listener) --------------------------------------------------------

    def job_waits(self, request: JobRequest, why: NoNode) -> None:
        if why is NoNode.ALL_FULL:
            self._ask_to_pause("all nodes are busy")
        else:
            asyncio.get_running_loop().call_later(SLOW_PLACEMENT_S, self._still_waits, request.job_id)

    def _still_waits(self, job_id: str) -> None:
        if self._dispatcher.waits_for_slot(job_id):
            self._ask_to_pause("waiting for a node")

    def job_dispatched(self, request: JobRequest, node_id: str, attempt: int) -> None:
        if attempt == 1 and monotonic() - request.cut_at >= LATE_S:
            self._ask_to_pause("the server is busy")
        self.output.event(request, UiEventName.DISPATCHED)

    def job_accepted(self, request: JobRequest) -> None:
        self.output.event(request, UiEventName.NODE_ACCEPTED)

    def job_partial(self, request: JobRequest, said: NodePartial) -> None:
        self.output.partial(
            request.index,
            said.text,
            said.is_final,
            job_id=request.job_id,
            trace_id=request.trace_id,
        )

    def job_moved(self, request: JobRequest) -> None:
        self.moved(request.index)

    def moved(self, index: int) -> None:
        self.window.job_moved(index)
        self.set_timer()

    def is_known(self, index: int) -> bool:
        """Whether the index was cut, as far as this instance knows."""
        return index in self._requests or index in self.remote_jobs or self.window.is_settled(index)

    def job_ended(self, about: About, end: End) -> None:
        """A job has ended, on this instance or another: its result is sent, or its index is settled without one.

        What was said in a room is in its log before that. Until then the index is open, whichever instance owns the
        session."""
        if about.room is None:
            self._job_ended(about, end)
        else:
            self._publish(about, about.room, end, partial(self._job_ended, about))

    def _publish(
        self, about: About, room: RoomUtterance, end: End, then: Callable[[End], object] | None = None
    ) -> None:
        """`then` is called when it is in the log of the room."""
        request = about if isinstance(about, JobRequest) else None
        if request is not None:
            request.publishing()

        def published(end: End) -> None:
            try:
                if then is not None:
                    then(end)
            finally:
                if request is not None:
                    request.was_published()

        epoch = self.outbox.epoch if self.outbox is not None else 0
        account, highest = self.account, self.window.highest_sent
        self._rooms.publish(Spoken(self.id, about.index, room, end, epoch, account, highest), published)

    def _job_ended(self, about: About, end: End) -> None:
        now = monotonic()
        self._skip(now)
        state = self._settle(about, end, now)
        if state is not None:
            self._count(state)
            self._note_state(about, state)
        if isinstance(state, Settled):
            self._conclude(about, end, state)
        elif state is not None:
            log.info("result dropped", session=self.id, index=about.index, job=about.job_id, state=state.value)
        self.remote_jobs.pop(about.index, None)
        self._requests.pop(about.index, None)
        self.output.forget(about.index)
        if self.outbox is not None:
            self.outbox.note(self.state())
        self.set_timer()
        self._check_said_in_room()
        self._close_if_done()
        self._close_if_drained()

    def _settle(self, about: About, end: End, now: float) -> Settled | Drop | None:
        """Settle the index in the window. None: it was settled before, and no result is dropped."""
        index, window = about.index, self.window
        if end.outcome is Outcome.OK:
            verdict = window.receive(
                index,
                now,
                WorkingElsewhere(self._requests, self.remote_jobs, self._dispatcher.is_elsewhere, end.node_id),
            )
            if isinstance(verdict, Drop):
                return verdict
            return Settled.BACKFILLED if verdict.backfilled else Settled.SENT
        if end.outcome is Outcome.EMPTY:
            return window.settle_empty(index, now) or Settled.EMPTY
        if index not in self._requests and index not in self.remote_jobs:
            return None
        how = Settled.SKIPPED if end.code == CancelReason.SKIPPED else Settled.FAILED
        return how if window.settle_failed(index, now, how) is None else None

    def _conclude(self, about: About, end: End, state: Settled) -> None:
        """Send what the client gets for an index that is settled now. Cancelled jobs of this instance are not reported
        as errors: their session is over, or another job has the index."""
        if state in (Settled.SENT, Settled.BACKFILLED):
            request = self._requests.get(about.index)
            if about.room is None:
                self.output.result(about, end, state, request, self.state)
            else:
                self.output.captioned(about, end, state, self.state)
        elif state is Settled.FAILED and (end.outcome is not Outcome.CANCELLED or about.index in self.remote_jobs):
            self.output.failure(about, end, self.state)
        elif not (self.over and end.outcome is Outcome.CANCELLED):
            self.output.last(about, end, state, None, self.state)

    def _note_state(self, about: About, state: Settled | Drop) -> None:
        """For the record of the job. If this instance drives it, its driver writes the state with its last step."""
        request = self._requests.get(about.index)
        if request is not None:
            request.settled(state.value)
        elif about.job_id:
            self._dispatcher.remote_job_settled(about.job_id, state)

    def _count(self, state: Settled | Drop) -> None:
        self._metrics.released.labels(state.value).inc()

    # -- time ------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        """One timer per session, for the earliest deadline. If that moves with each chunk, the timer is set anew only
        when it is near."""
        if self.over:
            return
        due = [self.input.deadline(), self.window.deadline(), self._close_by]
        due += [one.give_up_at for one in self.remote_jobs.values()]
        if self._speaker is not None:
            due.append(self._speaker.deadline())
        at = min((when for when in due if when is not None), default=None)
        now = monotonic()
        if at is not None and self._timer is not None and now + NEAR_S < self._timer_at <= at:
            return
        self._stop_timer()
        if at is not None:
            self._timer_at, self._timer = at, self._loop.call_later(max(at - now, 0), self._guard, self.tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        self._stop_timer()
        if self.over:
            return
        now = monotonic()
        self._skip(now)
        self._take_utterances(self.input.reorder.poll(now))
        for lost in [one for one in self.remote_jobs.values() if one.give_up_at <= now]:
            self.job_ended(lost, End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, "lost with the instance that had it"))
        self._take_cuts(self.input.segmenter.poll(now))
        self._close_if_done()

    def _skip(self, now: float) -> None:
        """Skip overdue indexes and cancel their jobs: a result would be dropped."""
        for index in self.window.poll(now):
            request = self._requests.get(index)
            about: About = request or NoJob(index, now)
            self._count(Settled.SKIPPED)
            self._note_state(about, Settled.SKIPPED)
            log.info("utterance skipped", session=self.id, index=index, job=about.job_id, trace_id=about.trace_id)
            skipped = End(Outcome.CANCELLED, CancelReason.SKIPPED, TOO_LATE)
            self.output.last(about, skipped, Settled.SKIPPED, None, self.state)
            if request is not None:
                self._dispatcher.cancel(request.job_id, CancelReason.SKIPPED)
            elif (remote := self.remote_jobs.get(index)) is not None and remote.room is not None:
                self._publish(remote, remote.room, skipped)

    def _close_if_done(self) -> None:
        if self._close_by is None or ((self._requests or self.remote_jobs) and monotonic() < self._close_by):
            return
        self._close_by = None
        left: list[About] = [*self._requests.values(), *self.remote_jobs.values()]
        closed = End(Outcome.FAILED, ErrorCode.SESSION_CLOSED, CLOSED_EARLY)
        for about in sorted(left, key=lambda one: one.index):
            if about.room is not None:
                self._publish(about, about.room, closed)
            self._job_ended(about, closed)
        self.send(SessionCloseAck(session_id=self.id))
        if self.outbox is None:
            self._on_closed(self)
        else:  # after the last message is written; if the write was fenced, another instance owns the session
            self.outbox.note({}).add_done_callback(lambda written: written.result() and self._on_closed(self))
