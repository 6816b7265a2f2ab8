"""Something to say without a recording at hand: the sentences of the page's sample, spoken by espeak-ng where it is
installed, else tones."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.client import Recording

PATIENCE_S = 10.0


def sentences(language: str) -> "Sequence[Recording]":
    """Of that language if it can be, else tones."""
    from dragoman.client.recording import tone_sentences

    return spoken(language) or tone_sentences()


def spoken(language: str) -> "Sequence[Recording]":
    """Empty where espeak-ng is missing, fails or does not know the language."""
    from dragoman.domain.sample_sentences import SENTENCES

    program = shutil.which("espeak-ng")
    if program is None or language not in SENTENCES:
        return ()
    try:
        with TemporaryDirectory(prefix="dragoman-") as folder:
            path = Path(folder) / "sentence.wav"
            voice, *said = SENTENCES[language]
            return [_spoken(program, voice, sentence, path) for sentence in said]
    except (OSError, subprocess.SubprocessError):
        return ()


def _spoken(program: str, voice: str, sentence: str, path: Path) -> "Recording":
    from dragoman.client import Recording
    from dragoman.domain.sample_sentences import WORDS_A_MINUTE

    command = (program, "-v", voice, "-s", str(WORDS_A_MINUTE), "-b", "1", "-w", str(path), "--stdin")
    subprocess.run(command, input=sentence.encode(), check=True, capture_output=True, timeout=PATIENCE_S)
    recording = Recording.open(path)
    return Recording(recording.format, recording.sample_rate, b"".join(recording.chunks()))
