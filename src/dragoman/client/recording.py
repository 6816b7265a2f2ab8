"""Audio in files and in memory, and how it is split into pieces that fit into a message.

Audio is sent as it is: nothing here decodes or resamples. Pieces have nothing to do with utterances, which the server
or the speaker cuts.
"""

from array import array
from collections.abc import Iterator
from io import BytesIO
from itertools import accumulate
from math import pi, sin
from pathlib import Path
from struct import Struct
from sys import byteorder
from typing import BinaryIO, NamedTuple

from dragoman.protocol.audio import OPUS, OPUS_PACKET_MS, PCM16, duration_ms
from dragoman.protocol.codes import BadAudio

CHUNK_MS = 256
LIVE_CHUNK_MS = 60  # at the pace of speech: its last words leave that much later
MAX_CHUNK_BYTES = 48_000  # 64 KB as base64
RAW_RATE = 16_000
RAW_SUFFIXES = (".pcm", ".raw", ".s16")
HOW_TO_CONVERT = "ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le speech.wav"

_KNOWN = {
    b"OggS": "an Ogg file (the protocol wants bare Opus packets)",
    b"fLaC": "a FLAC file",
    b"ID3": "an MP3 file",
    b"\xff\xfb": "an MP3 file",
    b"\x1aE\xdf\xa3": "a WebM or Matroska file",
}


class UnsupportedAudio(Exception):
    """The file cannot be sent. The message says why, and how to convert it."""


class Recording:
    """Audio that is complete: `audio` in memory, or `size` bytes at offset `at` of a file.

    `Recording.open` recognises files by their content: WAV (pcm16, mono, any rate) and runs of Opus packets. Files
    named .pcm, .raw and .s16 are pcm16 at 16 kHz.
    """

    def __init__(
        self,
        format: str,
        sample_rate: int,
        audio: bytes = b"",
        *,
        path: Path | None = None,
        at: int = 0,
        size: int | None = None,
    ) -> None:
        self.format = format
        self.sample_rate = sample_rate
        self._audio = audio
        self._path = path
        self._at = at
        self._size = len(audio) if size is None else size
        in_file = path is not None
        self.duration_ms = self._size // 2 * 1000 // sample_rate if in_file else duration_ms(format, audio, sample_rate)

    @classmethod
    def open(cls, path: str | Path) -> "Recording":
        """Raises OSError and UnsupportedAudio."""
        path = Path(path)
        with path.open("rb") as file:
            head = file.read(4)
            file_bytes = file.seek(0, 2)
            file.seek(0)
            if not head:
                raise UnsupportedAudio(f"{path} is empty.")
            if head == b"RIFF":
                return cls._of_wav(path, file, file_bytes)
            if path.suffix.lower() in RAW_SUFFIXES:
                return cls(PCM16, RAW_RATE, path=path, size=file_bytes & ~1)
            for magic, what in _KNOWN.items():
                if head.startswith(magic):
                    raise UnsupportedAudio(f"{path} is {what}. Convert it first: {HOW_TO_CONVERT}")
            return cls._of_opus(path, file.read())

    @classmethod
    def _of_wav(cls, path: Path, file: BinaryIO, file_bytes: int) -> "Recording":
        try:
            head = read_head(file, file_bytes)
        except BadWav as error:
            raise UnsupportedAudio(f"{path} cannot be sent: {error}. Convert it first: {HOW_TO_CONVERT}") from None
        return cls(PCM16, head.sample_rate, path=path, at=head.data_at, size=head.data_bytes)

    @classmethod
    def _of_opus(cls, path: Path, run: bytes) -> "Recording":
        try:
            return cls(OPUS, RAW_RATE, run)
        except BadAudio:
            why = "neither a WAV file nor a run of Opus packets"
            raise UnsupportedAudio(f"{path} is {why}. Convert it first: {HOW_TO_CONVERT}") from None

    def chunks(self, piece_ms: int = CHUNK_MS, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[bytes]:
        """All of it, in pieces of about `piece_ms`."""
        if self.format == OPUS:
            yield from split(OPUS, self._audio, self.sample_rate, piece_ms, max_bytes)
            return
        step, left = pcm_bytes(self.sample_rate, piece_ms, max_bytes), self._size
        with self._opened() as file:
            while left and (piece := file.read(min(step, left))):
                left -= len(piece)
                yield piece[: len(piece) & ~1]

    def _opened(self) -> BinaryIO:
        if self._path is None:
            return BytesIO(self._audio)
        file = self._path.open("rb")
        file.seek(self._at)
        return file


def tone_sentences() -> list[Recording]:
    """A few "sentences" of tones, for a first try without a recording."""
    return [Recording(PCM16, RAW_RATE, b"".join(map(_tone, words))) for words in _SENTENCES_HZ]


# ---------------------------------------------------------------- pieces


def split(
    format: str, audio: bytes, sample_rate: int, piece_ms: int | None = None, max_bytes: int = MAX_CHUNK_BYTES
) -> Iterator[bytes]:
    """Pieces of about `piece_ms`, or of `max_bytes`: whole samples, whole packets. The audio must be valid."""
    if format == OPUS:
        packets = None if piece_ms is None else max(1, round(piece_ms / OPUS_PACKET_MS))
        yield from _split_opus(audio, packets, max_bytes)
    else:
        step = pcm_bytes(sample_rate, piece_ms, max_bytes)
        for at in range(0, len(audio), step):
            yield audio[at : at + step]


def pcm_bytes(sample_rate: int, piece_ms: int | None = None, max_bytes: int = MAX_CHUNK_BYTES) -> int:
    """The size of a piece of pcm16: an even number."""
    samples = max_bytes // 2 if piece_ms is None else max(1, sample_rate * piece_ms // 1000)
    return 2 * min(samples, max_bytes // 2)


def _split_opus(run: bytes, packets: int | None, max_bytes: int) -> Iterator[bytes]:
    begin = at = count = 0
    while at < len(run):
        after = at + 2 + (run[at] | run[at + 1] << 8)
        if count and (count == packets or after - begin > max_bytes):
            yield run[begin:at]
            begin, count = at, 0
        at, count = after, count + 1
    if at > begin:
        yield run[begin:at]


# ---------------------------------------------------------------- WAV
#
#     RIFF size WAVE  [ fmt  size … ]  [ anything size … ]  [ data size samples… ]
#
# Chunks are padded to even lengths. A program that writes to a pipe cannot know the size of the data and writes 0 or
# the largest number; the samples then go on to the end of the file.

_CHUNK = Struct("<4sI")
_FORMAT = Struct("<HHIIHH")
_PCM, _EXTENSIBLE = 1, 0xFFFE
_SUBFORMAT_AT = 24
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)


class BadWav(Exception):
    """The message says what is wrong with the file."""


class WavHead(NamedTuple):
    sample_rate: int
    data_at: int
    data_bytes: int


def read_head(file: BinaryIO, file_bytes: int) -> WavHead:
    """The head of a file that begins with RIFF. Raises BadWav unless it has one channel of 16-bit samples."""
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


# ---------------------------------------------------------------- tones

_SENTENCES_HZ = ((220, 277, 330), (330, 294, 262, 220), (262, 330))
_TONE_MS = 350
_GAP_MS = 120
_LOUDNESS = 6000


def _tone(hz: int) -> bytes:
    """A tone that swells and fades, and the silence after it."""
    count = RAW_RATE * _TONE_MS // 1000
    phases = accumulate([2 * pi * hz / RAW_RATE] * count)
    samples = array("h", (round(_LOUDNESS * sin(pi * at / count) * sin(p)) for at, p in enumerate(phases)))
    if byteorder == "big":
        samples.byteswap()
    return samples.tobytes() + bytes(2 * (RAW_RATE * _GAP_MS // 1000))
