"""Previews: open utterances go to nodes while they are spoken, and words come back. Both ends of it, best effort.

    SessionInput ─▶ Speaker ─ToPreview─▶ inbox of the node's instance ─▶ NodePreviews ─▶ node
    SessionOutput ◀─ Speaker ◀─FromPreview─ inbox of the session's instance ◀─ NodePreviews ◀─ node

If both are this instance, both arrows are calls. `domain/preview` decides; this module executes. Nothing is stored, and
nothing is repeated: what an inbox that is more than a tenth full, a slow Redis or a slow node cannot take is dropped.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from time import monotonic

import structlog
from msgspec import Raw

from dragoman.domain.preview import (
    MIN_OPENING_MS,
    MIN_PIECE_MS,
    Ended,
    FindNode,
    How,
    OpenPreview,
    PreviewAsk,
    Send,
    SessionPreview,
    choose_node,
)
from dragoman.domain.segmenter import Cut, OpenUtterance
from dragoman.protocol import ids
from dragoman.protocol.audio import encode_base64
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import PreviewEnd, PreviewRefusal
from dragoman.protocol.fields import Message
from dragoman.protocol.node import NodePartial, PreviewAudio, PreviewClose, PreviewRefused
from dragoman.protocol.peer import FromPreview, ToPreview
from dragoman.protocol.session import SessionInit
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Router
from dragoman.services.speech import messages
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.job_request import RoomSpeech, SessionTurns
from dragoman.services.speech.local_nodes import LocalNode, LocalNodes, LocalPreview
from dragoman.services.speech.session_input import SessionInput
from dragoman.services.speech.session_output import SessionOutput
from dragoman.store.inbox import PushReply

log = structlog.get_logger(__name__)

INBOX_SHARE = 0.1
FULL_S = 2.0  # for how long a node that was full is not asked again
IDLE_S = 10.0  # a preview without audio for so long is closed: its session may be gone with its instance
SLOW_NODE_BYTES = 256 * 1024  # unread by the node; 8 s of pcm16 at 16 kHz

_LOST = {PushReply.GONE: PreviewRefusal.NODE_LOST, PushReply.FULL: PreviewRefusal.INBOX_FULL, None: PreviewRefusal.LINK}


class Previews:
    """The previews of this instance's sessions."""

    def __init__(self, view: FleetView, router: Router, metrics: Metrics, rng: random.Random | None = None) -> None:
        self._view, self._router, self._metrics, self._rng = view, router, metrics, rng or random.Random()
        self._speakers: dict[str, Speaker] = {}  # by open preview
        self._open_on: Counter[str] = Counter()  # by node
        self._full_until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._speakers)

    @property
    def metrics(self) -> Metrics:
        return self._metrics

    # -- for speakers ----------------------------------------------------------------------------

    def choose(self, ask: PreviewAsk) -> OpenPreview | None:
        now = monotonic()
        full = [node_id for node_id, until in self._full_until.items() if until > now]
        if not full:
            self._full_until.clear()
        ask = PreviewAsk(ask.src, ask.tgt, ask.lang_a, ask.lang_b, ask.turn_node, frozenset((*ask.excluded, *full)))
        node = choose_node(ask, self._view.fleet, self._open_on.__getitem__, self._router.instance, now, self._rng)
        return OpenPreview(ids.preview_id(), node.id, node.epoch, node.instance) if node is not None else None

    def opened(self, preview: OpenPreview, speaker: "Speaker") -> None:
        self._speakers[preview.id] = speaker
        self._open_on[preview.node_id] += 1
        self._metrics.previews.set(len(self._speakers))

    def closed(self, preview: OpenPreview) -> None:
        if self._speakers.pop(preview.id, None) is not None:
            self._open_on[preview.node_id] -= 1
            if not self._open_on[preview.node_id]:
                del self._open_on[preview.node_id]
        self._metrics.previews.set(len(self._speakers))

    def send(
        self, preview: OpenPreview, frames: Iterable[Message], *, opens: bool = False, closes: bool = False
    ) -> "asyncio.Future[PushReply | None] | None":
        """To the node's instance. None: it is this one, and has handled it."""
        raw = [Raw(encode(frame)) for frame in frames]
        message = ToPreview(preview.node_id, preview.epoch, preview.id, self._router.instance, raw, opens, closes)
        return self._router.offer(preview.instance, message, INBOX_SHARE)

    def refused(self, preview: OpenPreview, reason: str) -> None:
        self.count_refused(reason)
        if reason == PreviewRefusal.FULL:
            self._full_until[preview.node_id] = monotonic() + FULL_S

    def count_refused(self, reason: str) -> None:
        known = reason if reason in frozenset(PreviewRefusal) else PreviewRefusal.NODE
        self._metrics.preview_refused.labels(known).inc()

    # -- from nodes ------------------------------------------------------------------------------

    def from_node(self, message: FromPreview) -> None:
        speaker = self._speakers.get(message.preview_id)
        if speaker is None:
            return
        if message.refused:
            speaker.lost(message.preview_id, message.refused)
        else:
            speaker.partial(message)

    def node_lost(self, node_id: str, epoch: int) -> None:
        self._full_until.pop(node_id, None)
        for preview_id, speaker in list(self._speakers.items()):
            preview = speaker.preview
            if preview is not None and preview.node_id == node_id and preview.epoch <= epoch:
                speaker.lost(preview_id, PreviewRefusal.NODE_LOST)


class Speaker:
    """Sends what one session's client speaks to a node, and the node's words to the client."""

    def __init__(
        self,
        previews: Previews,
        session_id: str,
        init: SessionInit,
        trace_id: str,
        source: SessionInput,
        output: SessionOutput,
        turns: SessionTurns,
        rooms: RoomSpeech,
    ) -> None:
        self._previews, self._input, self._output, self._turns = previews, source, output, turns
        self._rooms = rooms
        self._session_id, self._init, self._trace_id = session_id, init, trace_id
        # With a voice detector an utterance is open when something was said.
        self._state = SessionPreview(MIN_PIECE_MS if source.vad is not None else MIN_OPENING_MS)
        self._in_flight: asyncio.Future[PushReply | None] | None = None

    @property
    def preview(self) -> OpenPreview | None:
        return self._state.preview

    def deadline(self) -> float | None:
        return self._state.deadline()

    def follow(self) -> None:
        """Send what has been spoken since the last call, if it is time for that."""
        now, utterance = monotonic(), self._input.segmenter.open_utterance
        if utterance is None:
            return
        while (step := self._state.follow(utterance, now)) is not None:
            match step:
                case FindNode():
                    if not self._find(step, now):
                        return
                case Send():
                    self._send(step, utterance)

    def _find(self, step: FindNode, now: float) -> bool:
        init, turn_id = self._languages(), step.utterance.turn_id
        turn = self._turns.get(turn_id) if turn_id is not None else None
        turn_node = (turn.turn.node_id if turn is not None else None) or step.turn_node
        ask = PreviewAsk(init.src_lang, init.tgt_lang, init.lang_a, init.lang_b, turn_node, step.excluded)
        preview = self._previews.choose(ask)
        if preview is None:
            if self._state.not_found(now):
                self._previews.count_refused(PreviewRefusal.NO_NODE)
            return False
        self._state.found(preview)
        self._previews.opened(preview, self)
        self._in_flight = None
        return True

    def _languages(self) -> SessionInit:
        """What is spoken, and what its job translates it into."""
        in_room = self._rooms.language(self._session_id)
        return self._init if in_room is None else messages.init_in_room(self._init, in_room)

    def _send(self, step: Send, utterance: OpenUtterance) -> None:
        preview, source = step.preview, self._input
        if self._in_flight is not None and not self._in_flight.done():
            self._previews.metrics.preview_dropped.labels(PreviewRefusal.LINK).inc()
            return
        audio = encode_base64(utterance.read(step.start))
        frames: list[Message] = [PreviewAudio(preview_id=preview.id, seq=step.seq, audio=audio)]
        opens = step.seq == 0
        if opens:
            vocabulary = self._rooms.vocabulary(self._session_id)
            about = (self._session_id, self._trace_id, source.audio_format, source.sample_rate, vocabulary)
            frames.insert(0, messages.preview_opening(preview.id, self._languages(), utterance, *about))
        self._in_flight = self._previews.send(preview, frames, opens=opens)
        if self._in_flight is not None:
            self._in_flight.add_done_callback(lambda answer: self._sent(preview, answer.result(), opens))

    def _sent(self, preview: OpenPreview, verdict: PushReply | None, opens: bool) -> None:
        if verdict is PushReply.OK:
            return
        reason = _LOST.get(verdict, PreviewRefusal.NODE)
        if opens or reason is PreviewRefusal.NODE_LOST:
            self.lost(preview.id, reason)
        else:
            self._previews.metrics.preview_dropped.labels(reason).inc()

    # -- the words -------------------------------------------------------------------------------

    def partial(self, message: FromPreview) -> None:
        is_first = not self._state.has_shown
        if self._state.partial(message.preview_id, message.number, message.text):
            self._output.partial(self._state.index, message.text, False, preview_id=message.preview_id)
            if is_first:
                self._previews.metrics.preview_first.observe(self._state.spoken_for(monotonic()))

    def lost(self, preview_id: str, reason: str) -> None:
        """The next audio goes to another node, from the beginning of the utterance."""
        preview = self._state.lost(preview_id)
        if preview is not None:
            self._previews.refused(preview, reason)
            self._previews.closed(preview)

    # -- the end ---------------------------------------------------------------------------------

    def cut(self, cut: Cut) -> OpenPreview | None:
        """The utterance is complete and gets a job; returns its preview."""
        ended = self._state.ended(How.CUT, cut.turn_id)
        self._close(ended, PreviewEnd.CUT)
        return ended.preview

    def withheld(self) -> None:
        """There is no utterance."""
        self._close(self._state.ended(How.NOTHING), PreviewEnd.SILENCE)

    def stop(self) -> None:
        """The session has ended, moved or lost its socket."""
        self._close(self._state.ended(How.STOPPED), PreviewEnd.CANCELLED)

    def _close(self, ended: Ended, reason: PreviewEnd) -> None:
        preview = ended.preview
        if ended.clears:
            self._output.partial(ended.index, "", False, preview_id=ended.shown_by)
        if preview is not None:
            self._previews.closed(preview)
            self._previews.send(preview, [PreviewClose(preview_id=preview.id, reason=reason)], closes=True)


class NodePreviews:
    """The previews on the nodes of this instance, of sessions of any instance."""

    def __init__(self, nodes: LocalNodes, router: Router, metrics: Metrics) -> None:
        self._nodes, self._router, self._metrics = nodes, router, metrics

    def on_message(self, message: ToPreview) -> None:
        """Of a session's instance."""
        node = self._nodes.find(message.node_id, message.epoch)
        if node is None:
            self._refuse(message, PreviewRefusal.NODE_LOST)
            return
        preview, is_slow = node.previews.get(message.preview_id), node.conn.buffered > SLOW_NODE_BYTES
        if message.opens and preview is None:
            if is_slow or len(node.previews) >= node.snapshot.previews:
                self._refuse(message, PreviewRefusal.FULL)
                return
            preview = node.previews[message.preview_id] = LocalPreview(message.listener)
        elif preview is None:
            if not message.closes:
                self._refuse(message, PreviewRefusal.UNKNOWN)
            return
        preview.got_audio(monotonic())
        if message.closes:
            del node.previews[message.preview_id]
        elif is_slow:
            self._metrics.preview_dropped.labels("slow_node").inc()
            return
        for frame in message.frames:
            node.conn.send(bytes(frame))

    def _refuse(self, message: ToPreview, reason: PreviewRefusal) -> None:
        if not message.closes:
            refused = FromPreview(message.preview_id, 0, refused=reason)
            self._router.offer(message.listener, refused, INBOX_SHARE)

    # -- from nodes ------------------------------------------------------------------------------

    def on_partial(self, node: LocalNode, message: NodePartial) -> None:
        preview_id = message.preview_id or ""
        preview = node.previews.get(preview_id)
        if preview is None:  # closed meanwhile
            return
        waited = preview.pace.deadline() is not None
        text = preview.pace.offer(message.text, monotonic())
        if text is not None:
            self._send(preview_id, preview, text)
        elif not waited:
            self._poll_later(node, preview_id, preview)

    def _poll_later(self, node: LocalNode, preview_id: str, preview: LocalPreview) -> None:
        due_at = preview.pace.deadline()
        if due_at is not None:
            asyncio.get_running_loop().call_later(max(due_at - monotonic(), 0), self._poll, node, preview_id, preview)

    def _poll(self, node: LocalNode, preview_id: str, preview: LocalPreview) -> None:
        if node.previews.get(preview_id) is not preview:
            return
        text = preview.pace.poll(monotonic())
        if text is not None:
            self._send(preview_id, preview, text)
        else:
            self._poll_later(node, preview_id, preview)

    def _send(self, preview_id: str, preview: LocalPreview, text: str) -> None:
        """A text that finds the one before still on its way is dropped: a later one has all of it."""
        if preview.in_flight is None or preview.in_flight.done():
            message = FromPreview(preview_id, preview.pace.number, text)
            preview.sent(self._router.offer(preview.listener, message, INBOX_SHARE))

    def on_refused(self, node: LocalNode, message: PreviewRefused) -> None:
        preview = node.previews.pop(message.preview_id, None)
        if preview is not None:
            log.info(
                "preview refused by its node", node=node.id, reason=message.reason[:200], limited=True, each="node"
            )
            refused = FromPreview(message.preview_id, 0, refused=PreviewRefusal.NODE)
            self._router.offer(preview.listener, refused, INBOX_SHARE)

    # -- upkeep ----------------------------------------------------------------------------------

    async def run_once(self) -> None:
        """Close previews that get no audio any more."""
        before = monotonic() - IDLE_S
        for node in self._nodes.all():
            for preview_id in [id for id, preview in node.previews.items() if preview.audio_at < before]:
                del node.previews[preview_id]
                node.conn.send(encode(PreviewClose(preview_id=preview_id, reason=PreviewEnd.CANCELLED)))
