"""A model behind HTTP. A request is retried while that may help and the job has time.

| answer | consequence |
|---|---|
| 429 or 503 with Retry-After | retried after that time if the job has it, otherwise ModelNotAvailable |
| 429, 5xx, no connection | retried a few times with growing delays, then ModelNotAvailable |
| 401, 403, 404 | ModelNotAvailable: the node is misconfigured, another one may not be |
| another 4xx, an invalid answer | EngineFailed: this job cannot be done |
| no answer before the deadline | EngineTimeout: another node may be faster |

The credential is sent in a header, and never appears in an error or a log. Redirects are not followed, so it reaches no
other host.
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

from dragoman.engines.engine import EngineFailed, EngineTimeout, Missing, left_s
from dragoman.node import ModelNotAvailable

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("dragoman.engines")

TRIES = 4
FIRST_PAUSE_S = 0.25
MAX_ANSWER = 32 << 20
MAX_REASON = 200
_MISCONFIGURED = (401, 403, 404)
_TOO_MANY_REQUESTS = 429

# Called for each attempt: a form can be sent only once.
Body = Callable[[], Mapping[str, Any]]


class HttpService:
    """`service_id`: the name of the service in the node's registration, for ModelNotAvailable. `what`: for messages."""

    def __init__(self, url: str, service_id: str, key: str = "", what: str = "") -> None:
        self.url = url.rstrip("/")
        self.service_id = service_id
        self.what = what or service_id
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Missing(
                f"{self.url!r} is not a valid address of {self.what}", "use one like http://127.0.0.1:8000/v1"
            )
        if parts.password or parts.username:
            raise Missing(f"The address of {self.what} contains a credential", "put it into the environment instead")

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
            raise EngineFailed(f"{self.what} answered, but not with JSON.") from None

    @asynccontextmanager
    async def answer(self, method: str, path: str, body: Body) -> AsyncIterator["aiohttp.ClientResponse"]:
        """A successful answer. Reading its body, in the block, must end before the deadline of the job too."""
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
            raise EngineFailed(f"{self.what} interrupted its answer ({type(error).__name__}).") from None

    async def _asked(self, method: str, path: str, body: Body) -> "aiohttp.ClientResponse":
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None))
        for tried in range(1, TRIES + 1):
            retry_after: float | None = None
            try:
                response = await self._session.request(
                    method, self.url + path, headers=self.headers, allow_redirects=False, **body()
                )
                if response.status == 200:
                    return response
                async with response:
                    retry_after = retry_after_s(response.headers.get("Retry-After"), time.time())
                    why = await self._refused(response)
            except aiohttp.ClientConnectionError as error:
                why = f"no connection ({type(error).__name__})"
            await self._pause(tried, retry_after, why)
        raise AssertionError("the last pause raises")

    async def _refused(self, response: "aiohttp.ClientResponse") -> str:
        """The reason, if a retry may help; raises otherwise."""
        status = response.status
        if status in _MISCONFIGURED:
            # Without the body: some servers repeat the credential in it.
            log.error("%s answers with HTTP %d: check its address, model and credential", self.what, status)
            raise ModelNotAvailable(self.service_id, reason=f"HTTP {status}")
        if status != _TOO_MANY_REQUESTS and status < 500:
            why = self._clean((await response.content.read(4096)).decode(errors="replace"))
            raise EngineFailed(f"{self.what} refused the request with HTTP {status}: {why}")
        return f"HTTP {status}"

    async def _pause(self, tried: int, retry_after: float | None, why: str) -> None:
        backoff_s = FIRST_PAUSE_S * 2.0 ** (tried - 1) * random.uniform(0.5, 1.0)
        pause_s = backoff_s if retry_after is None else retry_after
        if tried == TRIES or pause_s >= left_s():
            later = "" if retry_after is None else f", asks to wait {retry_after:g} s"
            raise ModelNotAvailable(self.service_id, reason=f"{why}{later}, after {tried} tries")
        log.info("%s: %s; trying again in %.1f s", self.what, why, pause_s)
        await asyncio.sleep(pause_s)

    def _clean(self, text: str) -> str:
        text = " ".join(text.split())
        if self._key:
            text = text.replace(self._key, "…")
        return text[:MAX_REASON] or "no reason given"


async def _whole(answer: "aiohttp.ClientResponse") -> bytes:
    """Raises EngineFailed if it is too long."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > MAX_ANSWER:
            raise EngineFailed(f"The answer has more than {MAX_ANSWER >> 20} MiB.")
    return bytes(data)


def retry_after_s(value: str | None, now: float) -> float | None:
    """The header Retry-After: seconds or a date. None if it is missing or cannot be parsed."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None
