"""A few sentences to be played to who has no microphone: spoken by espeak-ng when first asked for, then kept.

Only these sentences are ever spoken, one at a time and within `PATIENCE_S`, so nobody can make the machine talk
for ever. Where espeak-ng is missing there is no sample, and the page shows no button for it.
"""

import asyncio
import shutil
from contextlib import suppress
from struct import pack
from typing import Final

from dragoman.domain.sample_sentences import SENTENCES, WORDS_A_MINUTE

PATIENCE_S: Final = 10.0
MAX_BYTES: Final = 4 << 20
HEADER: Final = 44
PAUSE: Final = '<break time="1100ms"/>'  # the page takes it for the end of an utterance


class Unspoken(Exception):
    """espeak-ng did not do it; `str()` says why."""


class Samples:
    def __init__(self, program: str | None = None) -> None:
        self._program = program or shutil.which("espeak-ng")
        self._kept: dict[str, bytes] = {}
        self._floor = asyncio.Lock()

    def __contains__(self, language: object) -> bool:
        return self._program is not None and language in SENTENCES

    async def spoken(self, language: str) -> bytes:
        """A WAV file."""
        async with self._floor:
            if language not in self._kept:
                self._kept[language] = await self._speak(*SENTENCES[language])
            return self._kept[language]

    async def _speak(self, voice: str, *sentences: str) -> bytes:
        assert self._program is not None
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, "-v", voice, "-s", str(WORDS_A_MINUTE), "-m", "--stdout", "--", PAUSE.join(sentences),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as why:
            raise Unspoken(f"the sample cannot be spoken: {why.strerror}") from None
        try:
            async with asyncio.timeout(PATIENCE_S):
                said, _ = await process.communicate()
        except TimeoutError:
            raise Unspoken("the sample took too long to speak") from None
        finally:
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
        if process.returncode or not HEADER < len(said) <= MAX_BYTES:
            raise Unspoken("espeak-ng could not speak the sample")
        return _of_its_length(said)


def _of_its_length(wav: bytes) -> bytes:
    """Written to a pipe, the header was made before anybody knew how much would follow."""
    riff, data = pack("<I", len(wav) - 8), pack("<I", len(wav) - HEADER)
    return wav[:4] + riff + wav[8 : HEADER - 4] + data + wav[HEADER:]
