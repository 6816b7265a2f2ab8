"""A few sentences to be played to who has no microphone: spoken by espeak-ng when first asked for, then kept.

Only the sentences below are ever spoken, one at a time and within `PATIENCE_S`, so nobody can make the machine talk
for ever. Where espeak-ng is missing there is no sample, and the page shows no button for it.
"""

import asyncio
import shutil
from contextlib import suppress
from struct import pack
from typing import Final

PATIENCE_S: Final = 10.0
MAX_BYTES: Final = 4 << 20
HEADER: Final = 44
WORDS_A_MINUTE: Final = 120  # at which a recogniser made for people understands a machine's voice
PAUSE: Final = '<break time="1100ms"/>'  # the page takes it for the end of an utterance
# The voice, and what it says. The English sentences are ones that the bundled recogniser gets right of this voice at
# this pace, wherever its silence begins and ends, and that the bundled translator knows all words of.
SENTENCES: Final = {
    "en": ("en-us+f2", "We have a big problem.", "We need some money.", "We will go to the market tomorrow."),
    "es": ("es+f2", "Necesitamos un médico.", "Los niños juegan en el jardín.", "Mi amigo vive cerca del mar."),
    "fr": ("fr+f2", "Nous avons besoin d'un médecin.", "Les enfants jouent dans le jardin."),
    "de": ("de+f2", "Wir brauchen einen Arzt.", "Die Kinder spielen im Garten."),
    "it": ("it+f2", "Abbiamo bisogno di un medico.", "I bambini giocano in giardino."),
    "pt": ("pt+f2", "Precisamos de um médico.", "As crianças brincam no jardim."),
    "zh": ("cmn+f2", "我们需要医生。", "孩子们在花园里玩。", "我的朋友住在海边。"),
}


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
