"""Synthesis by Piper: offline, natural voices, one model for each; a tenth of real time on one core.

A voice belongs to one language, which its name begins with: `en_US-joe-medium`.
"""

from pathlib import Path
from typing import Any

from dragoman.engines.engine import EngineFailed, Missing, need_module
from dragoman.engines.languages import code_of
from dragoman.engines.models import folders_like, found_folder
from dragoman.engines.sound import Sound
from dragoman.node.threads import Threads


class Piper:
    """`voice`: names of voices, separated by commas, or folders; empty: all that are there."""

    name = "piper"

    def __init__(self, voice: str, models: Path, *, device: str = "cpu") -> None:
        self.languages: frozenset[str] = frozenset()
        self._voice, self._models, self._device = voice, models, device
        # One: the phonemes come from a library with one state for the whole process.
        self._threads = Threads(1, "dragoman-piper")
        self._voices: dict[str, Any] = {}

    @property
    def remark(self) -> str:
        return f"Piper speaks {', '.join(sorted(self.languages))} on this machine"

    async def open(self) -> None:
        need_module("piper", "piper")
        need_module("av", "piper")
        for folder in self._folders():
            path = next(iter(sorted(folder.glob("*.onnx"))))
            language = code_of(path.name)
            if language is None:
                raise Missing(f"The language of the voice {path} is not known", "name it as Piper does: es_ES-….onnx")
            self._voices.setdefault(language, await self._threads.run(self._load, path))
        self.languages = frozenset(self._voices)

    async def close(self) -> None:
        self._threads.close()
        self._voices.clear()

    async def synthesise(self, text: str, language: str) -> Sound:
        sound = await self._threads.run(_spoken, self._voices[language], text)
        if not sound.pcm:
            raise EngineFailed(f"Piper returned no audio for a text in {language}.")
        return sound

    def _folders(self) -> list[Path]:
        if self._voice:
            named = self._voice.split(",")
            return [found_folder(self.name, name, self._models, needed(name)) for name in named]
        folders = [folder for folder in folders_like("piper-", self._models) if list(folder.glob("*.onnx"))]
        if not folders:
            raise Missing(f"There is no voice of Piper in {self._models}", "dragoman models get piper:en_US-joe-medium")
        return folders

    def _load(self, path: Path) -> Any:
        from piper import PiperVoice

        return PiperVoice.load(path, use_cuda=self._device == "cuda")


def needed(voice: str) -> tuple[str, str]:
    name = Path(voice).name
    return f"{name}.onnx", f"{name}.onnx.json"


def _spoken(voice: Any, text: str) -> Sound:
    return Sound(b"".join(chunk.audio_int16_bytes for chunk in voice.synthesize(text)), voice.config.sample_rate)
