"""Something to say without a recording at hand: sentences spoken by espeak-ng where it is installed, else tones.

The sentences, voice and pace are ones that a recogniser made for people understands of a machine's voice.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.client import Recording

PATIENCE_S = 10.0
WORDS_A_MINUTE = 120
VOICES = {"en": "en-us+f2", "es": "es+f2", "zh": "cmn+f2"}
SENTENCES = {
    "en": (
        "We need a doctor.",
        "The children are playing in the garden.",
        "My friend lives in a small village near the sea.",
    ),
    "es": (
        "Necesitamos un médico.",
        "Los niños juegan en el jardín.",
        "Mi amigo vive en un pueblo cerca del mar.",
    ),
    "zh": ("我们需要医生。", "孩子们在花园里玩。", "我的朋友住在海边的小村子里。"),
}


def sentences(language: str) -> "Sequence[Recording]":
    """Of that language if it can be, else tones."""
    from dragoman.client import tone

    return spoken(language) or tone.sentences()


def spoken(language: str) -> "Sequence[Recording]":
    """Empty where nobody can speak them."""
    program = shutil.which("espeak-ng")
    if program is None or language not in SENTENCES:
        return ()
    try:
        with TemporaryDirectory(prefix="dragoman-") as folder:
            path = Path(folder) / "sentence.wav"
            return [_spoken(program, VOICES[language], sentence, path) for sentence in SENTENCES[language]]
    except (OSError, subprocess.SubprocessError):
        return ()


def _spoken(program: str, voice: str, sentence: str, path: Path) -> "Recording":
    from dragoman.client import Recording

    command = (program, "-v", voice, "-s", str(WORDS_A_MINUTE), "-b", "1", "-w", str(path), "--stdin")
    subprocess.run(command, input=sentence.encode(), check=True, capture_output=True, timeout=PATIENCE_S)
    recording = Recording.open(path)
    return Recording(recording.format, recording.sample_rate, b"".join(recording.chunks()))
