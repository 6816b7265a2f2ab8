"""The head of a WAV file, as far as speech needs it: one channel of 16-bit samples.

    RIFF size WAVE  [ fmt  size … ]  [ anything size … ]  [ data size samples… ]

Chunks are padded to even lengths. A writer that could not know the size (a pipe) leaves 0 or the largest number:
the samples then go on to the end of the file.
"""

from struct import Struct
from typing import BinaryIO, NamedTuple

_CHUNK = Struct("<4sI")
_FORMAT = Struct("<HHIIHH")
_PCM, _EXTENSIBLE = 1, 0xFFFE
_SUBFORMAT_AT = 24
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)


class BadWav(Exception):
    """A sentence about what is wrong with the file."""


class WavHead(NamedTuple):
    sample_rate: int
    data_at: int
    data_bytes: int


def read_head(file: BinaryIO, file_bytes: int) -> WavHead:
    """Of a file that begins with RIFF."""
    if file.read(12)[8:] != b"WAVE":
        raise BadWav("it is a RIFF file, but not a WAV")
    sample_rate: int | None = None
    while len(head := file.read(_CHUNK.size)) == _CHUNK.size:
        name, size = _CHUNK.unpack(head)
        if name == b"data":
            if sample_rate is None:
                raise BadWav("its sound comes before its format")
            data_at = file.tell()
            there = max(0, file_bytes - data_at)
            return WavHead(sample_rate, data_at, (there if size in _UNKNOWN_SIZES else min(size, there)) & ~1)
        if name == b"fmt ":
            sample_rate = _sample_rate(file.read(size + size % 2))
        else:
            file.seek(size + size % 2, 1)
    raise BadWav("it ends before its sound begins")


def _sample_rate(format: bytes) -> int:
    if len(format) < _FORMAT.size:
        raise BadWav("its format is cut short")
    kind, channels, sample_rate, _, _, bits = _FORMAT.unpack_from(format)
    if kind == _EXTENSIBLE and len(format) >= _SUBFORMAT_AT + 2:
        kind = int.from_bytes(format[_SUBFORMAT_AT : _SUBFORMAT_AT + 2], "little")
    if kind != _PCM or bits != 16:
        raise BadWav(f"its samples are not 16-bit integers (format {kind}, {bits} bits)")
    if channels != 1:
        raise BadWav(f"it has {channels} channels; speech is sent with one")
    if not 8000 <= sample_rate <= 192_000:
        raise BadWav(f"its sample rate of {sample_rate} Hz is not between 8,000 and 192,000")
    return int(sample_rate)
