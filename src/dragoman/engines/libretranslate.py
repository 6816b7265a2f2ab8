"""Translation by a LibreTranslate server. It serves the pairs that the server lists."""

from typing import Any

from dragoman.engines.engine import EngineFailed, Missing, Translated, deadline_in
from dragoman.engines.http_service import HttpService
from dragoman.node import ModelNotAvailable

DEFAULT_URL = "http://127.0.0.1:5000"
LIST_S = 10.0
AUTO = "auto"


class LibreTranslate:
    name = "libretranslate"
    detects = True

    def __init__(self, url: str = DEFAULT_URL, key: str = "") -> None:
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self._key = key
        # LibreTranslate expects the key in the body, not in a header.
        self._service = HttpService(url, "libretranslate-nmt", what=f"LibreTranslate at {url}")

    @property
    def remark(self) -> str:
        return f"text is sent to {self._service.url}"

    async def open(self) -> None:
        await self._service.open()
        try:
            with deadline_in(LIST_S):
                self.pairs = _pairs(await self._service.json("GET", "/languages"))
        except (EngineFailed, ModelNotAvailable) as error:
            await self._service.close()
            raise Missing(
                f"No LibreTranslate answers at {self._service.url} ({error})",
                "pip install libretranslate && libretranslate, or --translate-url",
            ) from None

    async def close(self) -> None:
        await self._service.close()

    async def translate(self, text: str, source: str, target: str) -> Translated:
        """It detects a language that it does not list."""
        known = any(source == each for each, _ in self.pairs)
        body = {"q": text, "source": source if known else AUTO, "target": target, "format": "text"}
        if self._key:
            body["api_key"] = self._key
        answer = await self._service.json("POST", "/translate", lambda: {"json": body})
        translated = answer.get("translatedText") if isinstance(answer, dict) else None
        if not isinstance(translated, str):
            raise EngineFailed("LibreTranslate answered without a translation.")
        detected = answer.get("detectedLanguage")
        language = detected.get("language") if isinstance(detected, dict) else None
        return Translated(translated, language if isinstance(language, str) else None)


def _pairs(listed: Any) -> frozenset[tuple[str, str]]:
    """Old servers list no targets: they translate every language into every other."""
    if not isinstance(listed, list) or not all(
        isinstance(one, dict) and isinstance(one.get("code"), str) for one in listed
    ):
        raise EngineFailed("its list of languages cannot be read")
    codes = [one["code"] for one in listed]
    return frozenset((one["code"], target) for one in listed for target in one.get("targets", codes))
