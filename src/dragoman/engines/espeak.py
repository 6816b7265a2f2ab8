"""Synthesis by espeak-ng: offline, a hundred languages, a robotic voice. A sentence takes some milliseconds."""

import asyncio
import re

from dragoman.engines.engine import EngineFailed
from dragoman.engines.processes import found, output
from dragoman.engines.sound import Sound
from dragoman.protocol.codes import BadAudio

PACKAGE = "espeak-ng"
DEFAULT_SPEED = 150  # words a minute
#  5  es-419          --/M      Spanish_(Latin_America) roa/es-419           (es-mx 6)(es 6)
_VOICE = re.compile(r"^\s*\d+\s+(\S+)\s+\S+\s+\S+\s+(\S+)(.*)$")
_ALSO = re.compile(r"\(([\w-]+) \d+\)")


class Espeak:
    """`voice`: the name of a voice; empty: the default voice of the language."""

    name = "espeak"
    remark = "espeak-ng has a robotic voice"

    def __init__(self, voice: str = "", speed: int = DEFAULT_SPEED) -> None:
        self.languages: frozenset[str] = frozenset()
        self._voice, self._speed = voice, speed
        self._command = "espeak-ng"

    async def open(self) -> None:
        self._command = found("espeak-ng", PACKAGE)
        self.languages = languages_of((await output(self._command, "--voices")).decode(errors="replace"))

    async def close(self) -> None: ...

    async def synthesise(self, text: str, language: str) -> Sound:
        options = ("-v", self._voice or language, "-s", str(self._speed), "-b", "1", "--stdin", "--stdout")
        wav = await output(self._command, *options, given=text.encode())
        try:
            return await asyncio.to_thread(Sound.of_file, wav)
        except BadAudio:
            raise EngineFailed(f"espeak-ng returned no audio for a text in {language}.") from None


def languages_of(voices: str) -> frozenset[str]:
    """From the output of `espeak-ng --voices`, without MBROLA voices, which need files that are not installed."""
    codes: set[str] = set()
    for line in voices.splitlines()[1:]:
        match = _VOICE.match(line)
        if match and not match[2].startswith("mb/"):
            listed = [match[1], *_ALSO.findall(match[3])]
            codes |= {code.split("-")[0] for code in listed}
    return frozenset(codes)
