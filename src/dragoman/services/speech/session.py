"""One session: audio in, orders out, results back through the release window to its listener.

    chunks ─▶ segmenter ─cut─▶ order ─▶ dispatcher         utterance ─▶ reorder ─▶ order
    job ended ─▶ release window ─▶ outbox (if it can resume) ─▶ socket

All callbacks of one loop, nothing awaits here. A failing job never holds up the next cut. The speaker's own
socket listens; an utterance that came by another socket is answered there. A session may be without a socket
for a while (detached), and a job of it may be driven by another instance (a remote job) after it was resumed here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import msgspec
import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.limits.sessions import Room, room_for_job
from dragoman.domain.placement import NoNode
from dragoman.domain.release import Drop, ReleaseWindow, Settled
from dragoman.domain.reorder import Refused, Reorder
from dragoman.domain.segmenter import Cut, Output, Segmenter, SegmenterSettings, TurnEnded, Withheld
from dragoman.domain.turn import Turn
from dragoman.protocol import ids
from dragoman.protocol.audio import MAX_CHUNK_PACKETS, OPUS, duration_ms
from dragoman.protocol.codes import BackpressureAction, CancelReason, Close, ErrorCode, UiEventName
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.fields import Message, Numbered, keep
from dragoman.protocol.node import JobAssign, NodePartial
from dragoman.protocol.peer import JobEnded
from dragoman.protocol.session import (
    AsrPartial,
    Backpressure,
    SessionCloseAck,
    SessionInit,
    Utterance,
    UtteranceEnd,
)
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.services.speech import messages
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.job_request import JobRequest, LatestIndexes, TurnQueue
from dragoman.services.speech.messages import About, NoJob
from dragoman.services.speech.outbox import Outbox
from dragoman.services.speech.remote_listener import RemoteJob, WorkingElsewhere
from dragoman.services.speech.session_output import SessionOutput
from dragoman.store.sessions import ResumableSessions, window_fields

log = structlog.get_logger(__name__)

DRAIN_PAUSE_MS = 2000
PAUSE_INTERVAL_S = 1.0
PAUSE_MS = 1000  # the client is asked again after that, if its jobs still wait
SLOW_PLACEMENT_S = 0.5
LATE_S = 1.0  # from the cut to the node: nodes are free, and this instance is slow
PAUSE_MARGIN_MS = 500  # from the moment a paused client may send again until its audio is here
SHUTTING_DOWN = "this instance is shutting down; connect again"
NOT_WAITED_FOR = "the session was closed before there was an answer"
TOO_LATE = "a later utterance was sent, and this one was not answered in time"
OVERLOADED = "this instance has too many jobs waiting"
MANY_OPEN = "many utterances of this session wait for their results"
TOO_MANY_OPEN = "too many utterances of this session wait for their results: wait for some, then say it again"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    segmenter: SegmenterSettings
    ack_timeout_ms: int = 5000
    span: int = 1024
    reorder_ms: int = 300
    close_wait_ms: int = 5000
    open_jobs: int = 128


@dataclass(frozen=True, slots=True)
class SessionState:
    """What the last owner of a session wrote of it, and what is known of its open jobs and its turn."""

    trace_id: str
    numbered: bool | None
    audio_seq: int | None
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
        *,
        subject: str,
        guard: Callable[..., bool],
        end_turn: Callable[["Session", TurnQueue], None],
        on_closed: Callable[["Session"], None],
    ) -> None:
        self.id, self.init, self.subject = id, init, subject
        self._output = SessionOutput(id, socket)
        self.trace_id = init.trace_id or ids.trace_id()
        self.audio_format, self.sample_rate = init.audio_format or OPUS, init.sample_rate or 16000
        self.closing = self.over = self.draining = False
        self.heard_seq: int | None = None  # the last chunk that came
        self.segmenter = Segmenter(settings.segmenter, ids.turn_id, audio_format=self.audio_format)
        self.window = ReleaseWindow(settings.ack_timeout_ms, settings.span)
        self.reorder: Reorder[tuple[Utterance, Socket | None]] = Reorder(settings.reorder_ms, settings.span)
        self.numbered: bool | None = None  # fed by numbered utterances (True) or by chunks (False)
        self.remote_jobs: dict[int, RemoteJob] = {}
        self.lines: dict[str, TurnQueue] = {}
        self.audio_seq: int | None = None  # the last chunk that is in a cut, or was withheld
        self._dispatcher, self._metrics, self._settings = dispatcher, metrics, settings
        self._guard, self._end_turn, self._on_closed = guard, end_turn, on_closed
        self._requests: dict[int, JobRequest] = {}
        self._latest = LatestIndexes()
        self._timer: asyncio.TimerHandle | None = None
        self._close_by: float | None = None
        self._client_lag_ms: float | None = None  # of the last chunk
        self._asked_to_pause_at = float("-inf")

    @property
    def tenant(self) -> str:
        return ids.tenant_of(self.subject)

    @property
    def socket(self) -> Socket | None:
        """The session's own socket; None while it is detached."""
        return self._output.socket

    @property
    def outbox(self) -> Outbox | None:
        """None for a session that cannot resume."""
        return self._output.outbox

    @property
    def next_index(self) -> int:
        """The index of the next utterance."""
        return self.reorder.next_index if self.numbered else self.segmenter.next_index

    def attach(self, socket: Socket) -> None:
        self._output.attach(socket)

    def detach(self) -> None:
        self._output.attach(None)

    def make_resumable(
        self,
        store: ResumableSessions,
        tasks: Tasks,
        *,
        epoch: int,
        seq: int = 0,
        version: int = 0,
        on_fenced: Callable[[str, Sequence[JobEnded]], None],
    ) -> None:
        """From now on numbered messages go through an outbox."""
        self._output.make_resumable(store, tasks, epoch=epoch, seq=seq, version=version, on_fenced=on_fenced)

    def restore(self, state: SessionState, now: float) -> None:
        """Continue a session that another instance owned."""
        settings = self._settings
        self.trace_id, self.numbered, self.audio_seq = state.trace_id, state.numbered, state.audio_seq
        self.segmenter = Segmenter(settings.segmenter, ids.turn_id, state.next_index, self.audio_format)
        self.reorder = Reorder(settings.reorder_ms, settings.span, state.next_index)
        self.remote_jobs = {job.index: job for job in state.open_jobs}
        self.window = ReleaseWindow.restore(
            state.expected, state.settled, now, self.remote_jobs.keys(), settings.ack_timeout_ms, settings.span
        )
        if state.turn is not None:
            self.lines[state.turn.id] = TurnQueue(state.turn)
            self.segmenter.resume_turn(state.turn.id, now)

    # -- what the client says --------------------------------------------------------------------

    def chunk(self, audio: bytes, is_final: bool, seq: int, sent_at_ms: int | None = None) -> None:
        """`sent_at_ms`: by the client's clock."""
        self._fed_by(numbered=False)
        self._client_lag_ms = messages.lag_ms(sent_at_ms)
        length_ms = duration_ms(self.audio_format, audio, self.sample_rate, MAX_CHUNK_PACKETS)
        self.heard_seq = seq
        self._cut(self.segmenter.chunk(audio, length_ms, is_final, monotonic(), seq))

    def utterance(self, message: Utterance, socket: Socket | None) -> None:
        """A whole utterance, numbered by the client; its result goes to the socket it came by."""
        self._fed_by(numbered=True)
        now = monotonic()
        self._skip(now)
        kept = msgspec.structs.replace(message, audio=keep(message.audio), features=keep(message.features))
        # None is the session's own socket, whichever that is when the result comes.
        answer_to = None if socket is self.socket else socket
        ready = self.reorder.offer(message.utterance_index, (kept, answer_to), now, self.window.expected)
        if isinstance(ready, Refused):
            why = "was used before" if ready is Refused.USED else f"is more than {self.window.span} ahead"
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, f"utterance_index {message.utterance_index} {why}.")
        for one, came_by in ready:
            self._order_utterance(one, came_by)
        self.set_timer()

    def tts_started(self) -> None:
        self.segmenter.tts_started(monotonic())
        self.set_timer()

    def tts_ended(self) -> None:
        self.segmenter.tts_ended(monotonic())
        self.set_timer()

    def close(self) -> None:
        """The client is done: cut what is there, let results go out, tell what has none failed, then say so."""
        if self.closing:
            return
        self.closing = True
        now = monotonic()
        self._close_by = now + self._settings.close_wait_ms / 1000
        for one, came_by in self.reorder.poll(float("inf")):  # nothing they could wait for will come
            self._order_utterance(one, came_by)
        self._cut(self.segmenter.close(now))
        self._close_if_done()

    def reopen(self) -> None:
        """Its client is back. Where it was closing it says so again, behind what we may not have heard."""
        self.closing, self._close_by = False, None

    def stop_accepting(self) -> None:
        """The instance is about to end, and this session with it: no new jobs. Running jobs may finish."""
        if not self.draining:
            self.draining = True
            self.pause(SHUTTING_DOWN, DRAIN_PAUSE_MS)

    def drain(self) -> None:
        self.stop_accepting()
        self._drained()

    def _drained(self) -> None:
        """Nothing keeps the client here: the sooner it is elsewhere, the less of what it says is lost."""
        if (
            self.draining
            and not self.closing
            and not self._requests
            and not self.remote_jobs
            and self.socket is not None
        ):
            self.socket.close(Close.SHUTDOWN, SHUTTING_DOWN)

    def end(self, reason: str) -> None:
        """The session is over: nothing of it may linger."""
        self.leave()
        self._dispatcher.cancel_session(self.id, reason)
        for line in list(self.lines.values()):
            self._turn_over(line)

    def leave(self) -> None:
        """The session goes on elsewhere, or nowhere: no more timers, orders and messages of ours."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.outbox is not None:
            self.outbox.stop()

    def _fed_by(self, *, numbered: bool) -> None:
        if self.closing:
            raise ProtocolError(ErrorCode.SESSION_CLOSED, "The session is being closed.")
        if self.numbered is None:
            self.numbered = numbered
        elif self.numbered is not numbered:
            what = "numbered utterances" if self.numbered else "audio chunks"
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, f"This session is fed by {what}; both cannot be mixed.")

    # -- what the client hears -------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """To the session's own socket."""
        self._output.send(message)

    def pause(self, message: str, resume_after_ms: int) -> None:
        """Ask the client to send nothing for so long. Always PAUSE: after BUSY or SLOW_DOWN the original web client
        stops its timer as soon as its queue is empty, and sends nothing more until it reconnects."""
        self.send(Backpressure(action=BackpressureAction.PAUSE, message=message, resume_after_ms=resume_after_ms))
        self.client_paused(resume_after_ms)

    def _ask_to_pause(self, why: str) -> None:
        """The client's jobs wait. At most once a second: more often would itself be load."""
        now = monotonic()
        if now - self._asked_to_pause_at >= PAUSE_INTERVAL_S and not self.over:
            self._asked_to_pause_at = now
            self.pause(why, PAUSE_MS)

    def client_paused(self, resume_after_ms: int) -> None:
        """The client was asked to send nothing: its silence ends no turn meanwhile."""
        self.segmenter.client_paused((resume_after_ms + PAUSE_MARGIN_MS) / 1000, monotonic())
        self.set_timer()

    def state(self) -> Mapping[str, Any]:
        """What another instance needs to go on with this session."""
        expected, settled = self.window.snapshot()
        opened = {index: (request.job_id, request.trace_id) for index, request in self._requests.items()}
        opened |= {one.index: (one.job_id, one.trace_id) for one in self.remote_jobs.values()}
        audio = {} if self.audio_seq is None else {"audio_seq": self.audio_seq}
        return {
            "next_index": self.next_index,
            "numbered": "" if self.numbered is None else int(self.numbered),
            **window_fields(expected, {index: how.value for index, how in settled.items()}, opened),
            **audio,
        }

    # -- orders ----------------------------------------------------------------------------------

    def _cut(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, TurnEnded):
                line = self.lines.get(output.turn_id)
                if line is not None:
                    self._turn_over(line)
                continue
            if output.audio_seq is not None:
                self.audio_seq = output.audio_seq
            if isinstance(output, Withheld):
                self._metrics.withheld.inc()
            else:
                self._order_cut(output)
        self.set_timer()

    def _order_cut(self, cut: Cut) -> None:
        line = self.lines.get(cut.turn_id)
        if line is None:
            line = self.lines[cut.turn_id] = TurnQueue(Turn(cut.turn_id))
        assignment = messages.assignment_of_cut(self.id, self.init, cut, self.audio_format, self.sample_rate)
        self._order(assignment, line, cut.ends_turn, None, cut.duration_ms)

    def _order_utterance(self, message: Utterance, socket: Socket | None) -> None:
        turn_id = ids.turn_id()
        line = self.lines[turn_id] = TurnQueue(Turn(turn_id))
        self._order(messages.assignment_of_utterance(message, turn_id), line, True, socket)

    def _order(
        self,
        assignment: JobAssign,
        line: TurnQueue,
        ends_turn: bool,
        socket: Socket | None,
        audio_ms: int | None = None,
    ) -> None:
        order = JobRequest(
            job_id=assignment.job_id,
            request_id=ids.request_id(self.id, assignment.utterance_index, assignment.tgt_lang),
            listener=self,
            assignment=assignment,
            cut_at=monotonic(),
            turn_queue=line,
            position=line.join(),
            ends_turn=ends_turn,
            audio_ms=audio_ms,
            may_park=bool(assignment.is_max_duration_triggered),
            needs=messages.needs_of(assignment.pipeline),
            tenant=self.tenant,
            latest=self._latest,
            client_lag_ms=None if self.numbered else self._client_lag_ms,
        )
        self._requests[order.index] = order
        self._output.reply_to(order.index, socket)
        if self.draining:
            order.position.leave()
            self.ended(order, End(Outcome.FAILED, ErrorCode.SESSION_CLOSED, SHUTTING_DOWN))
        elif self._dispatcher.is_full:
            order.position.leave()
            self._ask_to_pause(OVERLOADED)
            self.ended(order, End(Outcome.FAILED, ErrorCode.NODE_OVERLOADED, OVERLOADED))
        elif not self._has_room():
            order.position.leave()
            self.ended(order, End(Outcome.FAILED, ErrorCode.LIMIT_EXCEEDED, TOO_MANY_OPEN))
        else:
            self._dispatcher.take(order, self.outbox.note(self.state()) if self.outbox is not None else None)
        if ends_turn and line.jobs == 1 and line.turn.node_id is None:
            self.lines.pop(line.turn.id, None)  # a turn of one job binds nothing, so nothing is to be removed
        elif ends_turn:
            self._turn_over(line)

    def _has_room(self) -> bool:
        """For the job that was just added; its client is asked to pause while there is little."""
        room = room_for_job(len(self._requests) + len(self.remote_jobs), self._settings.open_jobs)
        if room is not Room.ENOUGH:
            self._ask_to_pause(MANY_OPEN)
        if room is Room.NONE:
            self._metrics.session_limits.labels("jobs").inc()
        return room is not Room.NONE

    def _turn_over(self, line: TurnQueue) -> None:
        """Behind the last job in the turn's queue: the affinity goes. The next turn waits for none of this."""
        self.lines.pop(line.turn.id, None)
        self._end_turn(self, line)
        self._dispatcher.turn_ended(self.id, line.turn.id)

    # -- what becomes of orders (Listener) -------------------------------------------------------

    def job_waits(self, order: JobRequest, why: NoNode) -> None:
        if why is NoNode.ALL_FULL:
            self._ask_to_pause("all nodes are busy")
        else:
            asyncio.get_running_loop().call_later(SLOW_PLACEMENT_S, self._still_waits, order.job_id)

    def _still_waits(self, job_id: str) -> None:
        if self._dispatcher.waits_for_slot(job_id):
            self._ask_to_pause("waiting for a node")

    def job_dispatched(self, order: JobRequest, node_id: str, attempt: int) -> None:
        if attempt == 1 and monotonic() - order.cut_at >= LATE_S:
            self._ask_to_pause("the server is busy")
        self._send_event(order, UiEventName.DISPATCHED)

    def job_accepted(self, order: JobRequest) -> None:
        self._send_event(order, UiEventName.NODE_ACCEPTED)

    def job_partial(self, order: JobRequest, partial: NodePartial) -> None:
        text, final = partial.text, partial.is_final
        message = AsrPartial(self.id, order.index, order.job_id, text, final, self._trace_of(order))
        self._output.reply(order.index, message)

    def job_moved(self, order: JobRequest) -> None:
        self.moved(order.index)

    def job_ended(self, order: JobRequest, end: End) -> None:
        self.ended(order, end)

    def has_met(self, index: int) -> bool:
        """Whether the index was cut, as far as is known here."""
        return index in self._requests or index in self.remote_jobs or self.window.is_settled(index)

    def moved(self, index: int) -> None:
        self.window.job_moved(index)
        self.set_timer()

    def ended(self, about: About, end: End) -> None:
        """A job is over, here or at another instance: its result goes out now, or its index is settled without one."""
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
        self._output.forget(about.index)
        if self.outbox is not None:
            self.outbox.note(self.state())
        self.set_timer()
        self._close_if_done()
        self._drained()

    def _settle(self, about: About, end: End, now: float) -> Settled | Drop | None:
        """What the window makes of it. None: the index was settled before, and no result is dropped."""
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
            assert end.result is not None, "an answer that is ok came with a result"
            self._send_event(about, UiEventName.ASR_FINAL)
            self._send_event(about, UiEventName.NMT_DONE)
            self._output.language(about.index, end.result)
            order = self._requests.get(about.index)
            trace_id, backfilled = self._trace_of(about), state is Settled.BACKFILLED
            result = messages.translation(self.id, trace_id, about, end, order, backfilled=backfilled)
            self._send_last(about, end, state, result)
        elif state is Settled.FAILED and (end.outcome is not Outcome.CANCELLED or about.index in self.remote_jobs):
            self._send_event(about, UiEventName.ERROR, code=end.code, hint=end.message)
            self._send_last(about, end, state, messages.failure(self.trace_id, about, end))
        elif not (self.over and end.outcome is Outcome.CANCELLED):
            self._send_last(about, end, state)

    def _send_last(self, about: About, end: End, state: Settled, message: Numbered | None = None) -> None:
        """The message that settles an index, and utterance_end after it if the client asked for that."""
        last = [message] if message is not None else []
        if self.init.utterance_end:
            last.append(UtteranceEnd(self.id, about.index, state.value, about.job_id or None))
        carries = partial(messages.ended_message, self.id, about, end) if about.job_id else _nothing
        self._output.last(about.index, last, self.state, carries)

    def _trace_of(self, about: About) -> str:
        """The web client pops up an alert for an error unless its trace is that of the last result, and errors have the
        session's. A numbered utterance may have a trace of its client's own, which its client expects back."""
        return about.trace_id if self.numbered else self.trace_id

    def _send_event(self, about: About, name: UiEventName, **error: str | None) -> None:
        self._output.reply(about.index, messages.event(self.id, self._trace_of(about), about, name, **error))

    def _note_state(self, about: About, state: Settled | Drop) -> None:
        """For the record of the job. The driver of this instance writes it with its last step."""
        order = self._requests.get(about.index)
        if order is not None:
            order.settled(state.value)
        elif about.job_id:
            self._dispatcher.remote_job_settled(about.job_id, state)

    def _count(self, state: Settled | Drop) -> None:
        self._metrics.released.labels(state.value).inc()

    # -- time ------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        """One timer a session, for whatever is due first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.over:
            return
        due = [self.segmenter.deadline(), self.window.deadline(), self.reorder.deadline(), self._close_by]
        due += [one.give_up_at for one in self.remote_jobs.values()]
        at = min((when for when in due if when is not None), default=None)
        if at is not None:
            delay = max(at - monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._guard, self.tick)

    def tick(self) -> None:
        if self.over:
            return
        now = monotonic()
        self._skip(now)
        for one, came_by in self.reorder.poll(now):
            self._order_utterance(one, came_by)
        for lost in [one for one in self.remote_jobs.values() if one.give_up_at <= now]:
            self.ended(lost, End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, "lost with the instance that had it"))
        self._cut(self.segmenter.poll(now))
        self._close_if_done()

    def _skip(self, now: float) -> None:
        """Give up what is overdue: its job is cancelled, since its result could only be dropped."""
        for index in self.window.poll(now):
            order = self._requests.get(index)
            about: About = order or NoJob(index, now)
            self._count(Settled.SKIPPED)
            self._note_state(about, Settled.SKIPPED)
            log.info("utterance skipped", session=self.id, index=index, job=about.job_id, trace_id=about.trace_id)
            self._send_last(about, End(Outcome.CANCELLED, CancelReason.SKIPPED, TOO_LATE), Settled.SKIPPED)
            if order is not None:
                self._dispatcher.cancel(order.job_id, CancelReason.SKIPPED)

    def _close_if_done(self) -> None:
        if self._close_by is None or ((self._requests or self.remote_jobs) and monotonic() < self._close_by):
            return
        self._close_by = None
        left: list[About] = [*self._requests.values(), *self.remote_jobs.values()]
        for about in sorted(left, key=lambda one: one.index):
            self.ended(about, End(Outcome.FAILED, ErrorCode.SESSION_CLOSED, NOT_WAITED_FOR))
        self.send(SessionCloseAck(session_id=self.id))
        if self.outbox is None:
            self._on_closed(self)
        else:  # not before the last word is out; fenced, it is not ours to end
            self.outbox.note({}).add_done_callback(lambda written: written.result() and self._on_closed(self))


def _nothing() -> None:
    return None
