"""A few "sentences" of tones, for a first try without a recording at hand."""

from array import array
from itertools import accumulate
from math import pi, sin
from sys import byteorder

from dragoman.client.recording import RAW_RATE, Recording
from dragoman.protocol.audio import PCM16

_SENTENCES_HZ = ((220, 277, 330), (330, 294, 262, 220), (262, 330))
_WORD_MS = 350
_GAP_MS = 120
_LOUDNESS = 6000


def sentences() -> list[Recording]:
    return [Recording(PCM16, RAW_RATE, b"".join(map(_word, words))) for words in _SENTENCES_HZ]


def _word(hz: int) -> bytes:
    """A tone that swells and fades, and the silence after it."""
    count = RAW_RATE * _WORD_MS // 1000
    phases = accumulate([2 * pi * hz / RAW_RATE] * count)
    samples = array("h", (round(_LOUDNESS * sin(pi * at / count) * sin(p)) for at, p in enumerate(phases)))
    if byteorder == "big":
        samples.byteswap()
    return samples.tobytes() + bytes(2 * (RAW_RATE * _GAP_MS // 1000))
