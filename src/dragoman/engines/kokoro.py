"""Synthesis by Kokoro, with kokoro-onnx: offline, one model with natural voices in several languages.

It costs more than other voices: most of a second of one core for a second of speech.
"""

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.engines.engine import EngineFailed, Missing, need_module
from dragoman.engines.models import found_folder
from dragoman.engines.sound import Sound
from dragoman.node.threads import Threads

if TYPE_CHECKING:
    from numpy import ndarray

DEFAULT_MODEL = "int8"
MODEL = "onnx/model_quantized.onnx"
# The first letter of a voice's name is its language; and as espeak-ng, which says how words sound, calls that.
_LANGUAGES = {
    "a": ("en", "en-us"),
    "b": ("en", "en-gb"),
    "e": ("es", "es"),
    "f": ("fr", "fr-fr"),
    "h": ("hi", "hi"),
    "i": ("it", "it"),
    "p": ("pt", "pt-br"),
}
_ROW = 256  # numbers of a style


class Kokoro:
    """`voice`: the voice of its language, such as ef_dora; other languages have the first of theirs."""

    name = "kokoro"

    def __init__(self, model: str, voice: str, models: Path, *, device: str = "cpu") -> None:
        self.languages: frozenset[str] = frozenset()
        self._name, self._voice, self._models, self._device = model or DEFAULT_MODEL, voice, models, device
        # One: the phonemes come from a library with one state for the whole process.
        self._threads = Threads(1, "dragoman-kokoro")
        self._model: Any = None
        self._voices: dict[str, tuple[str, ndarray[Any, Any]]] = {}

    @property
    def remark(self) -> str:
        return f"Kokoro speaks {', '.join(sorted(self.languages))} on this machine"

    async def open(self) -> None:
        need_module("kokoro_onnx", "kokoro")
        need_module("av", "kokoro")
        folder = found_folder(self.name, self._name, self._models, (MODEL,))
        paths = [path for path in sorted((folder / "voices").glob("*.bin")) if path.name[0] in _LANGUAGES]
        if self._voice and self._voice not in [path.stem for path in paths]:
            there = ", ".join(path.stem for path in paths)
            raise Missing(f"Kokoro has no voice {self._voice} in {folder / 'voices'}", f"choose one of: {there}")
        # The chosen one first.
        for path in sorted(paths, key=lambda path: path.stem != self._voice):
            language, spoken_as = _LANGUAGES[path.name[0]]
            self._voices.setdefault(language, (spoken_as, _style(path)))
        if not self._voices:
            raise Missing(f"There is no voice in {folder / 'voices'}", f"dragoman models get kokoro:{self._name}")
        self._model = await self._threads.run(self._load, folder / MODEL)
        self.languages = frozenset(self._voices)

    async def close(self) -> None:
        self._threads.close()
        self._model = None

    async def synthesise(self, text: str, language: str) -> Sound:
        spoken_as, style = self._voices[language]
        try:
            return await self._threads.run(self._spoken, text, spoken_as, style)
        except ValueError as error:  # nothing in the text can be spoken
            raise EngineFailed(f"Kokoro returned no audio for a text in {language}: {error}.") from None

    def _load(self, path: Path) -> Any:
        import numpy
        import onnxruntime
        from kokoro_onnx import Kokoro as Library

        # It warns when the words of a text and those of its sounds differ in number: that changes nothing.
        logging.getLogger("phonemizer").setLevel(logging.ERROR)
        cuda = ["CUDAExecutionProvider"] if self._device == "cuda" else []
        session = onnxruntime.InferenceSession(str(path), providers=[*cuda, "CPUExecutionProvider"])
        with tempfile.TemporaryDirectory() as folder:
            # The library wants a file of voices, though each call of ours brings its own.
            voices = Path(folder) / "voices.npz"
            numpy.savez(voices, none=numpy.zeros((1, 1, _ROW), numpy.float32))
            return Library.from_session(session, str(voices))

    def _spoken(self, text: str, spoken_as: str, style: "ndarray[Any, Any]") -> Sound:
        samples, rate = self._model.create(text, style, lang=spoken_as)
        return Sound((samples.clip(-1, 1) * 32_767).astype("<i2").tobytes(), rate)


def _style(path: Path) -> "ndarray[Any, Any]":
    import numpy

    return numpy.fromfile(path, numpy.float32).reshape(-1, 1, _ROW)
