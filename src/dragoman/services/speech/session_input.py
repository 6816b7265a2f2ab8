"""What the client of a session sends: audio chunks, which the segmenter cuts, or numbered utterances, put in order.

A session gets one kind or the other. Each utterance becomes a job request. Nothing is awaited here: a call returns what
is complete now.
"""

from time import monotonic

import msgspec

from dragoman.domain.chunk_marks import AudioMark
from dragoman.domain.endpointer import Endpointer
from dragoman.domain.preview import OpenPreview
from dragoman.domain.reorder import IndexRefused, Reorder
from dragoman.domain.segmenter import Cut, Output, Segmenter, SegmenterSettings
from dragoman.protocol import ids
from dragoman.protocol.audio import MAX_CHUNK_PACKETS, OPUS, PCM16, duration_ms
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.fields import keep
from dragoman.protocol.node import JobAssign
from dragoman.protocol.session import VAD_SERVER, SessionInit, Utterance
from dragoman.services.sockets import Socket
from dragoman.services.speech import messages
from dragoman.services.speech.job_request import JobRequest, LatestIndexes, Listener
from dragoman.services.speech.room_speech import InRoom
from dragoman.services.speech.turn_queue import TurnQueue
from dragoman.services.speech.voice_detector import VoiceDetector

# None is the session's own socket, whichever that is when the result is sent.
NumberedUtterance = tuple[Utterance, Socket | None]


def finds_speech(init: SessionInit) -> bool:
    """Whether the server finds the utterances of a session. Opus stays opaque."""
    return init.vad == VAD_SERVER and init.audio_format == PCM16


class SessionInput:
    def __init__(
        self,
        settings: SegmenterSettings,
        reorder_ms: int,
        span: int,
        session_id: str,
        init: SessionInit,
        *,
        tenant: str,
        account: str,
        next_index: int = 0,
        numbered: bool | None = None,
        settled: AudioMark = AudioMark(),  # noqa: B008
        silence_ms: int,
    ) -> None:
        """`span`: how far ahead of the release window an utterance_index may be. `silence_ms`: silence that ends an
        utterance, if the session asked for voice detection and sends pcm16."""
        self.audio_format, self.sample_rate = init.audio_format or OPUS, init.sample_rate or 16000
        self.numbered = numbered  # True: numbered utterances, False: chunks, None: not known yet
        self.received_seq: int | None = None  # of the last chunk
        self.settled = settled  # the chunks that are in a cut, were withheld, or were dropped as silence
        self._resumed_in = settled  # until the chunk arrives that a cut has split
        self.client_lag_ms: float | None = None  # of the last chunk
        self._session_id, self._init, self._tenant, self._account = session_id, init, tenant, account
        self._latest = LatestIndexes()
        hears = finds_speech(init)
        self._detector = VoiceDetector(self.sample_rate) if hears else None
        endpointer = Endpointer(self.sample_rate, silence_ms) if hears else None
        self.segmenter = Segmenter(settings, ids.turn_id, next_index, self.audio_format, endpointer)
        self.reorder: Reorder[NumberedUtterance] = Reorder(reorder_ms, span, next_index)

    @property
    def vad(self) -> str | None:
        """What finds the ends of utterances, if not the client."""
        return VAD_SERVER if self._detector is not None else None

    @property
    def next_index(self) -> int:
        """The index of the next utterance."""
        return self.reorder.next_index if self.numbered else self.segmenter.next_index

    def chunk(self, audio: bytes, is_final: bool, seq: int, sent_at_ms: int | None, now: float) -> list[Output]:
        """`sent_at_ms`: by the client's clock."""
        self._require_kind(numbered=False)
        self.client_lag_ms = messages.lag_ms(sent_at_ms)
        length_ms = duration_ms(self.audio_format, audio, self.sample_rate, MAX_CHUNK_PACKETS)
        self.received_seq = seq
        if self._detector is None:
            return self.segmenter.chunk(audio, length_ms, is_final, now, seq)
        before, self._resumed_in = self._resumed_in, AudioMark()
        skipped = before.split_bytes if seq == before.split_seq else 0
        audio = audio[skipped:]
        return self.segmenter.chunk(audio, length_ms, is_final, now, seq, self._detector.hear(audio), skipped)

    def utterance(
        self, message: Utterance, reply_to: Socket | None, now: float, expected: int
    ) -> list[NumberedUtterance]:
        """A whole utterance, numbered by the client. Returns those that can be dispatched now."""
        self._require_kind(numbered=True)
        copy = msgspec.structs.replace(message, audio=keep(message.audio), features=keep(message.features))
        ready = self.reorder.offer(message.utterance_index, (copy, reply_to), now, expected)
        if isinstance(ready, IndexRefused):
            why = "was used before" if ready is IndexRefused.USED else f"is more than {self.reorder.span} ahead"
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, f"utterance_index {message.utterance_index} {why}.")
        return ready

    def settle(self, settled: AudioMark) -> None:
        """The audio up to here is in a cut that gets a job now, or was withheld or dropped."""
        seq = self.settled.seq if settled.seq is None else settled.seq
        self.settled = settled._replace(seq=seq)

    # -- job requests ----------------------------------------------------------------------------

    def request_of_cut(
        self,
        cut: Cut,
        queue: TurnQueue,
        listener: Listener,
        in_room: InRoom | None = None,
        preview: OpenPreview | None = None,
    ) -> JobRequest:
        preview_id, node_id = (preview.id, preview.node_id) if preview is not None else (None, None)
        assignment = messages.assignment_of_cut(
            self._session_id, self._init, cut, self.audio_format, self.sample_rate, preview_id
        )
        return self._request(assignment, queue, listener, in_room, cut.ends_turn, cut.duration_ms, node_id)

    def request_of_utterance(
        self, message: Utterance, queue: TurnQueue, listener: Listener, in_room: InRoom | None = None
    ) -> JobRequest:
        """A turn of its own."""
        assignment = messages.assignment_of_utterance(message, queue.turn.id)
        return self._request(assignment, queue, listener, in_room, True, None)

    def _request(
        self,
        assignment: JobAssign,
        queue: TurnQueue,
        listener: Listener,
        in_room: InRoom | None,
        ends_turn: bool,
        audio_ms: int | None,
        preview_node: str | None = None,
    ) -> JobRequest:
        if in_room is not None:
            assignment = messages.assignment_in_room(assignment, in_room)
        return JobRequest(
            job_id=assignment.job_id,
            request_id=ids.request_id(self._session_id, assignment.utterance_index, assignment.tgt_lang),
            listener=listener,
            assignment=assignment,
            cut_at=monotonic(),
            turn_queue=queue,
            position=queue.join(),
            ends_turn=ends_turn,
            audio_ms=audio_ms,
            may_park=bool(assignment.is_max_duration_triggered),
            needs=messages.needs_of(assignment.pipeline),
            tenant=self._tenant,
            account=self._account,
            latest=self._latest,
            preview_node=preview_node,
            client_lag_ms=None if self.numbered else self.client_lag_ms,
            room=in_room.utterance if in_room is not None and in_room.refused is None else None,
        )

    # -- time ------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When the segmenter or the reordering has something due."""
        cuts, utterances = self.segmenter.deadline(), self.reorder.deadline()
        return cuts if utterances is None or (cuts is not None and cuts < utterances) else utterances

    def _require_kind(self, *, numbered: bool) -> None:
        if self.numbered is None:
            self.numbered = numbered
        elif self.numbered is not numbered:
            kind = "numbered utterances" if self.numbered else "audio chunks"
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, f"This session is fed by {kind}; both cannot be mixed.")
