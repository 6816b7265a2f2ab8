"""One session: audio in, orders out, results back through the release window to its listener.

    chunks ─▶ segmenter ─cut─▶ order ─▶ dispatcher         utterance ─▶ reorder ─▶ order
    job ended ─▶ release window ─▶ socket

All callbacks of one loop, nothing awaits here. A failing job never holds up the next cut. The speaker's own
socket listens; an utterance that came by another socket is answered there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time

import msgspec
import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.placement import NoNode
from dragoman.domain.release import Drop, ReleaseWindow, Send
from dragoman.domain.reorder import Refused, Reorder
from dragoman.domain.segmenter import Cut, Segmenter, SegmenterSettings, TurnEnded
from dragoman.domain.turn import Turn
from dragoman.protocol import ids
from dragoman.protocol.audio import NO_AUDIO, OPUS, duration_ms, encode_base64
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import BackpressureAction, ErrorCode, UiEventName
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.fields import Message, keep
from dragoman.protocol.node import JobAssign, NodePartial
from dragoman.protocol.session import (
    AsrPartial,
    Backpressure,
    Error,
    Pipeline,
    ServiceTimings,
    SessionCloseAck,
    SessionInit,
    TranslationResult,
    UiEvent,
    Utterance,
)
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.order import End, Order, TurnLine

log = structlog.get_logger(__name__)

PADDING_BY_HAND_MS = 280
BACKPRESSURE_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class SessionSettings:
    segmenter: SegmenterSettings
    ack_timeout_ms: int = 5000
    span: int = 1024
    reorder_ms: int = 300
    close_wait_ms: int = 5000


class Session:
    def __init__(
        self,
        id: str,
        socket: Socket,
        init: SessionInit,
        dispatcher: Dispatcher,
        metrics: Metrics,
        settings: SessionSettings,
        *,
        guard: Callable[..., bool],
        end_turn: Callable[["Session", TurnLine], None],
        on_closed: Callable[["Session"], None],
    ) -> None:
        self.id, self.socket, self.init = id, socket, init
        self.trace_id = init.trace_id or ids.trace_id()
        self.audio_format, self.sample_rate = init.audio_format or OPUS, init.sample_rate or 16000
        self.closing = False
        self._dispatcher, self._metrics, self._settings = dispatcher, metrics, settings
        self._guard, self._end_turn, self._on_closed = guard, end_turn, on_closed
        self._segmenter = Segmenter(settings.segmenter, ids.turn_id)
        self._reorder: Reorder[tuple[Utterance, Socket]] = Reorder(settings.reorder_ms, settings.span)
        self._window = ReleaseWindow(settings.ack_timeout_ms, settings.span)
        self._orders: dict[int, tuple[Order, Socket]] = {}
        self._lines: dict[str, TurnLine] = {}
        self._numbered: bool | None = None  # fed by numbered utterances (True) or by chunks (False)
        self._timer: asyncio.TimerHandle | None = None
        self._close_by: float | None = None
        self._pressed_at = float("-inf")

    # -- what the client says --------------------------------------------------------------------

    def chunk(self, audio: bytes, is_final: bool, seq: int) -> None:
        self._fed_by(numbered=False)
        length_ms = duration_ms(self.audio_format, audio, self.sample_rate)
        self._cut(self._segmenter.chunk(audio, length_ms, is_final, monotonic(), seq))

    def utterance(self, message: Utterance, socket: Socket) -> None:
        """A whole utterance, numbered by the client; its result goes to the socket it came by."""
        self._fed_by(numbered=True)
        now = monotonic()
        self._window.poll(now)
        kept = msgspec.structs.replace(message, audio=keep(message.audio), features=keep(message.features))
        ready = self._reorder.offer(message.utterance_index, (kept, socket), now, self._window.expected)
        if isinstance(ready, Refused):
            why = "was used before" if ready is Refused.USED else f"is more than {self._window.span} ahead"
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, f"utterance_index {message.utterance_index} {why}.")
        for one, came_by in ready:
            self._order_utterance(one, came_by)
        self._set_timer()

    def tts_started(self) -> None:
        self._segmenter.tts_started(monotonic())
        self._set_timer()

    def tts_ended(self) -> None:
        self._segmenter.tts_ended(monotonic())
        self._set_timer()

    def close(self) -> None:
        """The client is done: cut what is there, let results go out, then say so."""
        if self.closing:
            return
        self.closing = True
        now = monotonic()
        self._close_by = now + self._settings.close_wait_ms / 1000
        self._cut(self._segmenter.close(now))
        self._close_if_done()

    def end(self, reason: str) -> None:
        """The session is over: nothing of it may linger."""
        if self._timer is not None:
            self._timer.cancel()
        self._dispatcher.cancel_session(self.id, reason)
        for line in list(self._lines.values()):
            self._turn_over(line)

    def press(self, action: BackpressureAction, message: str, resume_after_ms: int | None = None) -> None:
        """Ask the client to hold on, at most once a second."""
        now = monotonic()
        if now - self._pressed_at >= BACKPRESSURE_PAUSE_S:
            self._pressed_at = now
            self.send(Backpressure(action=action, message=message, resume_after_ms=resume_after_ms))

    def refuse(self, code: ErrorCode, why: str, order: Order | None = None) -> None:
        """An error the client can attribute: always under the session's trace, the job's goes into details."""
        details = None
        if order is not None:
            details = {"job_id": order.job_id, "utterance_index": order.index, "trace_id": order.trace_id}
        self.send(Error(code=code, message=why, details=details, trace_id=self.trace_id))

    def send(self, message: Message) -> None:
        self.socket.send(encode(message))

    def _fed_by(self, *, numbered: bool) -> None:
        if self.closing:
            raise ProtocolError(ErrorCode.SESSION_CLOSED, "The session is being closed.")
        if self._numbered is None:
            self._numbered = numbered
        elif self._numbered is not numbered:
            what = "numbered utterances" if self._numbered else "audio chunks"
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, f"This session is fed by {what}; both cannot be mixed.")

    # -- orders ----------------------------------------------------------------------------------

    def _cut(self, outputs: list[Cut | TurnEnded]) -> None:
        for output in outputs:
            if isinstance(output, TurnEnded):
                line = self._lines.get(output.turn_id)
                if line is not None:
                    self._turn_over(line)
            else:
                self._order_cut(output)
        self._set_timer()

    def _order_cut(self, cut: Cut) -> None:
        init = self.init
        assignment = JobAssign(
            job_id=ids.job_id(),
            attempt_id=1,
            session_id=self.id,
            utterance_index=cut.index,
            src_lang=init.src_lang,
            tgt_lang=init.tgt_lang,
            pipeline=Pipeline(use_asr=True, use_nmt=True, use_tts=True),
            audio=encode_base64(cut.audio),
            audio_format=self.audio_format,
            sample_rate=self.sample_rate,
            trace_id=ids.trace_id(),
            dialect=init.dialect,
            features=init.features,
            mode=init.mode,
            lang_a=init.lang_a,
            lang_b=init.lang_b,
            auto_langs=list(init.auto_langs) if init.auto_langs else None,
            enable_streaming_asr=init.enable_streaming_asr,
            partial_update_interval_ms=init.partial_update_interval_ms,
            padding_ms=cut.padding_ms,
            turn_id=cut.turn_id,
            is_manual_cut=cut.is_manual_cut,
            is_timeout_triggered=cut.is_timeout_triggered,
            is_max_duration_triggered=cut.is_max_duration_triggered,
        )
        line = self._lines.get(cut.turn_id)
        if line is None:
            line = self._lines[cut.turn_id] = TurnLine(Turn(cut.turn_id))
        self._order(assignment, line, cut.ends_turn, self.socket)

    def _order_utterance(self, message: Utterance, socket: Socket) -> None:
        """Cut by the client: manual, and a turn of its own."""
        turn_id = ids.turn_id()
        assignment = JobAssign(
            job_id=ids.job_id(),
            attempt_id=1,
            session_id=self.id,
            utterance_index=message.utterance_index,
            src_lang=message.src_lang,
            tgt_lang=message.tgt_lang,
            pipeline=message.pipeline or Pipeline(use_asr=True, use_nmt=True, use_tts=True),
            audio=message.audio,
            audio_format=message.audio_format,
            sample_rate=message.sample_rate,
            trace_id=message.trace_id or ids.trace_id(),
            dialect=message.dialect,
            features=message.features,
            mode=message.mode,
            lang_a=message.lang_a,
            lang_b=message.lang_b,
            auto_langs=list(message.auto_langs) if message.auto_langs else None,
            enable_streaming_asr=message.enable_streaming_asr,
            partial_update_interval_ms=message.partial_update_interval_ms,
            padding_ms=PADDING_BY_HAND_MS,
            turn_id=turn_id,
            is_manual_cut=True,
        )
        line = self._lines[turn_id] = TurnLine(Turn(turn_id))
        self._order(assignment, line, True, socket)

    def _order(self, assignment: JobAssign, line: TurnLine, ends_turn: bool, socket: Socket) -> None:
        pipeline = assignment.pipeline
        steps = {"asr": pipeline.use_asr, "nmt": pipeline.use_nmt, "tts": pipeline.use_tts}
        steps["semantic"] = bool(pipeline.use_semantic)
        order = Order(
            job_id=assignment.job_id,
            request_id=ids.request_id(self.id, assignment.utterance_index, assignment.tgt_lang),
            listener=self,
            assignment=assignment,
            cut_at=monotonic(),
            line=line,
            place=line.join(),
            ends_turn=ends_turn,
            held_by_node=bool(assignment.is_max_duration_triggered),
            needs=frozenset(name for name, used in steps.items() if used),
        )
        self._orders[order.index] = (order, socket)
        self._dispatcher.take(order)
        if ends_turn:
            self._turn_over(line)

    def _turn_over(self, line: TurnLine) -> None:
        """Behind the last job in the turn's queue: the affinity goes. The next turn waits for none of this."""
        self._lines.pop(line.turn.id, None)
        self._end_turn(self, line)
        self._dispatcher.turn_ended(self.id, line.turn.id)

    # -- what becomes of orders (Listener) -------------------------------------------------------

    def job_waits(self, order: Order, why: NoNode) -> None:
        if why is NoNode.ALL_FULL:
            self.press(BackpressureAction.BUSY, "all nodes are busy")
        else:
            self.press(BackpressureAction.SLOW_DOWN, "waiting for a node")

    def job_dispatched(self, order: Order, node_id: str) -> None:
        self._event(order, UiEventName.DISPATCHED)

    def job_taken(self, order: Order) -> None:
        self._event(order, UiEventName.NODE_ACCEPTED)

    def job_partial(self, order: Order, partial: NodePartial) -> None:
        self._to(order, AsrPartial(self.id, order.index, order.job_id, partial.text, partial.is_final, order.trace_id))

    def job_moved(self, order: Order) -> None:
        self._window.job_moved(order.index)
        self._set_timer()

    def job_ended(self, order: Order, end: End) -> None:
        now = monotonic()
        for _ in self._window.poll(now):
            self._metrics.released.labels("skipped").inc()
        if end.outcome is Outcome.OK:
            self._release(order, end, now)
        elif end.outcome is Outcome.EMPTY:
            dropped = self._window.settle_empty(order.index, now, self._working(end))
            self._count(dropped or "empty")
        else:
            self._window.settle_failed(order.index, now)
            self._count("failed")
            if end.outcome is not Outcome.CANCELLED:
                self._failed(order, end)
        self._orders.pop(order.index, None)
        self._set_timer()
        self._close_if_done()

    def _release(self, order: Order, end: End, now: float) -> None:
        verdict = self._window.receive(order.index, now, self._working(end))
        if isinstance(verdict, Drop):
            self._count(verdict)
            return
        self._count("backfilled" if verdict.backfilled else "sent")
        self._event(order, UiEventName.ASR_FINAL)
        self._event(order, UiEventName.NMT_DONE)
        self._to(order, self._result(order, end, verdict))

    def _result(self, order: Order, end: End, verdict: Send) -> TranslationResult:
        result = end.result
        assert result is not None, "an answer that is ok came with a result"
        took = result.processing_time_ms
        return TranslationResult(
            session_id=self.id,
            utterance_index=order.index,
            job_id=order.job_id,
            trace_id=order.trace_id,
            text_asr=result.text_asr or "",
            text_translated=result.text_translated or "",
            tts_audio=result.tts_audio or NO_AUDIO,
            tts_format=result.tts_format or OPUS,
            scheduler_sent_at_ms=int(time() * 1000),
            extra=result.extra,
            # Old clients tell us of playback only when there is a group.
            group_id=ids.group_id(self.id, order.index) if result.text_asr else None,
            part_index=0 if result.text_asr else None,
            service_timings=ServiceTimings(total_ms=took) if took is not None else None,
            backfilled=verdict.backfilled,
            asr_quality_level=result.asr_quality_level,
            reason_codes=result.reason_codes,
            quality_score=result.quality_score,
            rerun_count=result.rerun_count,
            segments_meta=result.segments_meta,
        )

    def _failed(self, order: Order, end: End) -> None:
        self._to(
            order,
            UiEvent(
                trace_id=order.trace_id,
                session_id=self.id,
                job_id=order.job_id,
                utterance_index=order.index,
                event=UiEventName.ERROR,
                status="error",
                elapsed_ms=_elapsed_ms(order),
                error_code=end.code,
                hint=end.message,
            ),
        )
        self.refuse(
            ErrorCode(end.code) if end.code in set(ErrorCode) else ErrorCode.PROCESSING_ERROR, end.message, order
        )

    def _event(self, order: Order, name: UiEventName) -> None:
        self._to(
            order,
            UiEvent(
                trace_id=order.trace_id,
                session_id=self.id,
                job_id=order.job_id,
                utterance_index=order.index,
                event=name,
                status="ok",
                elapsed_ms=_elapsed_ms(order),
            ),
        )

    def _to(self, order: Order, message: Message) -> None:
        _, socket = self._orders.get(order.index, (order, self.socket))
        socket.send(encode(message))

    def _working(self, end: End) -> "_Working":
        return _Working(self._orders, self._dispatcher, end.node_id)

    def _count(self, state: str) -> None:
        self._metrics.released.labels(str(state)).inc()

    # -- time ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """One timer a session, for whatever is due first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = (self._segmenter.deadline(), self._window.deadline(), self._reorder.deadline(), self._close_by)
        at = min((when for when in due if when is not None), default=None)
        if at is not None:
            delay = max(at - monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._guard, self.tick)

    def tick(self) -> None:
        now = monotonic()
        for _ in self._window.poll(now):
            self._count("skipped")
        for one, came_by in self._reorder.poll(now):
            self._order_utterance(one, came_by)
        self._cut(self._segmenter.poll(now))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._close_by is None or (self._orders and monotonic() < self._close_by):
            return
        self._close_by = None
        self.send(SessionCloseAck(session_id=self.id))
        self._on_closed(self)


class _Working:
    """The lower indexes whose job is alive elsewhere than where a result came from."""

    __slots__ = ("_dispatcher", "_node_id", "_orders")

    def __init__(self, orders: dict[int, tuple[Order, Socket]], dispatcher: Dispatcher, node_id: str | None) -> None:
        self._orders, self._dispatcher, self._node_id = orders, dispatcher, node_id

    def __contains__(self, index: object) -> bool:
        found = self._orders.get(index) if isinstance(index, int) else None
        return found is not None and self._dispatcher.is_elsewhere(found[0].job_id, self._node_id)


def _elapsed_ms(order: Order) -> float:
    return round((monotonic() - order.cut_at) * 1000, 1)
