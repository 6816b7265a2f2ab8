"""Audio that is there as a whole: a file, or bytes in memory.

Files are told apart by what they hold: WAV (pcm16, mono, any rate), a run of Opus packets; `.pcm`, `.raw` and `.s16`
are pcm16 at 16 kHz. Sound is sent as it is: nothing here decodes or resamples.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from dragoman.client.chunks import CHUNK_MS, MAX_CHUNK_BYTES, pcm_bytes, split
from dragoman.client.wav import BadWav, read_head
from dragoman.protocol.audio import OPUS, PCM16, duration_ms
from dragoman.protocol.errors import BadAudio

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
    """The file cannot be sent; says why, and what would help."""


class Recording:
    """`audio` in memory, or the `size` bytes at `at` of a file."""

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
            return cls._of_run(path, file.read())

    @classmethod
    def _of_wav(cls, path: Path, file: BinaryIO, file_bytes: int) -> "Recording":
        try:
            head = read_head(file, file_bytes)
        except BadWav as error:
            raise UnsupportedAudio(f"{path} cannot be sent: {error}. Convert it first: {HOW_TO_CONVERT}") from None
        return cls(PCM16, head.sample_rate, path=path, at=head.data_at, size=head.data_bytes)

    @classmethod
    def _of_run(cls, path: Path, run: bytes) -> "Recording":
        try:
            return cls(OPUS, RAW_RATE, run)
        except BadAudio:
            why = "neither a WAV file nor a run of Opus packets"
            raise UnsupportedAudio(f"{path} is {why}. Convert it first: {HOW_TO_CONVERT}") from None

    def chunks(self, piece_ms: int = CHUNK_MS, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[bytes]:
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
