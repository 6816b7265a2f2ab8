"""The program of the page runs: with stand-ins for its three models, and a node that does not dial."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dragoman.engines import Sound
from dragoman.node import Result
from dragoman.protocol.audio import encode_base64
from engines_here import needs_wheels
from model_server import beep
from unit.node.fake_scheduler import job

PAGE = Path(__file__).resolve().parents[3] / "docs/write-a-node.md"
PROGRAM = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)[0]


class Whisper:
    def __init__(self, model: str) -> None: ...

    def transcribe(self, file: Any, language: str) -> Any:
        assert Sound.of_file(file.read()) == beep(300, 16_000)
        return [SimpleNamespace(text="we need"), SimpleNamespace(text="a doctor")], None


class Piper:
    config = SimpleNamespace(sample_rate=22_050)

    @classmethod
    def load(cls, path: str) -> "Piper":
        return cls()

    def synthesize(self, text: str) -> Any:
        return [SimpleNamespace(audio_int16_bytes=beep(300, 22_050).pcm)] * 2


class Dialled:
    """What the program would have run."""

    handler: Any = None
    languages: dict[str, list[str]]

    def __init__(self, url: str, handler: Any, **languages: list[str]) -> None:
        Dialled.handler, Dialled.languages = handler, languages

    def serve(self) -> None: ...


def module(name: str, **members: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


def test_it_has_fifteen_lines() -> None:
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 15


@needs_wheels
async def test_it_translates(monkeypatch: pytest.MonkeyPatch) -> None:
    def nllb(task: str, model: str, src_lang: str, tgt_lang: str) -> Any:
        return lambda text: [{"translation_text": f"{text} ({src_lang} → {tgt_lang})"}]

    monkeypatch.setitem(sys.modules, "faster_whisper", module("faster_whisper", WhisperModel=Whisper))
    monkeypatch.setitem(sys.modules, "piper", module("piper", PiperVoice=Piper))
    monkeypatch.setitem(sys.modules, "transformers", module("transformers", pipeline=nllb))
    monkeypatch.setattr("dragoman.node.Node", Dialled)
    exec(compile(PROGRAM, str(PAGE), "exec"), {"__name__": "__main__"})
    spoken = encode_base64(beep(300, 16_000).pcm)
    result = await Dialled.handler(job(1, audio=spoken, audio_format="pcm16"))
    assert isinstance(result, Result)
    assert (result.text_asr, result.text_translated) == ("we need a doctor", "we need a doctor (eng_Latn → spa_Latn)")
    assert Sound.of_wire(result.tts_audio, "opus", 16_000).loudness > 1000
    assert Dialled.languages == {"asr": ["en"], "semantic": ["es"], "tts": ["es"]}
