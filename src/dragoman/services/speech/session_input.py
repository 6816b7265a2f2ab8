"""What the client of a session sends: audio chunks, which the segmenter cuts, or numbered utterances, put in order.

A session gets one kind or the other. Each utterance becomes a job request. Nothing is awaited here: a call returns what
is complete now.
"""

from time import monotonic

import msgspec

from dragoman.domain.preview import OpenPreview
from dragoman.domain.reorder import IndexRefused, Reorder
from dragoman.domain.segmenter import Cut, Output, Segmenter, SegmenterSettings
from dragoman.protocol import ids
from dragoman.protocol.audio import MAX_CHUNK_PACKETS, OPUS, duration_ms
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.fields import keep
from dragoman.protocol.node import JobAssign
from dragoman.protocol.session import SessionInit, Utterance
from dragoman.services.sockets import Socket
from dragoman.services.speech import messages
from dragoman.services.speech.job_request import JobRequest, LatestIndexes, Listener
from dragoman.services.speech.room_speech import InRoom
from dragoman.services.speech.turn_queue import TurnQueue

# None is the session's own socket, whichever that is when the result is sent.
NumberedUtterance = tuple[Utterance, Socket | None]


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
        cut_seq: int | None = None,
    ) -> None:
        """`span`: how far ahead of the release window an utterance_index may be."""
        self.audio_format, self.sample_rate = init.audio_format or OPUS, init.sample_rate or 16000
        self.numbered = numbered  # True: numbered utterances, False: chunks, None: not known yet
        self.received_seq: int | None = None  # of the last chunk
        self.cut_seq = cut_seq  # of the last chunk that is in a cut, or was withheld
        self.client_lag_ms: float | None = None  # of the last chunk
        self._session_id, self._init, self._tenant, self._account = session_id, init, tenant, account
        self._latest = LatestIndexes()
        self.segmenter = Segmenter(settings, ids.turn_id, next_index, self.audio_format)
        self.reorder: Reorder[NumberedUtterance] = Reorder(reorder_ms, span, next_index)

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
        return self.segmenter.chunk(audio, length_ms, is_final, now, seq)

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

    def cut(self, seq: int | None) -> None:
        """The audio up to this chunk is in a cut that gets a job now, or was withheld."""
        if seq is not None:
            self.cut_seq = seq

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
