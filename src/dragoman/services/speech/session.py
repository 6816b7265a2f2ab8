"""One session: audio in, orders out, results back through the release window to its listener.

    chunks ─▶ segmenter ─cut─▶ order ─▶ dispatcher         utterance ─▶ reorder ─▶ order
    job ended ─▶ release window ─▶ outbox (if it can resume) ─▶ socket

All callbacks of one loop, nothing awaits here. A failing job never holds up the next cut. The speaker's own
socket listens; an utterance that came by another socket is answered there. A session may be without a socket
for a while (detached), and a job of it may be driven by another instance (abroad) after it was resumed here.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec
import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.limits.sessions import Room, room_for_job
from dragoman.domain.placement import NoNode
from dragoman.domain.release import Drop, ReleaseWindow, Settled
from dragoman.domain.reorder import Refused, Reorder
from dragoman.domain.segmenter import Cut, Output, Segmenter, SegmenterSettings, TurnEnded, Withheld
from dragoman.domain.turn import Turn
from dragoman.protocol import ids
from dragoman.protocol.audio import MAX_CHUNK_PACKETS, OPUS, duration_ms
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import BackpressureAction, CancelReason, Close, ErrorCode, UiEventName
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.extra import detected_language
from dragoman.protocol.fields import Message, Numbered, keep
from dragoman.protocol.node import JobAssign, JobResult, NodePartial
from dragoman.protocol.session import (
    AsrPartial,
    Backpressure,
    LanguageDetected,
    SessionCloseAck,
    SessionInit,
    Utterance,
    UtteranceEnd,
)
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.services.speech import messages
from dragoman.services.speech.abroad import Abroad, Working
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.messages import About, NoJob
from dragoman.services.speech.order import End, Order, TurnLine
from dragoman.services.speech.outbox import Outbox
from dragoman.services.speech.pressure import Pressure
from dragoman.store.sessions import window_fields

log = structlog.get_logger(__name__)

DRAIN_PAUSE_MS = 2000
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
        end_turn: Callable[["Session", TurnLine], None],
        on_closed: Callable[["Session"], None],
    ) -> None:
        self.id, self.socket, self.init, self.subject = id, socket, init, subject
        self.trace_id = init.trace_id or ids.trace_id()
        self.audio_format, self.sample_rate = init.audio_format or OPUS, init.sample_rate or 16000
        self.closing = self.over = self.draining = False
        self.outbox: Outbox | None = None  # of a session that can resume
        self.heard_seq: int | None = None  # the last chunk that came
        self.segmenter = Segmenter(settings.segmenter, ids.turn_id, audio_format=self.audio_format)
        self.window = ReleaseWindow(settings.ack_timeout_ms, settings.span)
        self.reorder: Reorder[tuple[Utterance, Socket | None]] = Reorder(settings.reorder_ms, settings.span)
        self.numbered: bool | None = None  # fed by numbered utterances (True) or by chunks (False)
        self.abroad: dict[int, Abroad] = {}
        self.lines: dict[str, TurnLine] = {}
        self.audio_seq: int | None = None  # the last chunk that is in a cut, or was withheld
        self._dispatcher, self._metrics, self._settings = dispatcher, metrics, settings
        self._guard, self._end_turn, self._on_closed = guard, end_turn, on_closed
        self._orders: dict[int, tuple[Order, Socket | None]] = {}
        self._latest_on: dict[str, int] = {}  # node → the latest index it was sent
        self._timer: asyncio.TimerHandle | None = None
        self._close_by: float | None = None
        self._client_lag_ms: float | None = None  # of the last chunk
        self._language = ""  # the last that the client was sent as detected
        self.pressure = Pressure(self.pause)

    @property
    def tenant(self) -> str:
        return ids.tenant_of(self.subject)

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

    def hold(self) -> None:
        """The instance is about to end, and this session with it: no new jobs. What runs may finish."""
        if not self.draining:
            self.draining = True
            self.pause(SHUTTING_DOWN, DRAIN_PAUSE_MS)

    def drain(self) -> None:
        self.hold()
        self._drained()

    def _drained(self) -> None:
        """Nothing keeps the client here: the sooner it is elsewhere, the less of what it says is lost."""
        if self.draining and not self.closing and not self._orders and not self.abroad and self.socket is not None:
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
        if self.outbox is not None and isinstance(message, Numbered):
            self.outbox.post([message])
        elif self.socket is not None:
            self.socket.send(encode(message))

    def pause(self, message: str, resume_after_ms: int) -> None:
        """Ask the client to send nothing for so long. Always PAUSE: see `pressure`."""
        self.send(Backpressure(action=BackpressureAction.PAUSE, message=message, resume_after_ms=resume_after_ms))
        self.client_paused(resume_after_ms)

    def client_paused(self, resume_after_ms: int) -> None:
        """The client was asked to send nothing: its silence ends no turn meanwhile."""
        self.segmenter.client_paused((resume_after_ms + PAUSE_MARGIN_MS) / 1000, monotonic())
        self.set_timer()

    def state(self) -> Mapping[str, Any]:
        """What another instance needs to go on with this session."""
        expected, settled = self.window.snapshot()
        opened = {index: (order.job_id, order.trace_id) for index, (order, _) in self._orders.items()}
        opened |= {one.index: (one.job_id, one.trace_id) for one in self.abroad.values()}
        audio = {} if self.audio_seq is None else {"audio_seq": self.audio_seq}
        return {
            "next_index": self.reorder.next_index if self.numbered else self.segmenter.next_index,
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
            line = self.lines[cut.turn_id] = TurnLine(Turn(cut.turn_id))
        assignment = messages.assignment_of_cut(self.id, self.init, cut, self.audio_format, self.sample_rate)
        self._order(assignment, line, cut.ends_turn, None, cut.duration_ms)

    def _order_utterance(self, message: Utterance, socket: Socket | None) -> None:
        turn_id = ids.turn_id()
        line = self.lines[turn_id] = TurnLine(Turn(turn_id))
        self._order(messages.assignment_of_utterance(message, turn_id), line, True, socket)

    def _order(
        self,
        assignment: JobAssign,
        line: TurnLine,
        ends_turn: bool,
        socket: Socket | None,
        audio_ms: int | None = None,
    ) -> None:
        order = Order(
            job_id=assignment.job_id,
            request_id=ids.request_id(self.id, assignment.utterance_index, assignment.tgt_lang),
            listener=self,
            assignment=assignment,
            cut_at=monotonic(),
            line=line,
            place=line.join(),
            ends_turn=ends_turn,
            audio_ms=audio_ms,
            held_by_node=bool(assignment.is_max_duration_triggered),
            needs=messages.needs_of(assignment.pipeline),
            tenant=self.tenant,
            latest_on=self._latest_on,
            client_lag_ms=None if self.numbered else self._client_lag_ms,
        )
        self._orders[order.index] = (order, socket)
        if self.draining:
            order.place.leave()
            self.ended(order, End(Outcome.FAILED, ErrorCode.SESSION_CLOSED, SHUTTING_DOWN))
        elif self._dispatcher.is_full:
            order.place.leave()
            self.pressure.press(OVERLOADED)
            self.ended(order, End(Outcome.FAILED, ErrorCode.NODE_OVERLOADED, OVERLOADED))
        elif not self._has_room():
            order.place.leave()
            self.ended(order, End(Outcome.FAILED, ErrorCode.LIMIT_EXCEEDED, TOO_MANY_OPEN))
        else:
            if self.outbox is not None:
                order.advanced = self.outbox.note(self.state())
            self._dispatcher.take(order)
        if ends_turn and line.jobs == 1 and line.turn.node_id is None:
            self.lines.pop(line.turn.id, None)  # a turn of one job binds nothing, so nothing is to be removed
        elif ends_turn:
            self._turn_over(line)

    def _has_room(self) -> bool:
        """For the job that was just added; its client is asked to pause while there is little."""
        room = room_for_job(len(self._orders) + len(self.abroad), self._settings.open_jobs)
        if room is not Room.ENOUGH:
            self.pressure.press(MANY_OPEN)
        if room is Room.NONE:
            self._metrics.session_limits.labels("jobs").inc()
        return room is not Room.NONE

    def _turn_over(self, line: TurnLine) -> None:
        """Behind the last job in the turn's queue: the affinity goes. The next turn waits for none of this."""
        self.lines.pop(line.turn.id, None)
        self._end_turn(self, line)
        self._dispatcher.turn_ended(self.id, line.turn.id)

    # -- what becomes of orders (Listener) -------------------------------------------------------

    def job_waits(self, order: Order, why: NoNode) -> None:
        self.pressure.job_waits(why, lambda: order.index in self._orders and order.held is None)

    def job_dispatched(self, order: Order, node_id: str) -> None:
        self.pressure.job_dispatched(order)
        self._tell_event(order, UiEventName.DISPATCHED)

    def job_taken(self, order: Order) -> None:
        self._tell_event(order, UiEventName.NODE_ACCEPTED)

    def job_partial(self, order: Order, partial: NodePartial) -> None:
        text, final = partial.text, partial.is_final
        self._tell(order, AsrPartial(self.id, order.index, order.job_id, text, final, self._trace_of(order)))

    def job_moved(self, order: Order) -> None:
        self.moved(order.index)

    def job_ended(self, order: Order, end: End) -> None:
        self.ended(order, end)

    def has_met(self, index: int) -> bool:
        """Whether the index was cut, as far as is known here."""
        return index in self._orders or index in self.abroad or self.window.is_settled(index)

    def moved(self, index: int) -> None:
        self.window.job_moved(index)
        self.set_timer()

    def ended(self, about: About, end: End) -> None:
        """A job is over, here or abroad: its result goes out now, or its index is settled without one."""
        now = monotonic()
        self._skip(now)
        state = self._settle(about, end, now)
        if state is not None:
            self._count(state)
            self._note_state(about.index, state)
        if isinstance(state, Settled):
            self._conclude(about, end, state)
        elif state is not None:
            log.info("result dropped", session=self.id, index=about.index, job=about.job_id, state=state.value)
        self.abroad.pop(about.index, None)
        self._orders.pop(about.index, None)
        if self.outbox is not None:
            self.outbox.note(self.state())
        self.set_timer()
        self._close_if_done()
        self._drained()

    def _settle(self, about: About, end: End, now: float) -> Settled | Drop | None:
        """What the window makes of it. None: the index was settled before, and no result is dropped."""
        index, window = about.index, self.window
        if end.outcome is Outcome.OK:
            verdict = window.receive(index, now, Working(self._orders, self.abroad, self._dispatcher, end.node_id))
            if isinstance(verdict, Drop):
                return verdict
            return Settled.BACKFILLED if verdict.backfilled else Settled.SENT
        if end.outcome is Outcome.EMPTY:
            return window.settle_empty(index, now) or Settled.EMPTY
        if index not in self._orders and index not in self.abroad:
            return None
        how = Settled.SKIPPED if end.code == CancelReason.SKIPPED else Settled.FAILED
        return how if window.settle_failed(index, now, how) is None else None

    def _conclude(self, about: About, end: End, state: Settled) -> None:
        """Send what the client gets for an index that is settled now. Cancelled jobs of this instance are not reported
        as errors: their session is over, or another job has the index."""
        if state in (Settled.SENT, Settled.BACKFILLED):
            assert end.result is not None, "an answer that is ok came with a result"
            self._tell_event(about, UiEventName.ASR_FINAL)
            self._tell_event(about, UiEventName.NMT_DONE)
            self._tell_language(about, end.result)
            order, _ = self._orders.get(about.index, (None, None))
            trace_id, backfilled = self._trace_of(about), state is Settled.BACKFILLED
            result = messages.translation(self.id, trace_id, about, end.result, order, backfilled=backfilled)
            self._tell_last(about, end, state, result)
        elif state is Settled.FAILED and (end.outcome is not Outcome.CANCELLED or about.index in self.abroad):
            self._tell_event(about, UiEventName.ERROR, code=end.code, hint=end.message)
            self._tell_last(about, end, state, messages.failure(self.trace_id, about, end))
        elif not (self.over and end.outcome is Outcome.CANCELLED):
            self._tell_last(about, end, state)

    def _tell_language(self, about: About, result: JobResult) -> None:
        """The language that is spoken, when a node has recognised it for the first time or it is another now."""
        found = detected_language(result.extra)
        if found is not None and found[0] != self._language:
            self._language = found[0]
            self._tell(about, LanguageDetected(self.id, *found))

    def _tell_last(self, about: About, end: End, state: Settled, message: Numbered | None = None) -> None:
        """The message that settles an index, utterance_end behind it if the client asked for it, and the state of the
        session: in one step, so that whoever resumes the session has all of it to send, or nothing."""
        last = [message] if message is not None else []
        if self.init.utterance_end:
            last.append(UtteranceEnd(self.id, about.index, state.value, about.job_id or None))
        _, socket = self._orders.get(about.index, (None, None))
        if socket is not None and not socket.closed:
            for one in last:
                socket.send(encode(one))
        elif self.outbox is not None:
            # In case it is another owner's to send.
            carries = messages.ended_message(self.id, about, end) if about.job_id else None
            self.outbox.post(last, self.state(), carries)
        else:
            for one in last:
                self.send(one)

    def _trace_of(self, about: About) -> str:
        """The web client pops up an alert for an error unless its trace is that of the last result, and errors have the
        session's. A numbered utterance may have a trace of its client's own, which its client expects back."""
        return about.trace_id if self.numbered else self.trace_id

    def _tell_event(self, about: About, name: UiEventName, **error: str | None) -> None:
        self._tell(about, messages.event(self.id, self._trace_of(about), about, name, **error))

    def _tell(self, about: About, message: Message) -> None:
        _, socket = self._orders.get(about.index, (None, None))
        if socket is None or socket.closed:
            self.send(message)
        else:
            socket.send(encode(message))

    def _note_state(self, index: int, state: Settled | Drop) -> None:
        """For the record of the job."""
        order, _ = self._orders.get(index, (None, None))
        if order is not None:
            order.release_state = state.value

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
        due += [one.give_up_at for one in self.abroad.values()]
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
        for lost in [one for one in self.abroad.values() if one.give_up_at <= now]:
            self.ended(lost, End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, "lost with the instance that had it"))
        self._cut(self.segmenter.poll(now))
        self._close_if_done()

    def _skip(self, now: float) -> None:
        """Give up what is overdue: its job is cancelled, since its result could only be dropped."""
        for index in self.window.poll(now):
            order, _ = self._orders.get(index, (None, None))
            about: About = order or NoJob(index, now)
            self._count(Settled.SKIPPED)
            self._note_state(index, Settled.SKIPPED)
            log.info("utterance skipped", session=self.id, index=index, job=about.job_id, trace_id=about.trace_id)
            self._tell_last(about, End(Outcome.CANCELLED, CancelReason.SKIPPED, TOO_LATE), Settled.SKIPPED)
            if order is not None:
                self._dispatcher.cancel(order.job_id, CancelReason.SKIPPED)

    def _close_if_done(self) -> None:
        if self._close_by is None or ((self._orders or self.abroad) and monotonic() < self._close_by):
            return
        self._close_by = None
        left: list[About] = [*(order for order, _ in self._orders.values()), *self.abroad.values()]
        for about in sorted(left, key=lambda one: one.index):
            self.ended(about, End(Outcome.FAILED, ErrorCode.SESSION_CLOSED, NOT_WAITED_FOR))
        self.send(SessionCloseAck(session_id=self.id))
        if self.outbox is None:
            self._on_closed(self)
        else:  # not before the last word is out; fenced, it is not ours to end
            self.outbox.note({}).add_done_callback(lambda written: written.result() and self._on_closed(self))
