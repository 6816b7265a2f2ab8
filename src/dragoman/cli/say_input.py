"""The audio that `dragoman say` sends: a file, raw audio from standard input, or a sample.

The sample is the sentences of the page's sample, spoken by espeak-ng if it is installed; otherwise it is tones.
"""

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.cli.output import USAGE, Failure
from dragoman.cli.terminal_io import read_stdin

if TYPE_CHECKING:
    from dragoman.client import Recording

STDIN = "-"
STDIN_RATE = 16_000
ESPEAK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Speech:
    """Recordings, each of which ends with a cut. Without recordings, the audio comes from standard input."""

    format: str
    sample_rate: int
    parts: "Sequence[Recording]" = ()

    @property
    def duration_ms(self) -> int | None:
        return sum(part.duration_ms for part in self.parts) if self.parts else None

    def pieces(self, piece_ms: int, max_bytes: int) -> "Iterator[AsyncIterator[bytes]]":
        """For each part, its pieces of at most `piece_ms` and `max_bytes`."""
        for part in self.parts:
            yield _as_async(part.chunks(piece_ms, max_bytes))
        if not self.parts:
            yield _stdin_pieces(min(2 * self.sample_rate * piece_ms // 1000, max_bytes))


async def _as_async(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _stdin_pieces(piece_bytes: int) -> AsyncIterator[bytes]:
    """Standard input in pieces of this size; the last one is shorter and holds whole samples."""
    buffer = b""
    async for data in read_stdin(piece_bytes):
        buffer += data
        while len(buffer) >= piece_bytes:
            yield buffer[:piece_bytes]
            buffer = buffer[piece_bytes:]
    if whole := buffer[: len(buffer) & ~1]:
        yield whole


def open_speech(file: str | None, language: str, tones: bool = False) -> Speech:
    """The speech of a file, of standard input for "-", or of the sample for None."""
    from dragoman.client import Recording, UnsupportedAudio
    from dragoman.client.recording import tone_sentences

    if file is None:
        parts = tone_sentences() if tones else sample(language)
        return Speech(parts[0].format, parts[0].sample_rate, parts)
    if file == STDIN:
        if sys.stdin.isatty():
            raise Failure(
                "Standard input is a terminal. Pipe raw pcm16 at 16 kHz into it, for example from arecord or ffmpeg.",
                USAGE,
            )
        return Speech("pcm16", STDIN_RATE)
    try:
        recording = Recording.open(file)
    except FileNotFoundError:
        raise Failure(f"There is no file {file}.", USAGE) from None
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}.", USAGE) from None
    except UnsupportedAudio as error:
        raise Failure(str(error), USAGE) from None
    return Speech(recording.format, recording.sample_rate, [recording])


def sample(language: str) -> "Sequence[Recording]":
    """The sample in this language, or tones."""
    from dragoman.client.recording import tone_sentences

    return spoken_sample(language) or tone_sentences()


def spoken_sample(language: str) -> "Sequence[Recording]":
    """Empty if espeak-ng is missing, fails, or has no sentences in the language."""
    from dragoman.domain.sample_sentences import SENTENCES

    program = shutil.which("espeak-ng")
    if program is None or language not in SENTENCES:
        return ()
    try:
        with TemporaryDirectory(prefix="dragoman-") as folder:
            path = Path(folder) / "sentence.wav"
            voice, *sentences = SENTENCES[language]
            return [_synthesise(program, voice, sentence, path) for sentence in sentences]
    except (OSError, subprocess.SubprocessError):
        return ()


def _synthesise(program: str, voice: str, sentence: str, path: Path) -> "Recording":
    from dragoman.client import Recording
    from dragoman.domain.sample_sentences import WORDS_A_MINUTE

    command = (program, "-v", voice, "-s", str(WORDS_A_MINUTE), "-b", "1", "-w", str(path), "--stdin")
    subprocess.run(command, input=sentence.encode(), check=True, capture_output=True, timeout=ESPEAK_TIMEOUT_S)
    recording = Recording.open(path)
    return Recording(recording.format, recording.sample_rate, b"".join(recording.chunks()))
