"""HTTP on the port that everybody shares: its places are few; nobody can keep them all, or have anything inflated."""

import asyncio
import gzip
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from dragoman.domain.limits.connections import PerAddressLimit
from dragoman.gateway import Listener
from dragoman.gateway.http_connections import is_idle
from support.gateway import RawClient, connected, http_app, serving, until

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
GET_LARGE = b"GET /zeros/4000000 HTTP/1.1\r\nHost: x\r\n\r\n"
GET_SOME = b"GET /zeros/30000 HTTP/1.1\r\nHost: x\r\n\r\n"


def answering(listener: Listener) -> list[web.RequestHandler]:
    """The HTTP connections, in the order they came."""
    assert listener._http is not None
    server = listener._http._runner.server
    assert server is not None
    return server.connections


async def request_more_than_is_read(stalled: RawClient, listener: Listener) -> web.RequestHandler:
    """Until a little is left unread: not so much that aiohttp waits for it."""
    await stalled.send(GET_SOME)
    await until(lambda: bool(answering(listener)))
    (handler,) = answering(listener)
    transport = handler.transport
    assert transport is not None
    while not transport.get_write_buffer_size():
        asked = handler._request_count
        await stalled.send(GET_SOME)
        await until(lambda asked=asked: handler._request_count > asked and is_idle(handler))  # type: ignore[misc]
    assert not handler.writing_paused
    return handler


async def new_connections_are_answered(listener: Listener) -> None:
    for _ in range(3):
        async with connected(listener) as newcomer:
            await newcomer.send(GET)
            assert (await newcomer.answer()).status == 200


async def test_idle_connection_is_closed_for_a_new_one() -> None:
    async with serving(max_http_connections=3) as listener, asyncio.timeout(20):
        async with connected(listener) as first, connected(listener) as second, connected(listener) as third:
            for idle in (first, second, third):
                await idle.send(GET)
                assert (await idle.answer()).status == 200
            async with connected(listener) as newcomer:
                await newcomer.send(GET)
                assert (await newcomer.answer()).status == 200
            assert await first.ended()
            for still in (second, third):
                await still.send(GET)
                assert (await still.answer()).status == 200


async def test_connection_with_a_request_in_progress_stays() -> None:
    async with serving(max_http_connections=1) as listener:
        async with connected(listener) as busy, connected(listener) as newcomer:
            await busy.send(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
            await newcomer.send(GET)
            refused = await newcomer.answer()
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
            await busy.send(b"cde")
            assert (await busy.answer()).body == b'{"length": 5}'


async def test_connections_that_do_not_read_are_closed_for_new_ones() -> None:
    async with serving(max_http_connections=2) as listener:
        async with connected(listener, 4096) as first, connected(listener, 4096) as second:
            for stalled in (first, second):
                await stalled.send(GET_LARGE)
            await until(lambda: [handler.writing_paused for handler in answering(listener)] == [True, True])
            async with connected(listener) as one, connected(listener) as other:
                for newcomer in (one, other):
                    await newcomer.send(GET)
                for newcomer in (one, other):
                    assert (await newcomer.answer()).status == 200


@pytest.mark.parametrize(
    "last", [b"", GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")], ids=["stays", "leaves"]
)
async def test_connection_that_sends_no_more_and_does_not_read_is_closed_for_a_new_one(last: bytes) -> None:
    async with serving(max_http_connections=1) as listener, connected(listener, 4096) as stalled:
        handler = await request_more_than_is_read(stalled, listener)
        await stalled.send(last)
        await until(lambda: not last or handler._task_handler is None)
        await new_connections_are_answered(listener)
        await until(lambda: handler not in answering(listener))


async def test_connection_that_reads_nothing_for_too_long_is_aborted() -> None:
    async with serving(out_queue_age_s=0.1) as listener, connected(listener, 4096) as stalled:
        await stalled.send(GET_LARGE)
        await until(lambda: any(handler.writing_paused for handler in answering(listener)))
        await until(lambda: not answering(listener))


def count_loopback(listener: Listener, max_each: int) -> None:
    assert listener._http is not None
    listener._http._addresses = PerAddressLimit(max_each, exempt=lambda address: False)


async def test_one_address_cannot_use_all_http_connections() -> None:
    half = b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na"
    async with serving(max_http_connections=4, max_http_per_address=2) as listener:
        count_loopback(listener, 2)
        async with connected(listener) as busy, connected(listener) as idle:
            await busy.send(half)
            await idle.send(GET)
            assert (await idle.answer()).status == 200
            async with connected(listener) as another, connected(listener) as one_too_many:
                await another.send(half)
                assert await idle.ended()
                await one_too_many.send(GET)
                assert (await one_too_many.answer()).status == 503
                async with connected(listener, come_from="127.0.0.2") as stranger:
                    await stranger.send(GET)
                    assert (await stranger.answer()).status == 200
                for served in (busy, another):
                    await served.send(b"b")
                    assert (await served.answer()).body == b'{"length": 2}'


async def test_loopback_may_use_all_http_connections() -> None:
    async with serving(max_http_per_address=1) as listener:
        async with connected(listener) as one, connected(listener) as other:
            for client in (one, other, one):
                await client.send(GET)
                assert (await client.answer()).status == 200


async def test_closed_connection_does_not_count_for_its_address() -> None:
    async with serving(max_http_per_address=1) as listener:
        count_loopback(listener, 1)
        await new_connections_are_answered(listener)


async def test_closed_connection_keeps_its_slot_until_its_request_is_answered() -> None:
    asked, go_on = list[str](), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        asked.append(request.path)
        await go_on.wait()
        return web.Response()

    app = http_app()
    app.add_routes([web.get("/slow", slow)])
    async with serving(app=app, max_http_connections=2) as listener:
        for number in (1, 2):
            async with connected(listener) as hasty:
                await hasty.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
                await until(lambda number=number: len(asked) == number)  # type: ignore[misc]
        await until(lambda: all(handler.transport is None for handler in answering(listener)))  # it is known
        async with connected(listener) as newcomer:
            await newcomer.send(GET)
            assert (await newcomer.answer()).status == 503
        go_on.set()
        await until(lambda: not answering(listener))
        await new_connections_are_answered(listener)


async def test_idle_keep_alive_connection_is_polled_and_its_next_request_answered() -> None:
    async with serving() as listener, connected(listener) as client:
        for _ in range(3):
            await client.send(GET)
            assert (await client.answer()).status == 200
            await until(lambda: len(listener.registry.idle_poller) == 1)


async def test_connection_is_not_idle_while_its_request_is_answered() -> None:
    async with serving() as listener, connected(listener) as busy, connected(listener) as idle:
        await busy.send(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na")
        for _ in range(2):
            await idle.send(GET)
            assert (await idle.answer()).status == 200
            await until(lambda: len(listener.registry.idle_poller) == 1)
        await busy.send(b"b")
        assert (await busy.answer()).body == b'{"length": 2}'
        await until(lambda: len(listener.registry.idle_poller) == 2)


async def test_closed_idle_connection_is_noticed_and_removed() -> None:
    async with serving() as listener:
        async with AsyncExitStack() as clients:
            for _ in range(20):
                client = await clients.enter_async_context(connected(listener))
                await client.send(GET)
                assert (await client.answer()).status == 200
            await until(lambda: len(listener.registry.idle_poller) == 20)
        await until(lambda: not answering(listener))
        assert len(listener.registry.idle_poller) == 0


async def test_idle_http_connection_is_not_watched_after_its_keep_alive_time() -> None:
    async with serving(http_keepalive_s=0.3) as listener, connected(listener) as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        await until(lambda: len(listener.registry.idle_poller) == 1)
        assert await client.ended()
        await until(lambda: len(listener.registry.idle_poller) == 0)
        await new_connections_are_answered(listener)


async def test_a_compressed_body_is_not_inflated() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    head = f"POST /length HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    async with serving() as listener, connected(listener) as client:
        await client.send(head.encode() + bomb)
        assert (await client.answer()).body == b'{"length": %d}' % len(bomb)


async def test_body_with_a_wrong_content_encoding_does_no_harm() -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno")
        assert (await client.answer()).body == b'{"length": 2}'
