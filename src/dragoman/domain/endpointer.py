"""Where speech begins and ends in a stream of pcm16, and where speech without a pause is cut.

    silence ──START_MS of speech──▶ speech ──silence_ms without speech──▶ silence

A detector says of each frame whether it is speech; everything here is counted in bytes of audio, so a stream that
arrives late or in bursts is cut at the same places. An utterance keeps LEAD_MS before its start, because a detector
hears the beginning of a word late. It also hears the end of a word late: the first frame without speech says since when
there was none, and silence counts from there. In a turn that continues, the first frame of speech is a start: it may be
the rest of a word.
"""

from collections import deque
from enum import Enum, auto
from math import hypot
from typing import NamedTuple

from dragoman.protocol.audio import pcm16_rms

START_MS = 100
LEAD_MS = 200
LOOK_BACK_MS = 2000  # how much before the greatest length is searched for a quiet place
QUIET_MS = 100  # how long that place is
STEP_MS = 20


class Frame(NamedTuple):
    speech: bool
    size: int  # in bytes
    late: int = 0  # of a frame without speech: so many bytes before it were none either, and were called speech


class Endpoint(Enum):
    START = auto()
    END = auto()


class Endpointer:
    __slots__ = ("_frames", "_frames_size", "_quiet", "_rate", "_run", "_silence_ms", "in_turn", "speaking")

    def __init__(self, sample_rate: int, silence_ms: int) -> None:
        self.speaking = False  # an utterance is open
        self.in_turn = False  # a turn continues; in speech or not
        self._rate, self._silence_ms = sample_rate, silence_ms
        self._run = 0  # bytes of speech since the last frame without
        self._quiet = 0  # bytes since the end of speech
        self._frames: deque[Frame] = deque()  # the last LOOK_BACK_MS
        self._frames_size = 0

    def frame(self, frame: Frame) -> Endpoint | None:
        """What this frame decides. START: the utterance has the `keep` bytes up to the end of this frame. END: it ends
        with this frame; if no utterance is open, only the turn ends. The caller calls `ended` then."""
        self._remember(frame)
        self._run = self._run + frame.size if frame.speech else 0
        self._quiet = 0 if frame.speech else self._quiet + frame.size + frame.late
        if not self.speaking and frame.speech and (self.in_turn or self._run >= self.bytes(START_MS)):
            self.speaking = True
            return Endpoint.START
        if (self.speaking or self.in_turn) and self._quiet >= self.bytes(self._silence_ms):
            return Endpoint.END
        return None

    @property
    def keep(self) -> int:
        """How many of the last bytes may be part of an utterance that has not started."""
        return self._run + self.bytes(LEAD_MS)

    @property
    def hears(self) -> bool:
        """Speech, though perhaps not enough for a start."""
        return self.speaking or self._run > 0

    def ended(self) -> None:
        """The utterance and its turn are over."""
        self.speaking = self.in_turn = False
        self._run = 0

    def carried_over(self, size: int) -> None:
        """The utterance was cut, its turn continues, and the last `size` bytes are not in the cut."""
        self.in_turn, self.speaking = True, False
        for frame in reversed(self._frames):
            if size <= 0 or self.speaking:
                break
            size -= frame.size
            self.speaking = frame.speech

    def cut_before(self, audio: bytes) -> int:
        """The best place for a cut in audio without a pause: the middle of its quietest part."""
        return quietest(audio, self._rate)

    def bytes(self, duration_ms: int) -> int:
        return duration_ms * self._rate // 1000 * 2

    def duration_ms(self, size: int) -> int:
        return size // 2 * 1000 // self._rate

    def _remember(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._frames_size += frame.size
        while self._frames_size > self.bytes(LOOK_BACK_MS):
            self._frames_size -= self._frames.popleft().size


def quietest(audio: bytes, sample_rate: int) -> int:
    """The byte in the middle of the quietest QUIET_MS of pcm16; the end, if there is less."""
    step = sample_rate * STEP_MS // 1000 * 2
    levels = [pcm16_rms(audio[at : at + step], sample_rate // 8000) for at in range(0, len(audio) - step + 1, step)]
    steps = QUIET_MS // STEP_MS
    windows = [(hypot(*levels[at : at + steps]), at) for at in range(len(levels) - steps + 1)]
    if not windows:
        return len(audio)
    _, at = min(windows)
    return at * step + step * steps // 4 * 2
