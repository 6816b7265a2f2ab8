"""What the client of a session sends: audio chunks, which the segmenter cuts, or numbered utterances, put in order.

A session gets one kind or the other. Each utterance becomes a job request. Nothing is awaited here: a call returns what
is complete now.

The voice detector is fast-vad. It costs less than 1 ms of CPU for a second of audio, so it runs where the chunk
arrives. It takes frames of 32 ms at 8 or 16 kHz. Audio at another rate is resampled to nearly 16 kHz by repeating and
leaving out samples: too coarse to listen to, good enough to hear whether someone speaks. It finds pauses in noise best
in audio of usual loudness, so quiet audio is made louder and loud audio quieter, as the loudest of the last seconds
needs it. It hears the end of speech up to two frames late, so what it called speech last is compared with the first
frame that it does not: the steps that are hardly louder were silence already. In loud noise nobody can tell.
"""

from itertools import product
from math import log, sqrt
from time import monotonic

import msgspec
import numpy
from fast_vad import VadStateful
from numpy.typing import NDArray

from dragoman.domain.endpointer import Endpointer, Frame
from dragoman.domain.preview import OpenPreview
from dragoman.domain.reorder import IndexRefused, Reorder
from dragoman.domain.segmenter import AudioMark, Cut, Output, Segmenter, SegmenterSettings
from dragoman.protocol import ids
from dragoman.protocol.audio import MAX_CHUNK_PACKETS, OPUS, PCM16, duration_ms
from dragoman.protocol.codes import ErrorCode, ProtocolError
from dragoman.protocol.fields import keep
from dragoman.protocol.node import JobAssign
from dragoman.protocol.session import VAD_SERVER, SessionInit, Utterance
from dragoman.services.sockets import Socket
from dragoman.services.speech import messages
from dragoman.services.speech.job_request import InRoom, JobRequest, LatestIndexes, Listener, TurnQueue

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


# -- voice detection -------------------------------------------------------------------------------


THRESHOLD = 0.7  # the probability of speech from which a frame is speech
RATES = (8000, 16000)
NEARLY = 16000
REPEATS = (1, 2, 4, 8)  # divisors of the length of a frame

SAMPLES = numpy.dtype("<i2")
FULL_SCALE = 32_768.0
USUAL = 0.2  # loudness of the loudest frame, of full scale
FIRST = 0.1  # what is expected of it before anything is heard
FADING = 0.999  # a frame: half of it is forgotten in 22 s
GAINS = 0.5, 10.0
# The detector takes what it hears first for the noise of the place: rightly in noise, wrongly if someone speaks at
# once. So for its first two seconds a second detector decides, which has heard a quiet second before.
QUIET, QUIET_FRAMES, FIRST_FRAMES = 0.003, 32, 63
LATE_FRAMES = 2  # how late it hears the end of speech
STEPS = 4  # of a frame
HARDLY, FAINT = 1.5, 0.004  # louder than silence; loudness that is silence in any case
NOISE = USUAL / 10  # from this loudness on, weak speech and what is called silence are alike


class VoiceDetector:
    __slots__ = ("_at_first", "_first_frames", "_loudest", "_repeat", "_rest", "_said", "_size", "_step", "_vad")

    def __init__(self, sample_rate: int) -> None:
        rate, self._repeat, self._step = _resampling(sample_rate)
        self._vad = VadStateful.with_config(rate, THRESHOLD, 0, 0, 0)
        self._size = self._vad.frame_size * self._step // self._repeat * 2
        self._rest = b""
        self._said: list[NDArray[numpy.float32]] = []  # the frames of speech before this one, LATE_FRAMES at most
        self._loudest = FIRST
        self._at_first: VadStateful | None = VadStateful.with_config(rate, THRESHOLD, 0, 0, 0)
        self._first_frames = FIRST_FRAMES
        quiet = numpy.random.default_rng(0).normal(0, QUIET, (QUIET_FRAMES, self._vad.frame_size))
        for frame in quiet.astype(numpy.float32):
            self._at_first.detect_frame(frame)

    def hear(self, audio: bytes) -> list[Frame]:
        """The frames that are complete with this audio."""
        audio = self._rest + audio if self._rest else audio
        whole = len(audio) - len(audio) % self._size
        self._rest = audio[whole:]
        if not whole:
            return []
        samples = numpy.frombuffer(audio, SAMPLES, whole // 2)
        if self._repeat > 1:
            samples = samples.repeat(self._repeat)
        frames = samples[:: self._step].astype(numpy.float32).reshape(-1, self._vad.frame_size)
        return [self._heard(frame) for frame in frames]

    def _heard(self, frame: NDArray[numpy.float32]) -> Frame:
        if self._is_speech(frame):
            del self._said[: 1 - LATE_FRAMES]
            self._said.append(frame)
            return Frame(True, self._size)
        late = self._late(frame) if self._said else 0
        return Frame(False, self._size, late)

    def _late(self, frame: NDArray[numpy.float32]) -> int:
        """How many bytes before this frame, the first without speech, were silence as well."""
        said = numpy.concatenate(self._said).reshape(-1, len(frame) // STEPS)
        self._said.clear()
        power = frame.dot(frame) / len(frame)
        if power > NOISE**2:
            return 0
        silence = max(HARDLY**2 * power, FAINT**2)
        loud = numpy.flatnonzero(numpy.einsum("ij,ij->i", said, said) > silence * said.shape[1])
        steps = len(said) - 1 - int(loud[-1]) if len(loud) else len(said)
        return steps * self._size // STEPS // 2 * 2

    def _is_speech(self, frame: NDArray[numpy.float32]) -> bool:
        """`frame`: samples of pcm16; the detector takes those of 1 as the loudest."""
        loudness = sqrt(frame.dot(frame) / len(frame)) / FULL_SCALE
        self._loudest = max(self._loudest * FADING, loudness)
        least, most = GAINS
        frame *= max(least, min(most, USUAL / self._loudest)) / FULL_SCALE
        heard = self._vad.detect_frame(frame)
        if self._at_first is not None:
            heard = self._at_first.detect_frame(frame)
            self._first_frames -= 1
            if not self._first_frames:
                self._at_first = None
        return heard


def _resampling(sample_rate: int) -> tuple[int, int, int]:
    """A rate that the detector takes, how often a sample is repeated, and of how many one is kept."""
    if sample_rate in RATES:
        return sample_rate, 1, 1
    ways = product(REPEATS, range(1, 100))
    repeat, step = min(ways, key=lambda way: (abs(log(sample_rate * way[0] / way[1] / NEARLY)), way))
    return NEARLY, repeat, step
