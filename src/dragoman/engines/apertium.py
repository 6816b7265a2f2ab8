"""Translation by Apertium: offline, by rules, for the pairs of the installed packages.

A translation runs through a chain of ten programs; starting them takes a quarter of a second. So one chain is kept
alive for each pair, and a NUL marks the end of a sentence (`-z`). The `apertium` command cannot do this for plain text,
so we run the mode of the pair and do the escaping ourselves. If a chain cannot be kept alive, or breaks on a sentence,
that sentence gets new programs.
"""

import asyncio
import re
from pathlib import Path

from dragoman.engines.engine import EngineFailed
from dragoman.engines.languages import code_of
from dragoman.engines.processes import end, found, output, started

PACKAGE = "apertium-eng-spa"
MODES = Path("/usr/share/apertium/modes")
SENTENCE_S = 5.0
_MODE = re.compile(r"([a-z]{2,3})-([a-z]{2,3})([_@]\w+)?")  # the last part is a variant, as in spa-eng_US
_SPECIAL = re.compile(r"([\\^$\[\]{}<>/@])")
_ESCAPED = re.compile(r"\\(.)")
# The end of a sentence and an empty blank, as the deformatter writes it: otherwise the last words are not printed.
_END = ".[]"
# apertium opens /dev/stdin, which is impossible if it is a socket, as ours is: hence the cat.
_ONCE = 'cat | "$0" -u "$1"'
_CHAIN = 'exec bash <(apertium-wblank-mode -z "$1") -n ""'


class Apertium:
    name = "apertium"
    detects = False
    remark = "Apertium translates by rules, and leaves words that it does not know"

    def __init__(self, modes: Path = MODES) -> None:
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self._folder = modes
        self._modes: dict[tuple[str, str], str] = {}
        self._chains: dict[str, Chain] = {}
        self._command = "apertium"

    async def open(self) -> None:
        self._command = found("apertium", PACKAGE)
        listed = (await output(self._command, "-l")).decode()
        for match in sorted(filter(None, map(_MODE.fullmatch, listed.split())), key=lambda match: match[3] or ""):
            source, target = code_of(match[1]), code_of(match[2])
            if source is not None and target is not None:
                self._modes.setdefault((source, target), match[0])  # a variant only if there is nothing else
        found("bash", "bash")
        self.pairs = frozenset(self._modes)

    async def close(self) -> None:
        for chain in self._chains.values():
            await chain.close()

    async def translate(self, text: str, source: str, target: str) -> str:
        mode = self._modes.get((source, target))
        if mode is None:
            raise EngineFailed(f"Apertium has no translation from {source} into {target} here.")
        text = " ".join(text.replace("\0", " ").split())
        chain = self._chains.setdefault(mode, Chain(self._folder / f"{mode}.mode"))
        try:
            return await chain.translate(text)
        except ChainBroken:
            return (await output("sh", "-c", _ONCE, self._command, mode, given=text.encode())).decode().strip()


class ChainBroken(Exception):
    """The chain has ended or hangs. The next sentence starts a new one."""


class Chain:
    """The programs of one pair. They translate one sentence at a time."""

    def __init__(self, mode: Path) -> None:
        self._mode = mode
        self._lock = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None

    async def translate(self, text: str) -> str:
        """Raises ChainBroken."""
        async with self._lock:
            try:
                async with asyncio.timeout(SENTENCE_S):
                    return await self._ask(text)
            except (OSError, RuntimeError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await asyncio.shield(self.close())
                raise ChainBroken from None
            except asyncio.CancelledError:
                # Otherwise its answer would be taken for that of the next sentence.
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
        return await started("bash", "-c", _CHAIN, "apertium", str(self._mode))
