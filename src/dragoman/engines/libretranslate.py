"""Translation by a LibreTranslate server, yours or another's; the pairs are those it lists."""

from typing import Any

from dragoman.engines.engine import EngineFailed, Missing
from dragoman.engines.http_service import HttpService
from dragoman.engines.patience import within
from dragoman.node import ModelNotAvailable

DEFAULT_URL = "http://127.0.0.1:5000"
LIST_S = 10.0


class LibreTranslate:
    name = "libretranslate"

    def __init__(self, url: str = DEFAULT_URL, key: str = "") -> None:
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self._key = key
        # It takes its key in the body, so there is none for a header.
        self._service = HttpService(url, "libretranslate-nmt", what=f"LibreTranslate at {url}")

    @property
    def remark(self) -> str:
        return f"what was understood goes to {self._service.url}"

    async def open(self) -> None:
        await self._service.open()
        try:
            with within(LIST_S):
                self.pairs = _pairs(await self._service.json("GET", "/languages"))
        except (EngineFailed, ModelNotAvailable) as error:
            await self._service.close()
            raise Missing(
                f"No LibreTranslate answers at {self._service.url} ({error})",
                "pip install libretranslate && libretranslate, or --translate-url",
            ) from None

    async def close(self) -> None:
        await self._service.close()

    async def translate(self, text: str, source: str, target: str) -> str:
        asked = {"q": text, "source": source, "target": target, "format": "text"}
        if self._key:
            asked["api_key"] = self._key
        told = await self._service.json("POST", "/translate", lambda: {"json": asked})
        said = told.get("translatedText") if isinstance(told, dict) else None
        if not isinstance(said, str):
            raise EngineFailed("LibreTranslate answered without a translation.")
        return said


def _pairs(told: Any) -> frozenset[tuple[str, str]]:
    """Old servers list no targets: there every language goes into every other."""
    if not isinstance(told, list) or not all(
        isinstance(one, dict) and isinstance(one.get("code"), str) for one in told
    ):
        raise EngineFailed("its list of languages cannot be read")
    codes = [one["code"] for one in told]
    return frozenset((one["code"], target) for one in told for target in one.get("targets", codes))
