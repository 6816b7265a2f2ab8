"""Bodies of HTTP requests and responses: JSON, with one sentence for a request that cannot be answered.

A body is read whole, however it arrives, up to a size and for a limited time.
"""

import asyncio
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from dragoman.store.errors import StoreError

MAX_BODY_BYTES: Final = 16 << 10
BODY_TIMEOUT_S: Final = 10.0
_B = TypeVar("_B")


class Wrong(Exception):
    """The request cannot be answered as it was asked; `str()` says why."""


def json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def redis_away(why: StoreError) -> str:
    """For an operator: a Redis that loads its data after a restart comes back by itself."""
    if "LOADING" in str(why):
        return "Redis was restarted and is loading its data; it answers when that is done, usually within 2 s"
    return f"Redis is away: {why}"


def error(sentence: str, status: int) -> web.Response:
    return json({"error": sentence}, status)


class Unread(Exception):
    """There is no such body; `str()` says why, and quotes nothing of it."""


async def body_of(request: web.Request, most_bytes: int, patience_s: float) -> bytes:
    """Raises Unread."""
    data = bytearray()
    try:
        async with asyncio.timeout(patience_s):
            async for piece in request.content.iter_any():
                data += piece
                if len(data) > most_bytes:
                    raise Unread(f"the body is longer than {most_bytes} bytes")
    except TimeoutError:
        raise Unread("the body did not come in time") from None
    except (web.RequestPayloadError, ConnectionError):
        raise Unread("the body cannot be read") from None
    return bytes(data)


async def asked(request: web.Request, kind: type[_B]) -> _B:
    """What an operator sent as JSON. Raises Wrong."""
    try:
        return msgspec.json.decode(await body_of(request, MAX_BODY_BYTES, BODY_TIMEOUT_S), type=kind)
    except Unread as why:
        raise Wrong(str(why)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise Wrong(f"the body is not as expected: {wrong}") from None
