"""Which frames of pcm16 are speech, as fast-vad hears it.

It costs less than 1 ms of CPU for a second of audio, so it runs where the chunk arrives. It takes frames of 32 ms at 8
or 16 kHz. Audio at another rate is resampled to nearly 16 kHz by repeating and leaving out samples: too coarse to
listen to, good enough to hear whether someone speaks. It finds pauses in noise best in audio of usual loudness, so
quiet audio is made louder and loud audio quieter, as the loudest of the last seconds needs it.
"""

from itertools import product
from math import log

import numpy
from fast_vad import VadStateful
from numpy.typing import NDArray

from dragoman.domain.endpointer import Frame

THRESHOLD = 0.7  # the probability of speech from which a frame is speech
RATES = (8000, 16000)
NEARLY = 16000
REPEATS = (1, 2, 4, 8)  # divisors of the length of a frame

FULL_SCALE = 32_768.0
USUAL = 0.2  # loudness of the loudest frame, of full scale
FIRST = 0.1  # what is expected of it before anything is heard
FADING = 0.999  # a frame: half of it is forgotten in 22 s
GAINS = 0.5, 10.0
# The detector takes what it hears first for the noise of the place: rightly in noise, wrongly if someone speaks at
# once. So for its first two seconds a second detector decides, which has heard a quiet second before.
QUIET, QUIET_FRAMES, FIRST_FRAMES = 0.003, 32, 63


class VoiceDetector:
    __slots__ = ("_at_first", "_first_frames", "_loudest", "_repeat", "_rest", "_size", "_step", "_vad")

    def __init__(self, sample_rate: int) -> None:
        rate, self._repeat, self._step = _resampling(sample_rate)
        self._vad = VadStateful.with_config(rate, THRESHOLD, 0, 0, 0)
        self._size = self._vad.frame_size * self._step // self._repeat * 2
        self._rest = b""
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
        samples = numpy.frombuffer(audio, "<i2", whole // 2)
        if self._repeat > 1:
            samples = samples.repeat(self._repeat)
        frames = (samples[:: self._step] * numpy.float32(1 / FULL_SCALE)).reshape(-1, self._vad.frame_size)
        return [Frame(self._is_speech(frame), self._size) for frame in frames]

    def _is_speech(self, frame: NDArray[numpy.float32]) -> bool:
        loudness = float(numpy.dot(frame, frame) / len(frame)) ** 0.5
        self._loudest = max(self._loudest * FADING, loudness)
        least, most = GAINS
        frame = frame * numpy.float32(max(least, min(most, USUAL / self._loudest)))
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
