"""pcm16, at 16 kHz by default, that a voice detector takes for speech, and silence."""

from array import array
from functools import cache
from math import pi, sin

RATE = 16_000


@cache
def vowel(duration_ms: int, rate: int = RATE) -> bytes:
    """A buzz of harmonics whose loudness changes."""
    samples = array("h")
    for at in range(rate * duration_ms // 1000):
        buzz = sum(sin(2 * pi * 140 * n * at / rate) / n for n in range(1, 20))
        samples.append(round(4000 * buzz * (1 + 0.6 * sin(2 * pi * 4 * at / rate))))
    return samples.tobytes()


def silent(duration_ms: int) -> bytes:
    return bytes(RATE // 500 * duration_ms)
