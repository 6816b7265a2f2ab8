"""Translation by Apertium: offline, by rules; the pairs its installed packages have.

A translation takes ten programs in a row, and a quarter of a second if they are started for each sentence. So a row is
kept alive for each pair and told where a sentence ends by a NUL (`-z`); the `apertium` command cannot do this for
plain text, so we run its pair's mode and do the escaping ourselves. Where a mode cannot be kept alive, or breaks on a
sentence, that sentence gets programs of its own.
"""

import asyncio
import re
from pathlib import Path

from dragoman.engines.engine import EngineFailed
from dragoman.engines.languages import SHORT
from dragoman.engines.processes import end, found, output, started

PACKAGE = "apertium-eng-spa"
MODES = Path("/usr/share/apertium/modes")
SENTENCE_S = 5.0
_MODE = re.compile(r"([a-z]{3})-([a-z]{3})")
_SPECIAL = re.compile(r"([\\^$\[\]{}<>/@])")
_ESCAPED = re.compile(r"\\(.)")
# The end of a sentence and an empty blank, as the deformatter writes it: without, the last words are held back.
_END = ".[]"
# It opens /dev/stdin, which cannot be done with the socket that is ours: hence the cat.
_ONCE = 'cat | "$0" -u "$1"'
_KEPT = 'exec bash <(apertium-wblank-mode -z "$1") -n ""'


class Apertium:
    name = "apertium"
    remark = "Apertium translates by rules: stiffly, and words it does not know stay as they are"

    def __init__(self, modes: Path = MODES) -> None:
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self._folder = modes
        self._modes: dict[tuple[str, str], str] = {}
        self._rows: dict[str, Row] = {}
        self._command = "apertium"

    async def open(self) -> None:
        self._command = found("apertium", PACKAGE)
        listed = (await output(self._command, "-l")).decode()
        for mode in listed.split():
            match = _MODE.fullmatch(mode)
            if match and match[1] in SHORT and match[2] in SHORT:
                self._modes[SHORT[match[1]], SHORT[match[2]]] = mode
        found("bash", "bash")
        self.pairs = frozenset(self._modes)

    async def close(self) -> None:
        for row in self._rows.values():
            await row.close()

    async def translate(self, text: str, source: str, target: str) -> str:
        mode = self._modes.get((source, target))
        if mode is None:
            raise EngineFailed(f"Apertium has no translation from {source} into {target} here.")
        text = " ".join(text.replace("\0", " ").split())
        row = self._rows.setdefault(mode, Row(self._folder / f"{mode}.mode"))
        try:
            return await row.translate(text)
        except RowBroken:
            return (await output("sh", "-c", _ONCE, self._command, mode, given=text.encode())).decode().strip()


class RowBroken(Exception):
    """It has ended, or is stuck; a new one is started for the next sentence."""


class Row:
    """The programs of one pair, one sentence at a time."""

    def __init__(self, mode: Path) -> None:
        self._mode = mode
        self._turn = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None

    async def translate(self, text: str) -> str:
        """Raises RowBroken."""
        async with self._turn:
            try:
                async with asyncio.timeout(SENTENCE_S):
                    return await self._ask(text)
            except (OSError, RuntimeError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await asyncio.shield(self.close())
                raise RowBroken from None
            except asyncio.CancelledError:
                # Its answer would be taken for that of the next sentence.
                await asyncio.shield(self.close())
                raise

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await end(child)

    async def _ask(self, text: str) -> str:
        if self._child is None:
            self._child = await self._start()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write((_SPECIAL.sub(r"\\\1", text) + _END + "\0").encode())
        await self._child.stdin.drain()
        answer = (await self._child.stdout.readuntil(b"\0"))[:-1].decode(errors="replace")
        return _ESCAPED.sub(r"\1", answer.removesuffix(_END)).strip()

    async def _start(self) -> asyncio.subprocess.Process:
        if not self._mode.exists():
            raise FileNotFoundError(self._mode)
        return await started("bash", "-c", _KEPT, "apertium", str(self._mode))
