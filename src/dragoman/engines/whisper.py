"""Recognition by Whisper, with faster-whisper: offline, a hundred languages, finds out which is spoken.

One model serves all slots; CTranslate2 computes in threads of its own and does not hold the interpreter's lock. A job
that waits for it does not block the node, and is given up between two segments if its time is over.

A preview decodes the open utterance again and again, and shows the words that two decodings in a row agree on: words
that are shown do not change any more.
"""

import os
import time
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.engines.engine import (
    EngineTimeout,
    Partial,
    PreviewAudio,
    Recognised,
    hints,
    left_s,
    need_module,
)
from dragoman.engines.languages import code_of
from dragoman.engines.models import found_folder
from dragoman.engines.sound import Sound
from dragoman.node.threads import Threads

if TYPE_CHECKING:
    from numpy import ndarray

RATE = 16_000
DEFAULT_MODEL = "base"
FILES = ("model.bin", "config.json", "tokenizer.json")
AUTO = "auto"
BEAMS = 5
PREVIEW_MS = 700
MAX_PREVIEW_MS = 28_000  # Whisper hears 30 s at a time


class Whisper:
    """`model`: as faster-whisper names it, such as base; or a folder. `slots`: jobs at a time."""

    name = "whisper"

    def __init__(
        self,
        model: str,
        models: Path,
        *,
        slots: int = 1,
        device: str = "cpu",
        preview_ms: int = PREVIEW_MS,
        skip_silence: bool = True,
    ) -> None:
        self.languages: frozenset[str] = frozenset()
        self._name, self._models = model or DEFAULT_MODEL, models
        self._slots, self._device, self._preview_ms = slots, device, preview_ms
        self._skip_silence = skip_silence
        self._threads = Threads(slots, "dragoman-whisper")
        self._model: Any = None
        self._codes: dict[str, str] = {}

    @property
    def remark(self) -> str:
        return f"Whisper {self._name} recognises on this machine"

    async def open(self) -> None:
        need_module("faster_whisper", "whisper")
        need_module("av", "whisper")
        folder = found_folder(self.name, self._name, self._models, FILES)
        self._model = await self._threads.run(self._load, folder)
        spoken = self._model.supported_languages
        self._codes = {code: own for own in spoken if (code := code_of(own)) is not None}
        self.languages = frozenset(self._codes)

    async def close(self) -> None:
        self._threads.close()
        if self._model is not None:
            self._model.model.unload_model()

    def _load(self, folder: Path) -> Any:
        from faster_whisper import WhisperModel

        threads = max(1, (os.cpu_count() or 1) // self._slots)
        kind = "int8" if self._device == "cpu" else "default"
        return WhisperModel(
            str(folder),
            device=self._device,
            compute_type=kind,
            cpu_threads=threads,
            num_workers=self._slots,
            local_files_only=True,
        )

    # ------------------------------------------------------------ jobs

    async def recognise(self, sound: Sound, language: str | None, partial: Partial) -> Recognised:
        given = hints()
        ends_at = time.monotonic() + left_s()
        return await self._threads.run(
            self._recognise, sound, language, given.languages, given.vocabulary, partial, ends_at
        )

    def _recognise(
        self,
        sound: Sound,
        language: str | None,
        among: tuple[str, ...],
        vocabulary: tuple[str, ...],
        partial: Partial,
        ends_at: float,
    ) -> Recognised:
        samples, probability = samples_of(sound), None
        if not len(samples):
            return Recognised("")
        if language is None:
            language, probability = self._detected(samples, among)
        segments, _ = self._model.transcribe(
            samples,
            language=self._codes.get(language, language),
            beam_size=BEAMS,
            temperature=0.0,
            condition_on_previous_text=False,
            vad_filter=self._skip_silence,
            hotwords=", ".join(vocabulary) or None,
        )
        text = ""
        for segment in segments:
            text = f"{text} {segment.text.strip()}".strip()
            partial(text)
            if time.monotonic() > ends_at:
                raise EngineTimeout("The recognition was not done in time.")
        return Recognised(text, language if probability is not None else None, probability)

    def _detected(self, samples: "ndarray[Any, Any]", among: tuple[str, ...]) -> tuple[str, float]:
        """The language that is spoken; one of `among`, unless that is empty."""
        _, _, ranked = self._model.detect_language(samples)
        named = [(code_of(own) or own, probability) for own, probability in ranked]
        chosen = [pair for pair in named if pair[0] in among] or named
        return max(chosen, key=lambda pair: pair[1])

    # ------------------------------------------------------------ previews

    async def preview(self, stream: PreviewAudio) -> None:
        """Show what is being said, until the utterance ends or is too long for one decoding."""
        heard, shown, decoded_ms = Sound(b"", RATE), Agreed(), 0
        language = None if stream.src_lang == AUTO else stream.src_lang
        among = tuple(filter(None, (*stream.auto_langs, stream.lang_a, stream.lang_b)))
        async for data in stream:
            piece = await self._threads.run(Sound.of_wire, data, stream.audio_format, stream.sample_rate)
            heard = Sound(heard.pcm + (await self._threads.run(piece.at, RATE)).pcm, RATE)
            if heard.duration_ms - decoded_ms < self._preview_ms or heard.duration_ms > MAX_PREVIEW_MS:
                continue
            decoded_ms = heard.duration_ms
            language = language or (await self._threads.run(self._detected, samples_of(heard), among))[0]
            words = await self._threads.run(self._decoded, heard, language, tuple(stream.vocabulary))
            if shown.add(words):
                stream.partial(shown.text)

    def _decoded(self, sound: Sound, language: str, vocabulary: tuple[str, ...]) -> list[str]:
        segments, _ = self._model.transcribe(
            samples_of(sound),
            language=self._codes.get(language, language),
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            vad_filter=self._skip_silence,
            hotwords=", ".join(vocabulary) or None,
        )
        return [word for segment in segments for word in words_of(segment.text)]


class Agreed:
    """The words of an open utterance that two decodings in a row agree on. They are only added to, never changed."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._last: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._words).strip()

    def add(self, words: list[str]) -> bool:
        """Whether this decoding adds words. Punctuation may change while the sentence goes on."""
        count = len(list(takewhile(lambda pair: _same(*pair), zip(self._last, words, strict=False))))
        self._last = words
        begins_so = all(map(_same, self._words, words))
        if not begins_so or count <= len(self._words):
            return False
        self._words += words[len(self._words) : count]
        return True


def words_of(text: str) -> list[str]:
    """With the space before each. A language without spaces is taken letter by letter."""
    if " " not in text.strip() and not text.isascii():
        return list(text.strip())
    return [f" {word}" for word in text.split()]


def _same(one: str, other: str) -> bool:
    return _bare(one) == _bare(other)


_bare: Callable[[str], str] = lambda word: "".join(filter(str.isalnum, word)).casefold()  # noqa: E731


def samples_of(sound: Sound) -> "ndarray[Any, Any]":
    """As Whisper takes them: 16 kHz, floats from -1 to 1."""
    import numpy

    return numpy.frombuffer(sound.at(RATE).pcm, numpy.dtype("<i2")).astype(numpy.float32) / 32_768
