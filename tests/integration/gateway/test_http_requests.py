"""Bodies of requests as they come over a real socket: whole, in pieces, too long, too slow, broken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.gateway import http_requests
from dragoman.gateway.http_requests import BadBody, read_body
from dragoman.gateway.listener import Listener
from support.gateway import RawClient, connected

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "MAX_BODY_BYTES", 100)
    monkeypatch.setattr(http_requests, "BODY_TIMEOUT_S", 0.5)


async def echo(request: web.Request) -> web.Response:
    try:
        return web.Response(body=await read_body(request))
    except BadBody as why:
        return web.Response(text=str(why), status=400)


@asynccontextmanager
async def asking() -> AsyncIterator[RawClient]:
    app = web.Application()
    app.add_routes([web.post("/", echo)])
    listener = Listener(ConnectionLimits(close_timeout_s=0.5))
    await listener.start("127.0.0.1", 0, {}, app)
    try:
        async with connected(listener) as client:
            yield client
    finally:
        await listener.close(4000)


async def test_a_body_in_pieces_is_read_to_its_end() -> None:
    async with asking() as client:
        await client.send(HEAD + b"Content-Length: 10\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.answer()).status == 100  # it is being waited for
        for piece in (b"ab", b"cdefg", b"hij"):
            await client.send(piece)
        assert (await client.answer()).body == b"abcdefghij"


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (b"Content-Length: 200\r\n\r\n" + b"x" * 200, b"the body is longer than 100 bytes"),
        (b"Content-Length: 50\r\n\r\nabc", b"the body did not come in time"),
    ],
    ids=["too long", "too slow"],
)
async def test_body_is_refused_with_the_reason(rest: bytes, why: bytes) -> None:
    async with asking() as client:
        await client.send(HEAD + rest)
        answer = await client.answer()
        assert (answer.status, answer.body) == (400, why)


async def test_malformed_body_is_refused_and_raises_nothing_else() -> None:
    async with asking() as client:
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.answer()).status == 100
        await client.send(b"1\r\na\r\nno size\r\n")
        answer = await client.answer()
        assert answer.status == 400
        assert answer.body in (b"the body cannot be read", b"the body did not come in time")
