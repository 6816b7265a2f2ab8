"""The hand-over of one port to two servers, and what it relies on in picows."""

import asyncio
import socket
import ssl

import aiohttp
import pytest
from aiohttp import web

from dragoman.gateway import Connection
from support.gateway import (
    KEY,
    TEXT,
    Echo,
    connected,
    frame,
    http_app,
    serving,
    until,
    upgrade,
    websocket,
)
from support.waiting import ON_BOTH_LOOPS

pytestmark = ON_BOTH_LOOPS


async def test_http_and_websockets_share_the_port() -> None:
    async with serving() as listener, aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
        async with http.ws_connect("/echo") as ws:
            for n in range(3):
                async with http.get("/health") as response:
                    assert await response.text() == "OK"
                await ws.send_str(f"hello {n}")
                assert await ws.receive_str() == f"hello {n}"


async def test_an_http_connection_is_kept_alive_for_more_requests() -> None:
    async with serving() as listener, aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
        for size in (0, 10, 900_000):
            async with http.post("/length", data=bytes(size)) as response:
                assert await response.json() == {"length": size}
            async with http.get("/health") as response:
                assert response.status == 200
        assert listener.counters.accepted == listener.counters.http == 1


@pytest.mark.parametrize("path", ["/echo", "/health"])
async def test_a_head_may_arrive_byte_by_byte(path: str) -> None:
    async with serving() as listener, connected(listener) as client:
        head = upgrade(path) if path == "/echo" else b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        for n in range(len(head)):
            await client.send(head[n : n + 1])
            await asyncio.sleep(0)
        assert (await client.answer()).status == (101 if path == "/echo" else 200)


@pytest.mark.parametrize("size", [5, 1_500, 60_000, 1_000_000])
async def test_frames_in_one_segment_with_the_handshake_are_not_lost(size: int) -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(upgrade() + frame(TEXT, b"x" * size) + frame(TEXT, b"and another"))
        assert (await client.answer()).status == 101
        assert await client.message() == b"x" * size
        assert await client.message() == b"and another"


async def test_handshake_is_answered_as_the_rfc_requires() -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(upgrade(Sec_WebSocket_Extensions="permessage-deflate"))
        answer = await client.answer()
        assert answer.status == 101
        assert answer.headers == {
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",  # the example of RFC 6455 for this key
        }
        assert KEY == "dGhlIHNhbXBsZSBub25jZQ=="


async def test_browser_that_sends_keep_alive_and_upgrade_is_accepted() -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(upgrade(Connection="keep-alive, Upgrade"))
        assert (await client.answer()).status == 101


async def test_endpoint_gets_the_fields_of_the_request() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}) as listener, connected(listener) as client:
        await client.send(upgrade("/noted?token=a%20b&empty=", Authorization="Bearer t", X_Many="1"))
        await until(lambda: bool(echo.conns))
        (conn,) = echo.conns
        assert (conn.path, dict(conn.query)) == ("/noted", {"token": "a b", "empty": ""})
        assert (conn.headers["authorization"], conn.headers["x-many"]) == ("Bearer t", "1")
        assert conn.peer == client.writer.get_extra_info("sockname")


async def test_a_head_that_never_ends_times_out() -> None:
    async with serving(head_timeout_s=0.05) as listener:
        async with connected(listener) as silent, connected(listener) as half:
            await half.send(upgrade()[:-2])
            assert (await half.answer()).status == 408
            assert await half.ended()
            assert await silent.ended()
        assert listener.counters.heads_dropped == 2


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with serving(max_head_bytes=4096) as listener:
        for head in (upgrade(X_Long="x" * 5000), b"GET /" + b"x" * 5000):
            async with connected(listener) as client:
                await client.send(head)
                assert (await client.answer()).status == 431
                assert await client.ended()


async def test_many_silent_connections_do_not_keep_others_out() -> None:
    async with serving(max_heads=5) as listener:
        silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(20)]
        async with websocket(listener) as client:
            await client.send(frame(TEXT, b"still open"))
            assert await client.message() == b"still open"
        assert listener.counters.heads_dropped >= 15
        for _, writer in silent:
            writer.close()


async def test_tls_client_is_refused_at_once() -> None:
    async with serving() as listener:
        context = ssl.create_default_context()
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", listener.port, ssl=context, server_hostname="a")
        await until(lambda: listener.counters.refused[400] == 1)


async def test_client_that_disconnects_before_its_request_is_forgotten() -> None:
    async with serving() as listener:
        async with connected(listener) as client:
            await client.send(b"GET /he")
            await until(lambda: len(listener.registry.awaiting_head) == 1)
        await until(lambda: len(listener.registry.awaiting_head) == 0)
        assert listener.counters.heads_dropped == 0


async def test_a_connection_that_is_closed_as_it_opens_leaves_nothing_behind() -> None:
    class Refuser(Echo):
        def opened(self, conn: Connection) -> None:
            super().opened(conn)
            conn.close(4501, "not you")

    refuser = Refuser()
    async with serving({"/no": lambda: refuser}) as listener, connected(listener) as client:
        await client.send(upgrade("/no") + frame(TEXT, b"unheard"))
        assert (await client.answer()).status == 101
        assert await client.close_code() == 4501
        assert await client.ended()
        client.writer.close()
        await until(lambda: not listener.connections)
        assert refuser.events == ["opened", "closed"]


# --- an upgrade on a connection that has served HTTP ---

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


def slow_app(release: asyncio.Event) -> web.Application:
    """`/slow` is answered when `release` is set."""

    async def slow(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response(text="slow")

    app = http_app()
    app.add_routes([web.get("/slow", slow)])
    return app


async def test_a_client_that_reuses_its_http_connection_opens_a_websocket_on_it() -> None:
    async with serving() as listener, aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
        async with http.post("/length", data=b"hello") as response:
            assert await response.json() == {"length": 5}
        async with http.ws_connect("/echo") as ws:
            await ws.send_str("hello")
            assert await ws.receive_str() == "hello"
        assert listener.counters.accepted == listener.counters.opened == 1


@pytest.mark.parametrize("requests", [[GET], [POST], [POST, GET, POST]], ids=["get", "post", "several"])
@pytest.mark.parametrize("size", [0, 5, 60_000, 1_000_000])
async def test_frames_behind_a_later_upgrade_are_not_lost(requests: list[bytes], size: int) -> None:
    async with serving() as listener, connected(listener) as client:
        for request in requests:
            await client.send(request)
            assert (await client.answer()).status == 200
        frames = frame(TEXT, b"x" * size) + frame(TEXT, b"and another") if size else b""
        await client.send(upgrade() + frames)
        assert (await client.answer()).status == 101
        if size:
            assert await client.message() == b"x" * size
            assert await client.message() == b"and another"
        await client.send(frame(TEXT, b"later"))
        assert await client.message() == b"later"


async def test_a_later_upgrade_may_arrive_byte_by_byte() -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        for byte in upgrade() + frame(TEXT, b"hello"):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).status == 101
        assert await client.message() == b"hello"


async def test_an_idle_http_connection_is_upgraded_after_the_loop_stopped_watching_it() -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        await until(lambda: len(listener.registry.idle_poller) == 1)
        await client.send(upgrade() + frame(TEXT, b"hello"))
        assert (await client.answer()).status == 101
        assert await client.message() == b"hello"


async def test_the_endpoint_of_a_later_upgrade_sees_its_request() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}) as listener, connected(listener) as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        await client.send(upgrade("/noted?token=a%20b&empty=", Authorization="Bearer t"))
        assert (await client.answer()).status == 101
        (conn,) = echo.conns
        assert (conn.path, dict(conn.query)) == ("/noted", {"token": "a b", "empty": ""})
        assert conn.headers["authorization"] == "Bearer t"
        assert conn.peer == client.writer.get_extra_info("sockname")


async def test_upgraded_connection_is_no_http_connection_and_survives_the_keep_alive_timer() -> None:
    async with (
        serving(max_http_connections=1, http_keepalive_s=0.2) as listener,
        connected(listener) as client,
        connected(listener) as idle,
    ):
        await client.send(GET)
        assert (await client.answer()).status == 200
        await client.send(upgrade())
        assert (await client.answer()).status == 101
        assert len(listener.connections) == 1
        await idle.send(GET)
        assert (await idle.answer()).status == 200
        assert await idle.ended()  # its keep-alive timer, started after that of the first connection
        await client.send(frame(TEXT, b"still here"))
        assert await client.message() == b"still here"


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (upgrade("/nowhere"), 404),
        (upgrade(Origin="http://evil.example"), 403),
        (upgrade(Connection="keep-alive"), 400),
        (upgrade(Sec_WebSocket_Version="8"), 426),
        (upgrade(Content_Length="4") + b"body", 400),
    ],
    ids=["path", "origin", "connection", "version", "body"],
)
async def test_a_later_upgrade_is_refused_as_a_first_one(request_head: bytes, status: int) -> None:
    async with serving() as listener, connected(listener) as first, connected(listener) as later:
        await later.send(GET)
        assert (await later.answer()).status == 200
        refusals = []
        for client in (first, later):
            await client.send(request_head)
            refusals.append(await client.answer())
            assert await client.ended()
        assert refusals[0] == refusals[1]
        assert refusals[0].status == status
        assert listener.counters.refused[status] == 2


@pytest.mark.parametrize("apart", [False, True], ids=["one segment", "while it is being answered"])
async def test_a_pipelined_upgrade_is_refused_after_the_answer_to_the_request_before_it(apart: bool) -> None:
    release = asyncio.Event()
    async with serving(app=slow_app(release)) as listener, connected(listener) as client:
        slow = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
        pipelined = upgrade() + frame(TEXT, b"hello")
        if apart:
            await client.send(GET)
            assert (await client.answer()).status == 200
            await client.send(slow)
            (handler,) = listener._http._runner.server.connections  # type: ignore[union-attr]
            await until(lambda: handler._request_in_progress)
            await client.send(pipelined)
            await until(lambda: handler._upgraded)
        else:
            await client.send(slow + pipelined)
        release.set()
        assert (await client.answer()).body == b"slow"
        refusal = await client.answer()
        assert (refusal.status, refusal.headers["connection"]) == (400, "close")
        assert b"previous" in refusal.body
        assert await client.ended()
        assert listener.counters.opened == 0


async def test_a_pipelined_upgrade_behind_a_large_body_is_refused() -> None:
    async with serving() as listener, connected(listener) as client:
        body = bytes(3_000_000)
        head = f"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        await client.send(head + body + upgrade())
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400


async def test_an_upgrade_that_arrives_just_before_aiohttp_waits_for_it_is_served() -> None:
    """aiohttp writes an answer one turn of the loop before it waits for the next request."""

    class Last(web.Response):
        async def write_eof(self, data: bytes = b"") -> None:
            await super().write_eof(data)
            asyncio.get_running_loop().call_soon(
                lambda: http_connections[0].data_received(upgrade() + frame(TEXT, b"hello"))
            )

    async def last(request: web.Request) -> web.Response:
        await asyncio.sleep(0)
        return Last(text="last")

    http_connections: list[asyncio.Protocol] = []
    app = http_app()
    app.add_routes([web.get("/last", last)])

    async with serving(app=app) as listener, connected(listener) as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        http_connections.extend(listener._http._connections)  # type: ignore[union-attr]
        await client.send(b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer()).body == b"last"
        assert (await client.answer()).status == 101
        assert await client.message() == b"hello"


async def test_client_that_disconnects_after_a_later_upgrade_leaves_nothing_behind() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}) as listener:
        async with connected(listener) as client:
            await client.send(GET)
            assert (await client.answer()).status == 200
            await client.send(upgrade("/noted"))
            assert (await client.answer()).status == 101
        await until(lambda: echo.events == ["opened", "closed"])
        assert not listener.connections
        assert not listener._http._connections  # type: ignore[union-attr]
        assert not listener._http._runner.server.connections  # type: ignore[union-attr]


# --- picows ---


async def test_small_messages_are_sent_at_once_though_picows_cannot_set_socket_options() -> None:
    echo = Echo()
    async with serving({"/echo": lambda: echo}) as listener, websocket(listener, "/echo"):
        held = echo.conns[0]._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_a_large_message_grows_the_buffer_and_a_later_small_one_gives_it_back() -> None:
    echo = Echo()
    async with (
        serving({"/big": lambda: echo}, grown_buffer_s=0.0) as listener,
        websocket(listener, "/big") as client,
    ):
        await client.send(frame(TEXT, b"x" * 1_000_000))
        assert len(await client.message()) == 1_000_000
        assert _read_buffer(echo.conns[0]) > 900_000
        await client.send(frame(TEXT, b"small"))
        assert await client.message() == b"small"
        assert listener.counters.buffers_returned == 1
        assert _read_buffer(echo.conns[0]) <= 2048
        for size in (10, 100_000, 10):
            await client.send(frame(TEXT, b"y" * size))
            assert len(await client.message()) == size
        assert echo.events == ["opened"] + ["text"] * 5
        client.writer.close()
        await until(lambda: echo.events[-1] == "closed")


async def test_a_buffer_in_use_is_kept() -> None:
    async with serving(grown_buffer_s=60.0) as listener, websocket(listener) as client:
        for size in (200_000, 10, 200_000, 10):
            await client.send(frame(TEXT, b"x" * size))
            assert len(await client.message()) == size
        assert listener.counters.buffers_returned == 0


async def test_the_next_message_behind_a_returned_buffer_is_not_lost() -> None:
    async with serving(grown_buffer_s=0.0, max_frames_per_s=100_000) as listener, websocket(listener) as client:
        sizes = [150_000, 1, 2, 3, 80_000, 4, 150_000, 5, 6] * 20

        async def receive() -> None:
            for size in sizes:
                assert len(await client.message()) == size

        await asyncio.gather(client.send(b"".join(frame(TEXT, b"x" * size) for size in sizes)), receive())


def _read_buffer(conn: Connection) -> int:
    return len(conn._transport.get_protocol().get_buffer(-1))  # type: ignore[attr-defined]
