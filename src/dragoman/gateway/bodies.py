"""The body of a request: all of it, however it comes, but no more than is allowed and not for ever."""

import asyncio

from aiohttp import web


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
