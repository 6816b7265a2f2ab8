import asyncio
import base64
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from random import Random

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from dragoman.connection import Backoff, ClientWebSocket, Closed, ConnectionRefused, Connector, Frame, ServerUnreachable
from dragoman.embedded.engine import free_port
from dragoman.protocol.codes import Close
from support.waiting import wait_until
from unit.client.fake_server import serving

# ---------------------------------------------------------------- backoff


class Ceiling(Random):
    """Always draws the highest value."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.25, longest_s=2, rng=Ceiling())
    assert [backoff.delay_s() for _ in range(6)] == [0.25, 0.5, 1, 2, 2, 2]


def test_delays_are_spread_from_zero_to_the_bound() -> None:
    delays = [Backoff(1, rng=Random(seed)).delay_s() for seed in range(200)]
    assert len(set(delays)) == 200
    assert 0 <= min(delays) < 0.1
    assert 0.9 < max(delays) <= 1


def test_only_a_connection_that_lasted_resets_the_delay() -> None:
    backoff = Backoff(first_s=0.25, longest_s=2, steady_s=5, rng=Ceiling())
    backoff.delay_s()
    backoff.delay_s()
    backoff.lasted(4.9)
    assert backoff.delay_s() == 1
    backoff.lasted(5)
    assert backoff.delay_s() == 0.25


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(longest_s=10, rng=Ceiling())
    assert [backoff.delay_s() for _ in range(5000)][-1] == 10


# ---------------------------------------------------------------- one WebSocket


class Echo(WSListener):
    """Sends back each message in two frames. `bye`: closes; `die`: cuts; `deaf`: stops reading."""

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        data = frame.get_payload_as_bytes()
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif data == b"bye":
            transport.send_close(4003, b"full")  # type: ignore[arg-type]  # takes any code
        elif data == b"die":
            transport.disconnect(graceful=False)
        elif data == b"deaf":
            transport.underlying_transport.pause_reading()
        else:
            transport.send(frame.msg_type, data[:2], fin=False)
            transport.send(WSMsgType.CONTINUATION, data[2:])


@asynccontextmanager
async def connected(received: asyncio.Queue[bytes | int]) -> AsyncIterator[ClientWebSocket]:
    echo = Echo()
    server = await ws_create_server(lambda request: echo, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with asyncio.timeout(10):
        socket = await ClientWebSocket.open(url, received.put_nowait, received.put_nowait, timeout_s=5)
        try:
            yield socket
        finally:
            await socket.close()
            server.close()
            echo.transport.disconnect(graceful=False)
            await echo.transport.wait_disconnected()


async def test_text_and_binary_messages_arrive_whole() -> None:
    received: asyncio.Queue[bytes | int] = asyncio.Queue()
    async with connected(received) as socket:
        socket.send(Frame(b"hello"))
        socket.send(Frame(b"\x00\x01\x02\x03", binary=True))
        assert [await received.get(), await received.get()] == [b"hello", b"\x00\x01\x02\x03"]


async def test_pong_arrives_after_what_was_sent_before_the_ping() -> None:
    received: asyncio.Queue[bytes | int] = asyncio.Queue()
    async with connected(received) as socket:
        socket.send(Frame(b"hello"))
        socket.ping(7)
        assert [await received.get(), await received.get()] == [b"hello", 7]


@pytest.mark.parametrize(
    ("word", "closed"), [(b"bye", Closed(4003, "full")), (b"die", Closed(1006, "the connection was lost"))]
)
async def test_closed_holds_code_and_reason(word: bytes, closed: Closed) -> None:
    async with connected(asyncio.Queue()) as socket:
        socket.send(Frame(word))
        assert await socket.closed == closed


async def test_closing_twice_sends_one_close_frame() -> None:
    async with connected(asyncio.Queue()) as socket:
        socket.start_closing()
        socket.start_closing()
        assert (await socket.closed).code == 1000


async def test_close_ends_although_the_server_does_not_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.connection._CLOSE_TIMEOUT_S", 0.01)
    async with connected(asyncio.Queue()) as socket:
        socket.send(Frame(b"deaf"))
        await socket.close()
        assert socket.closed.done()


async def test_socket_is_not_writable_while_the_server_does_not_read() -> None:
    async with connected(asyncio.Queue()) as socket:
        socket.send(Frame(b"deaf"))
        while socket.writable.is_set():
            socket.send(Frame(bytes(100_000), binary=True))
            await asyncio.sleep(0)
        socket.abort()
        await socket.writable.wait()
        await socket.closed


async def test_nothing_arrives_while_reading_is_paused() -> None:
    received: asyncio.Queue[bytes | int] = asyncio.Queue()
    async with connected(received) as paused, connected(asyncio.Queue()) as other:
        paused.pause_reading()
        paused.send(Frame(b"hello"))
        for _ in range(3):  # round trips of another connection: time enough for an echo
            other.ping(1)
            await asyncio.sleep(0.01)
        assert received.empty()
        paused.resume_reading()
        assert await received.get() == b"hello"


async def test_sending_after_the_end_does_nothing() -> None:
    async with connected(asyncio.Queue()) as socket:
        socket.abort()
        await socket.closed
        socket.send(Frame(b"hello?"))
        socket.ping(1)
        socket.pause_reading()
        socket.resume_reading()
        socket.abort()
        await socket.close()


@asynccontextmanager
async def slow_server(answers: asyncio.Event) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """Answers the handshake when `answers` is set. Yields its address and two events: asked, closed by the client."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await answers.wait()
        key = next(
            line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")
        )
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        with suppress(ConnectionError):
            while await reader.read(100):
                pass
        writer.close()
        gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.timeout(10):
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", asked, gone
    server.close()


async def test_open_times_out_when_the_server_does_not_answer_the_handshake() -> None:
    answers = asyncio.Event()
    async with slow_server(answers) as (url, _, gone):
        with pytest.raises(TimeoutError):
            await ClientWebSocket.open(url, lambda _: None, timeout_s=0.02)
        answers.set()
        await gone.wait()


async def test_cancelled_open_closes_a_connection_that_succeeds_later() -> None:
    answers = asyncio.Event()
    async with slow_server(answers) as (url, asked, gone):
        opening = asyncio.ensure_future(ClientWebSocket.open(url, lambda _: None, timeout_s=60))
        await asked.wait()
        opening.cancel()
        await asyncio.wait({opening})
        answers.set()
        await gone.wait()


# ---------------------------------------------------------------- one connection after another


def connector(*urls: str, reconnect_s: float = 5.0, keep_trying: bool = False) -> Connector:
    backoff = Backoff(0.001, 0.002, rng=Random(1))
    log = logging.getLogger("dragoman.client")
    return Connector(urls, backoff, log, connect_s=5, reconnect_s=reconnect_s, keep_trying=keep_trying)


def nowhere() -> str:
    return f"ws://127.0.0.1:{free_port()}/ws/session"


async def connect_once(connector: Connector) -> None:
    await (await connector.connect(lambda _: None)).close()


async def test_next_address_is_tried_when_one_does_not_answer() -> None:
    async with serving() as server:
        await connect_once(connector(nowhere(), server.url))
        assert len(server.connections) == 1


async def test_next_address_is_tried_when_a_server_ends_during_the_handshake() -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    ending = await asyncio.start_server(end, "127.0.0.1", 0)
    async with ending, serving() as server, asyncio.timeout(10):
        url = f"ws://127.0.0.1:{ending.sockets[0].getsockname()[1]}/"
        await connect_once(connector(url, server.url))
        assert len(server.connections) == 1


async def test_each_address_is_tried_once_before_the_first_success() -> None:
    first, second = nowhere(), nowhere()
    with pytest.raises(ServerUnreachable, match=f"not connected to {second}: connection refused"):
        await connect_once(connector(first, second))


async def test_keep_trying_waits_for_a_server_that_is_not_there_yet() -> None:
    async with serving() as server:
        server.refuses_with = HTTPStatus.SERVICE_UNAVAILABLE
        connecting = asyncio.ensure_future(connect_once(connector(nowhere(), server.url, keep_trying=True)))
        await wait_until(lambda: server.refusals >= 2)
        server.refuses_with = None
        await connecting


@pytest.mark.parametrize("status", [HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE])
async def test_unexpected_http_status_is_reported(status: HTTPStatus) -> None:
    async with serving() as server:
        server.refuses_with = status
        with pytest.raises(ServerUnreachable, match=f"HTTP {status.value}"):
            await connect_once(connector(server.url))


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
async def test_refused_access_is_final(status: HTTPStatus) -> None:
    async with serving() as server:
        server.refuses_with = status
        with pytest.raises(ConnectionRefused, match=f"refused the connection: HTTP {status.value}") as refused:
            await connect_once(connector(server.url, keep_trying=True))
        assert (refused.value.code, refused.value.name) == (status.value, status.name)


@pytest.mark.parametrize("url", ["", "nonsense", "http//x", "ftp://127.0.0.1/"])
async def test_malformed_address_is_an_error_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not a valid URL of a server"):
        await connect_once(connector(url, keep_trying=True))


def test_connector_needs_an_address() -> None:
    with pytest.raises(ValueError, match="at least one address"):
        connector()


async def lose(connector: Connector, code: int = 1006, reason: str = "") -> None:
    await connect_once(connector)
    connector.opened()
    connector.lost(Closed(code, reason))


async def test_lost_connection_is_retried_until_the_timeout() -> None:
    async with serving() as server:
        connects = connector(server.url, reconnect_s=0.05)
        await lose(connects)
        server.refuses_with = HTTPStatus.SERVICE_UNAVAILABLE
        with pytest.raises(ServerUnreachable, match="HTTP 503"):
            await connects.connect(lambda _: None)


async def test_lost_connection_is_replaced_by_one_to_the_next_address() -> None:
    async with serving() as one, serving() as other:
        connects = connector(one.url, other.url)
        await lose(connects)
        await connect_once(connects)
        assert (len(one.connections), len(other.connections)) == (1, 1)


async def test_dead_addresses_are_skipped_after_a_lost_connection() -> None:
    async with serving() as server:
        connects = connector(server.url, nowhere(), nowhere(), nowhere())
        await lose(connects)
        await connect_once(connects)
        assert len(server.connections) == 2


@pytest.mark.parametrize(("code", "name"), [(Close.UNAUTHORIZED, "UNAUTHORIZED"), (4999, "4999")])
async def test_close_codes_from_4500_are_final(code: int, name: str) -> None:
    async with serving() as server:
        with pytest.raises(ConnectionRefused, match="never again") as refused:
            await lose(connector(server.url), code, "never again")
        assert (refused.value.code, refused.value.name) == (code, name)


@pytest.mark.parametrize("code", [1000, 1006, 1011, Close.SHUTDOWN, Close.SLOW_CONSUMER, 4499])
async def test_every_other_close_code_allows_a_reconnect(code: int) -> None:
    async with serving() as server:
        connects = connector(server.url)
        await lose(connects, code)
        await connect_once(connects)


async def test_secrets_in_an_address_are_not_shown() -> None:
    with pytest.raises(ServerUnreachable) as error:
        await connect_once(connector(nowhere().replace("//", "//me:s3cret@") + "?token=s3cret"))
    assert "s3cret" not in str(error.value)
