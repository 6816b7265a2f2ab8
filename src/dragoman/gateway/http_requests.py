"""Reads HTTP requests and writes JSON responses: the peer, the query and the body of a request, errors as one sentence.

A body is read whole, however it arrives, up to a size and for a limited time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from dragoman.gateway.authentication import Principal
from dragoman.gateway.proxies import Peer
from dragoman.store.errors import StoreError

MAX_BODY_BYTES: Final = 16 << 10
BODY_TIMEOUT_S: Final = 10.0
MAX_PAGE: Final = 200
MAX_QUERY_TEXT: Final = 200
PEER = web.RequestKey("peer", Peer)
OPERATOR = web.RequestKey("operator", Principal)  # of a request that needs one
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_B = TypeVar("_B")


class BadRequest(Exception):
    """The request cannot be answered as it is; `str()` says why."""


class BadBody(Exception):
    """The body cannot be read; `str()` says why, and quotes nothing of it."""


def peer_of(request: web.Request) -> Peer:
    """The client that sent it, also behind trusted proxies."""
    return request.get(PEER) or Peer(request.remote or "")


def json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def error(sentence: str, status: int) -> web.Response:
    return json({"error": sentence}, status)


def redis_error(why: StoreError) -> str:
    """For an operator: a Redis that loads its data after a restart comes back by itself."""
    if "LOADING" in str(why):
        return "Redis was restarted and is loading its data; it answers when that is done, usually within 2 s"
    return f"Redis is away: {why}"


async def read_body(request: web.Request) -> bytes:
    """Raises BadBody."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.content.iter_any():
                data += piece
                if len(data) > MAX_BODY_BYTES:
                    raise BadBody(f"the body is longer than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise BadBody("the body did not come in time") from None
    except (web.RequestPayloadError, ConnectionError):
        raise BadBody("the body cannot be read") from None
    return bytes(data)


async def json_body(request: web.Request, kind: type[_B]) -> _B:
    """The body of an operator's request. Raises BadRequest."""
    try:
        return msgspec.json.decode(await read_body(request), type=kind)
    except BadBody as why:
        raise BadRequest(str(why)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"the body is not as expected: {wrong}") from None


def count_of(query: Mapping[str, str], default: str = "50", max_count: int = MAX_PAGE) -> int:
    text = query.get("count", default)
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= max_count):
        raise BadRequest(f"count is not a number from 1 to {max_count}")
    return int(text)


def text_of(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "").strip()
    if len(text) > MAX_QUERY_TEXT:
        raise BadRequest(f"{name} is longer than {MAX_QUERY_TEXT} characters")
    return text
