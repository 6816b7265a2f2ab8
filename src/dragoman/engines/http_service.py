"""A model behind HTTP: one request, asked again as long as that may help and the job has time.

| answer | what becomes of the job |
|---|---|
| 429, 503 with Retry-After | asked again after that time, if the job has it; else ModelNotAvailable |
| 429, 5xx, no connection | asked again, a few times, further and further apart; then ModelNotAvailable |
| 401, 403, 404 | ModelNotAvailable: here it will not work, on another node it may |
| any other 4xx, an answer that is none | EngineFailed: it is this job that does not go |
| nothing within the job's time | EngineTimeout: another node may be faster |

The credential goes into a header, never into a sentence or a log; redirects are not followed, so it goes to no other
host.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dragoman.engines.engine import EngineFailed, EngineTimeout, Missing
from dragoman.engines.patience import left_s
from dragoman.node import ModelNotAvailable

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("dragoman.engines")

TRIES = 4
FIRST_PAUSE_S = 0.25
MAX_ANSWER = 32 << 20
LONGEST_REASON = 200
_HOPELESS = (401, 403, 404)
_SLOW_DOWN = 429

# Made anew for each try: a form can be sent only once.
Body = Callable[[], Mapping[str, Any]]


class HttpService:
    """`service_id` is the name under which the node has registered it, so that the server knows what is gone."""

    def __init__(self, url: str, service_id: str, key: str = "", what: str = "") -> None:
        self.url = url.rstrip("/")
        self.service_id = service_id
        self.what = what or service_id
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Missing(f"{self.url!r} is no address of {self.what}", "give one like http://127.0.0.1:8000/v1")
        if parts.password or parts.username:
            raise Missing(f"The address of {self.what} holds a credential", "put it into the environment instead")

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    async def json(self, method: str, path: str, body: Body = dict) -> Any:
        async with self.answer(method, path, body) as answer:
            return self.parsed(await _whole(answer))

    async def data(self, method: str, path: str, body: Body = dict) -> bytes:
        async with self.answer(method, path, body) as answer:
            return await _whole(answer)

    def parsed(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError:
            raise EngineFailed(f"{self.what} answered with what is no JSON.") from None

    @asynccontextmanager
    async def answer(self, method: str, path: str, body: Body) -> AsyncIterator["aiohttp.ClientResponse"]:
        """A good one, its body still to be read; that too must be done in the job's time."""
        import aiohttp

        began = time.monotonic()
        try:
            async with asyncio.timeout(left_s()):
                response = await self._asked(method, path, body)
                async with response:
                    yield response
        except TimeoutError:
            waited = f"{time.monotonic() - began:.1f} s"
            raise EngineTimeout(f"{self.what} did not answer in time ({waited}).") from None
        except aiohttp.ClientError as error:
            raise EngineFailed(f"{self.what} broke off its answer ({type(error).__name__}).") from None

    async def _asked(self, method: str, path: str, body: Body) -> "aiohttp.ClientResponse":
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None))
        for tried in range(1, TRIES + 1):
            told_s: float | None = None
            try:
                response = await self._session.request(
                    method, self.url + path, headers=self.headers, allow_redirects=False, **body()
                )
                if response.status == 200:
                    return response
                async with response:
                    told_s = retry_after_s(response.headers.get("Retry-After"), time.time())
                    why = await self._refused(response)
            except aiohttp.ClientConnectionError as error:
                why = f"no connection ({type(error).__name__})"
            await self._pause(tried, told_s, why)
        raise AssertionError("the last pause raises")

    async def _refused(self, response: "aiohttp.ClientResponse") -> str:
        """Why, if asking again may help; raises if not."""
        status = response.status
        if status in _HOPELESS:
            # Not what the body says: some servers repeat the credential in it.
            log.error("%s answers with HTTP %d: is its address, model or credential right?", self.what, status)
            raise ModelNotAvailable(self.service_id, reason=f"HTTP {status}")
        if status != _SLOW_DOWN and status < 500:
            why = self._clean((await response.content.read(4096)).decode(errors="replace"))
            raise EngineFailed(f"{self.what} refused the request with HTTP {status}: {why}")
        return f"HTTP {status}"

    async def _pause(self, tried: int, told_s: float | None, why: str) -> None:
        backoff_s = FIRST_PAUSE_S * 2.0 ** (tried - 1) * random.uniform(0.5, 1.0)
        pause_s = backoff_s if told_s is None else told_s
        if tried == TRIES or pause_s >= left_s():
            later = "" if told_s is None else f", asks to wait {told_s:g} s"
            raise ModelNotAvailable(self.service_id, reason=f"{why}{later}, after {tried} tries")
        log.info("%s: %s; once more in %.1f s", self.what, why, pause_s)
        await asyncio.sleep(pause_s)

    def _clean(self, text: str) -> str:
        text = " ".join(text.split())
        if self._key:
            text = text.replace(self._key, "…")
        return text[:LONGEST_REASON] or "no reason given"


async def _whole(answer: "aiohttp.ClientResponse") -> bytes:
    """Raises EngineFailed for one without end."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > MAX_ANSWER:
            raise EngineFailed(f"The answer has more than {MAX_ANSWER >> 20} MiB.")
    return bytes(data)


def retry_after_s(told: str | None, now: float) -> float | None:
    """Seconds, or a date; None where it says nothing one can read."""
    if not told:
        return None
    try:
        return max(0.0, float(told))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - now)
    except ValueError:
        return None
