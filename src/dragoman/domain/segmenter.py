"""The segmenter: a session's audio in, numbered cuts and the ends of turns out.

Invariants: every byte taken in is in exactly one cut or was withheld or dropped as silence, in the order it came; cuts
are numbered without holes; an empty cut makes no utterance and takes no number, but if it ends a turn of which a cut
went out, the output is TurnEnded. A turn begins with its first cut and ends with a manual, timeout or close one.

A short and quiet final is withheld: after 3 s of quiet the original web client sends a chunk and a final every 256 ms,
and none of them contains speech. It takes no number. If a cut of the turn went out before, the final is never withheld:
old nodes keep the audio of a max-duration job until the last job of its turn arrives.

What is due by time is done first, so a chunk that arrives after a deadline belongs to the next cut even if the timer
has not had its turn. The caller has checked the audio and knows its duration.

Without an endpointer, audio is an utterance from its first byte on, and a chunk is never split. With one (pcm16 alone),
the caller also says which frames of the audio are speech: an utterance begins and ends where speech does, silence
between them is dropped, and both may be in the middle of a chunk. What else cuts an utterance cuts it all the same.

A chunk is settled when every byte of it is in a cut, or was dropped as silence. A cut may split a chunk. After a resume
the client sends that chunk again, and the part that was settled is skipped.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum, auto
from math import inf
from typing import NamedTuple

from dragoman.domain.endpointer import LOOK_BACK_MS, Endpoint, Endpointer, Frame
from dragoman.protocol.audio import OPUS, OPUS_PACKET_MS, pcm16_rms


class AudioMark(NamedTuple):
    """Up to where the audio of a client is settled."""

    seq: int | None = None  # the highest of the whole chunks; None: none since the last time
    split_seq: int | None = None  # the chunk after them, of which only a part is settled
    split_bytes: int = 0


class ChunkMarks:
    __slots__ = ("_into", "_marks")

    def __init__(self) -> None:
        # The chunks that are not settled: number, size, and how much of it was settled before a resume.
        self._marks: deque[tuple[int | None, int, int]] = deque()
        self._into = 0  # how many bytes of the first one are settled

    def add(self, seq: int | None, size: int, skipped: int = 0) -> None:
        """`skipped`: bytes before these that were settled before a resume."""
        if not size and self._marks and not self._marks[-1][1]:
            earlier, *_ = self._marks.pop()  # a client may send any number of empty messages
            seq = max((one for one in (earlier, seq) if one is not None), default=None)
        self._marks.append((seq, size, skipped))

    def settle(self, size: int) -> AudioMark:
        """The next `size` bytes are settled, and messages without audio between and behind them."""
        seqs, self._into = [], self._into + size
        while self._marks and self._marks[0][1] <= self._into:
            seq, whole, _ = self._marks.popleft()
            self._into -= whole
            if seq is not None:
                seqs.append(seq)
        split, _, skipped = self._marks[0] if self._marks else (None, 0, 0)
        into = self._into + skipped
        return AudioMark(max(seqs, default=None), *((split, into) if split is not None and into else ()))


class Reason(StrEnum):
    MANUAL = auto()
    TIMEOUT = auto()
    MAX_DURATION = auto()
    MAX_LENGTH = auto()
    CLOSE = auto()

    @property
    def ends_turn(self) -> bool:
        return self in _ENDS_TURN


_ENDS_TURN = frozenset({Reason.MANUAL, Reason.TIMEOUT, Reason.CLOSE})
_BY_HAND = frozenset({Reason.MANUAL, Reason.CLOSE})
_BY_SIZE = frozenset({Reason.MAX_DURATION, Reason.MAX_LENGTH})

MANUAL_PADDING_MS = 280
PADDING_MS = 220


@dataclass(frozen=True, slots=True)
class SegmenterSettings:
    final_grace_ms: int = 50
    pause_ms: int = 3000
    max_duration_ms: int = 10000  # 0 = never
    max_buffer_bytes: int = 512000
    tts_max_ms: int = 60000
    quiet_final_ms: int = 600  # shorter finals are withheld if they are quiet; 0 = none
    quiet_opus_bytes: int = 16  # quiet: Opus packets with a smaller mean size than this
    quiet_pcm_rms: int = 32  # quiet: pcm16 with a smaller root mean square than this


@dataclass(frozen=True, slots=True)
class Cut:
    index: int
    reason: Reason
    audio: bytes
    duration_ms: int
    turn_id: str
    begins_turn: bool
    ends_turn: bool
    padding_ms: int
    settled: AudioMark  # the chunks that are in the cut, its final included

    @property
    def is_manual_cut(self) -> bool:
        return self.reason in _BY_HAND

    @property
    def is_timeout_triggered(self) -> bool:
        return self.reason is Reason.TIMEOUT

    @property
    def is_max_duration_triggered(self) -> bool:
        return self.reason in _BY_SIZE


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn ended by a cut without audio, so there is no job that could report it."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class Withheld:
    """A final without speech: no utterance, no number. Its audio counts as received."""

    settled: AudioMark
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Silence:
    """Audio in which no speech was heard: dropped. It counts as received."""

    settled: AudioMark
    duration_ms: int


Output = Cut | TurnEnded | Withheld | Silence


class OpenUtterance:
    """The utterance that the next cut takes, as far as it was received. Valid until the segmenter is called again."""

    __slots__ = ("_audio", "duration_ms", "index", "turn_id")

    def __init__(self, index: int, turn_id: str | None, duration_ms: int, audio: bytearray) -> None:
        self.index = index
        self.turn_id = turn_id  # None: it begins a turn, which gets its id at the cut
        self.duration_ms = duration_ms
        self._audio = audio

    @property
    def size(self) -> int:
        return len(self._audio)

    def read(self, position: int = 0) -> bytes:
        """Its audio from this byte on."""
        return bytes(memoryview(self._audio)[position:])


class Segmenter:
    __slots__ = (
        "_audio",
        "_duration_ms",
        "_endpointer",
        "_final_due",
        "_format",
        "_heard",
        "_heard_at",
        "_marks",
        "_new_turn_id",
        "_overdue",
        "_paused_until",
        "_quiet_from",
        "_settings",
        "next_index",
        "turn_id",
    )

    def __init__(
        self,
        settings: SegmenterSettings,
        new_turn_id: Callable[[], str],
        next_index: int = 0,
        audio_format: str = OPUS,
        endpointer: Endpointer | None = None,
    ) -> None:
        self.next_index = next_index
        self.turn_id: str | None = None  # the turn a cut went out of and that has not ended
        self._settings = settings
        self._format = audio_format
        self._new_turn_id = new_turn_id
        self._endpointer = endpointer
        self._audio = bytearray()
        self._duration_ms = 0
        self._heard = 0  # up to here frames say what is speech; below 0, a frame covers bytes that were cut
        self._marks = ChunkMarks()
        self._heard_at = -inf
        self._quiet_from = -inf  # no playback after this; in the future while one is on
        self._paused_until = -inf  # the client was asked to send nothing before this
        self._final_due: float | None = None  # an empty final waits this long for the chunk behind it
        self._overdue: list[Output] = []

    @property
    def open_utterance(self) -> OpenUtterance | None:
        """None while nothing is said. An open utterance ends with the output Cut of its index, or Withheld."""
        if not self._is_open:
            return None
        return OpenUtterance(self.next_index, self.turn_id, self._duration(len(self._audio)), self._audio)

    def chunk(
        self,
        audio: bytes,
        duration_ms: int,
        is_final: bool,
        now: float,
        seq: int | None = None,
        frames: Iterable[Frame] = (),
        skipped: int = 0,
    ) -> list[Output]:
        """`frames`: what a detector heard, in this audio and in what was left over of the chunk before. `skipped`: how
        many bytes are missing at the beginning of the chunk, because they were settled before a resume."""
        outputs = self.poll(now)
        if audio or is_final:
            self._marks.add(seq, len(audio), skipped)
        if audio:
            self._audio += audio
            self._duration_ms += duration_ms
            self._heard_at = now
        if self._endpointer is not None:
            self._follow(self._endpointer, frames, outputs)
        if is_final and audio:
            self._cut(Reason.MANUAL, outputs)
        elif is_final and self._final_due is None:
            self._final_due = now + self._settings.final_grace_ms / 1000
        elif audio and self._endpointer is None and (reason := self._too_big()) is not None:
            # With a final waiting, that is the cut it asked for.
            self._cut(reason if self._final_due is None else Reason.MANUAL, outputs)
        return outputs

    def tts_started(self, now: float) -> None:
        """Playback on the client: the speaker listens, so silence is no pause. What was due before is handed out by
        the next call, and `deadline()` asks for one at once."""
        self._overdue = self.poll(now)
        self._quiet_from = now + self._settings.tts_max_ms / 1000

    def tts_ended(self, now: float) -> None:
        """The pause begins anew. Nothing happens if no playback was on, or it was given up by `tts_max_ms`."""
        self._quiet_from = min(self._quiet_from, now)

    def client_paused(self, for_s: float, now: float) -> None:
        """The client was asked to send nothing for this long: its silence is no pause, which is counted from then on.
        What was due before is handed out by the next call, as after `tts_started`."""
        self._overdue = self.poll(now)
        self._paused_until = max(self._paused_until, now + for_s)

    def poll(self, now: float) -> list[Output]:
        outputs, self._overdue = self._overdue, []
        due = self._timer()
        if due is not None and due <= now:
            self._cut(Reason.TIMEOUT if self._final_due is None else Reason.MANUAL, outputs)
        return outputs

    def close(self, now: float) -> list[Output]:
        outputs = self.poll(now)
        self._cut(Reason.CLOSE, outputs)
        return outputs

    def deadline(self) -> float | None:
        """When to poll next; None while nothing is buffered and no turn is open, however long that lasts."""
        return self._heard_at if self._overdue else self._timer()

    def resume_turn(self, turn_id: str, now: float) -> None:
        """Continue a turn that another instance began; its pause counts from now."""
        self.turn_id = turn_id
        self._heard_at = max(self._heard_at, now)
        if self._endpointer is not None:
            self._endpointer.carried_over(0)

    def _timer(self) -> float | None:
        # A final supersedes the pause: the client asked for the cut, which is due in moments.
        if self._final_due is not None:
            return self._final_due
        if not self._is_open and self.turn_id is None:
            return None
        return max(self._heard_at, self._quiet_from, self._paused_until) + self._settings.pause_ms / 1000

    @property
    def _is_open(self) -> bool:
        return bool(self._audio) if self._endpointer is None else self._endpointer.speaking

    def _too_big(self) -> Reason | None:
        if 0 < self._settings.max_duration_ms <= self._duration(len(self._audio)):
            return Reason.MAX_DURATION
        return Reason.MAX_LENGTH if len(self._audio) > self._settings.max_buffer_bytes else None

    # -- with an endpointer ----------------------------------------------------------------------

    def _follow(self, endpointer: Endpointer, frames: Iterable[Frame], outputs: list[Output]) -> None:
        for frame in frames:
            self._heard += frame.size
            match endpointer.frame(frame):
                case Endpoint.START:
                    self._drop_silence(endpointer, outputs)
                case Endpoint.END:
                    reason = Reason.TIMEOUT if self._final_due is None else Reason.MANUAL
                    self._cut(reason, outputs, self._heard if endpointer.speaking else 0)
            if endpointer.speaking and (too_long := self._too_long(endpointer)) is not None:
                self._cut_speech(endpointer, too_long, outputs)
        if not endpointer.speaking:
            self._drop_silence(endpointer, outputs)

    def _drop_silence(self, endpointer: Endpointer, outputs: list[Output]) -> None:
        size = self._heard - endpointer.keep
        if size > 0:
            outputs.append(Silence(self._remove(size), endpointer.duration_ms(size)))

    def _too_long(self, endpointer: Endpointer) -> Reason | None:
        if 0 < endpointer.bytes(self._settings.max_duration_ms) <= self._heard:
            return Reason.MAX_DURATION
        return Reason.MAX_LENGTH if self._heard > self._settings.max_buffer_bytes else None

    def _cut_speech(self, endpointer: Endpointer, reason: Reason, outputs: list[Output]) -> None:
        """In the middle of speech. With a final waiting, that is the cut it asked for."""
        if self._final_due is not None:
            self._cut(Reason.MANUAL, outputs)
            return
        searched = min(endpointer.bytes(LOOK_BACK_MS), self._heard // 4 * 2)
        before = self._heard - searched
        self._cut(reason, outputs, before + endpointer.cut_before(bytes(self._audio[before : self._heard])))
        endpointer.carried_over(self._heard)

    # -- cutting ---------------------------------------------------------------------------------

    def _cut(self, reason: Reason, outputs: list[Output], size: int | None = None) -> None:
        """`size`: how much of the audio; by default all of it."""
        size = len(self._audio) if size is None else size
        if size and self._something_is_said(reason):
            outputs.append(self._take(reason, size))
        else:
            if size and reason is Reason.MANUAL:
                outputs.append(Withheld(duration_ms=self._duration(size), settled=self._remove(size)))
            elif size:
                outputs.append(Silence(duration_ms=self._duration(size), settled=self._remove(size)))
            if self.turn_id is not None:
                outputs.append(TurnEnded(self.turn_id))
        if reason.ends_turn:
            self.turn_id = None
            if self._endpointer is not None:
                self._endpointer.ended()
        self._final_due = None

    def _take(self, reason: Reason, size: int) -> Cut:
        begins_turn = self.turn_id is None
        turn_id = self.turn_id = self._new_turn_id() if self.turn_id is None else self.turn_id
        cut = Cut(
            index=self.next_index,
            reason=reason,
            audio=bytes(memoryview(self._audio)[:size]),
            duration_ms=self._duration(size),
            turn_id=turn_id,
            begins_turn=begins_turn,
            ends_turn=reason.ends_turn,
            padding_ms=MANUAL_PADDING_MS if reason in _BY_HAND else PADDING_MS,
            settled=self._remove(size),
        )
        self.next_index += 1
        return cut

    def _remove(self, size: int) -> AudioMark:
        del self._audio[:size]
        self._heard -= size
        self._duration_ms = 0
        return self._marks.settle(size)

    def _duration(self, size: int) -> int:
        return self._duration_ms if self._endpointer is None else self._endpointer.duration_ms(size)

    def _something_is_said(self, reason: Reason) -> bool:
        if self._endpointer is not None:
            return self._endpointer.hears
        return reason is not Reason.MANUAL or self.turn_id is not None or not self._is_quiet()

    def _is_quiet(self) -> bool:
        if self._duration_ms >= self._settings.quiet_final_ms:
            return False
        if self._format == OPUS:
            packets = self._duration_ms // OPUS_PACKET_MS
            return len(self._audio) - 2 * packets < self._settings.quiet_opus_bytes * packets
        return pcm16_rms(bytes(self._audio)) < self._settings.quiet_pcm_rms
