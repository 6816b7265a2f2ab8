"""The port: who is let in, how many, and how it all ends."""

import asyncio
import json
import socket

import aiohttp
import pytest

from dragoman.domain.limits.connections import PerAddressLimit
from dragoman.gateway import Endpoint, Listener, OriginAllowList, Reject, Request
from dragoman.protocol.codes import Close
from support.gateway import (
    TEXT,
    Echo,
    RawClient,
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


async def _refusal(listener: Listener, head: bytes) -> tuple[int, dict[str, str]]:
    async with connected(listener) as client:
        await client.send(head)
        answer = await client.answer()
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["connection"] == "close"
        assert list(json.loads(answer.body)) == ["error"]
        assert await client.ended()
        return answer.status, answer.headers


@pytest.mark.parametrize(
    ("origin", "let_in"),
    [
        (None, True),
        ("http://127.0.0.1", True),
        ("https://app.example.com", True),
        ("https://evil.example.com", False),
        ("https://app.example.com.evil.com", False),
        ("null", False),
    ],
)
async def test_only_listed_origins_and_pages_of_this_host_may_connect(origin: str | None, let_in: bool) -> None:
    async with serving(authorize=OriginAllowList(["https://app.example.com"])) as listener:
        head = upgrade(Origin=origin)
        if let_in:
            async with connected(listener) as client:
                await client.send(head)
                assert (await client.answer()).status == 101
        else:
            assert (await _refusal(listener, head))[0] == 403


async def test_an_authorizer_sees_the_request_and_may_refuse_it() -> None:
    def authorize(request: Request) -> Reject | None:
        if request.query.get("token") == "good":
            return None
        if request.query.get("token") == "bug":
            raise RuntimeError("a bug")
        return Reject(401, "a token is needed", {"WWW-Authenticate": "Bearer"})

    async with serving(authorize=authorize) as listener:
        status, headers = await _refusal(listener, upgrade())
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert (await _refusal(listener, upgrade("/echo?token=bug")))[0] == 500
        async with websocket(listener, "/echo?token=good"):
            pass


async def test_a_factory_that_raises_costs_only_its_connection() -> None:
    def broken() -> Endpoint:
        raise RuntimeError("a bug")

    async with serving({"/broken": broken}) as listener:
        assert (await _refusal(listener, upgrade("/broken")))[0] == 500
        async with websocket(listener) as client:
            await client.send(frame(TEXT, b"works"))
            assert await client.message() == b"works"


async def test_connections_above_the_limit_get_try_again_later_and_http_still_answers() -> None:
    async with serving(max_connections=2) as listener:
        async with websocket(listener), websocket(listener):
            status, headers = await _refusal(listener, upgrade())
            assert status == 503
            assert int(headers["retry-after"]) > 0
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
                async with http.get("/health") as response:
                    assert response.status == 200
        await until(lambda: not listener.connections)
        async with websocket(listener):
            pass


async def test_address_at_its_limit_gets_try_again_later_until_a_socket_closes() -> None:
    async with serving(max_per_address=2) as listener:
        listener.registry.addresses = PerAddressLimit(2, exempt=lambda address: False)  # loopback counts here
        async with websocket(listener):
            async with websocket(listener):
                status, headers = await _refusal(listener, upgrade())
                assert status == 429
                assert int(headers["retry-after"]) > 0
            await until(lambda: len(listener.connections) == 1)
            async with websocket(listener):
                pass


async def test_http_connections_are_bounded_too() -> None:
    request = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"

    async with serving(max_http_connections=1) as listener, connected(listener) as first:
        await first.send(b"POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx")
        assert (await _refusal(listener, request))[0] == 503
        async with websocket(listener):
            pass
        await first.send(b"y")
        assert (await first.answer()).status == 200


async def test_traffic_is_counted() -> None:
    async with serving() as listener, websocket(listener) as client:
        for _ in range(3):
            await client.send(frame(TEXT, b"12345"))
            await client.message()
        counters = listener.counters
        assert (counters.accepted, counters.opened, counters.http) == (1, 1, 0)
        assert (counters.frames_in, counters.bytes_in) == (3, 15)
        assert (counters.frames_out, counters.bytes_out) == (3, 21)  # with the headers of the frames


async def test_connections_have_ids_of_their_own() -> None:
    async with serving() as listener, serving() as another:
        async with websocket(listener), websocket(listener), websocket(another):
            ids = [conn.id for conn in (*listener.connections, *another.connections)]
            assert len(set(ids)) == 3


# --- sockets ---


async def test_socket_buffers_of_a_connection_are_small() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}, socket_buffer_bytes=50_000) as listener:
        async with websocket(listener, "/noted"):
            sock = echo.conns[0]._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                assert sock.getsockopt(socket.SOL_SOCKET, option) <= 100_000


async def test_workers_share_a_port() -> None:
    workers = [Listener(), Listener()]
    await workers[0].start("127.0.0.1", 0, {"/echo": Echo}, http_app(), reuse_port=True)
    await workers[1].start("127.0.0.1", workers[0].port, {"/echo": Echo}, http_app(), reuse_port=True)
    clients = [await asyncio.open_connection("127.0.0.1", workers[0].port) for _ in range(40)]
    await until(lambda: sum(worker.counters.accepted for worker in workers) == 40)
    assert all(worker.counters.accepted for worker in workers)
    for _, writer in clients:
        writer.close()
    for worker in workers:
        await worker.close(Close.SHUTDOWN)


async def test_a_socket_that_is_already_bound_can_be_given() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener()
    await listener.start(None, 0, {"/echo": Echo}, http_app(), sock=sock)
    assert listener.port == sock.getsockname()[1]
    async with websocket(listener):
        pass
    await listener.close(Close.SHUTDOWN)


async def test_port_in_use_is_an_error_and_leaves_nothing_running() -> None:
    async with serving() as listener:
        with pytest.raises(OSError):
            await Listener().start("127.0.0.1", listener.port, {}, http_app())


# --- the end ---


async def test_stop_accepting_keeps_open_connections_and_refuses_new_ones() -> None:
    async with serving() as listener, websocket(listener) as client:
        port = listener.port
        await listener.stop_accepting()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        await client.send(frame(TEXT, b"still here"))
        assert await client.message() == b"still here"


async def test_close_sends_close_frames_and_aborts_clients_that_do_not_answer() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}, close_timeout_s=0.1) as listener:
        streams = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(20)]
        clients = [RawClient(*stream) for stream in streams]
        for client in clients:
            await client.send(upgrade("/noted"))
            assert (await client.answer()).status == 101
        async with connected(listener) as undecided:
            await until(lambda: len(listener.registry.awaiting_head) == 1)
            await listener.close(Close.SHUTDOWN)
            assert await undecided.ended()
        assert not listener.connections
        assert echo.events.count("closed") == 20
        for client in clients:
            assert await client.close_code() == Close.SHUTDOWN
            assert await client.ended()
            client.writer.close()


async def test_close_ends_an_idle_http_connection() -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).status == 200
        await listener.close(Close.SHUTDOWN)
        assert await client.ended()


async def test_a_listener_may_be_closed_before_it_started_and_twice() -> None:
    await Listener().close(Close.SHUTDOWN)
    async with serving() as listener:
        await listener.close(Close.SHUTDOWN)
