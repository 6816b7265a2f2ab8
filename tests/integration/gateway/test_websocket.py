"""One connection: messages, limits, and its end."""

import asyncio
from contextlib import AbstractAsyncContextManager

import aiohttp
import pytest

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.gateway import Connection, Listener, Route
from dragoman.protocol.codes import Close
from support.gateway import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Echo,
    RawClient,
    connected,
    frame,
    serving,
    until,
    upgrade,
    websocket,
)
from support.waiting import ON_BOTH_LOOPS

pytestmark = ON_BOTH_LOOPS

MB = 1 << 20


# --- messages ---


@pytest.mark.parametrize("size", [0, 1, 125, 126, 1000, 1001, 8192, 8193, 65535, 65536, 1_000_000])
async def test_messages_of_every_header_size_come_back_whole(size: int) -> None:
    async with serving() as listener, aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
        async with http.ws_connect("/echo") as ws:
            await ws.send_str("ä" * (size // 2))
            assert await ws.receive_str() == "ä" * (size // 2)
            await ws.send_bytes(b"\xff" * size)
            assert await ws.receive_bytes() == b"\xff" * size


async def test_text_may_be_sent_as_str() -> None:
    class Greeter(Echo):
        def opened(self, conn: Connection) -> None:
            conn.send("grüezi")

    async with serving({"/greet": Greeter}) as listener, websocket(listener, "/greet") as client:
        assert await client.frame() == (TEXT, "grüezi".encode())


async def test_text_is_delivered_unchanged_even_if_it_is_not_utf8() -> None:
    async with serving() as listener, websocket(listener) as client:
        await client.send(frame(TEXT, b"\xff\xfe"))
        assert await client.message() == b"\xff\xfe"


async def test_fragments_are_joined_with_control_frames_between_them() -> None:
    async with serving() as listener, websocket(listener) as client:
        await client.send(frame(BINARY, b"one ", fin=False) + frame(PING, b"still there?"))
        assert await client.frame() == (PONG, b"still there?")
        await client.send(frame(CONTINUATION, b"two ", fin=False) + frame(CONTINUATION, b"", fin=False))
        await client.send(frame(CONTINUATION, b"three") + frame(TEXT, b"next"))
        assert await client.frame() == (BINARY, b"one two three")
        assert await client.frame() == (TEXT, b"next")


async def test_pong_counts_as_a_frame() -> None:
    async with serving() as listener, websocket(listener) as client:
        (connection,) = listener.connections
        connection.ping()
        assert await client.frame() == (PING, b"")
        assert connection.frames == 0
        await client.send(frame(PONG, b""))
        await until(lambda: connection.frames == 1)


@pytest.mark.parametrize(
    "wrong",
    [
        frame(CONTINUATION, b"of nothing"),
        frame(TEXT, b"begun", fin=False) + frame(TEXT, b"again"),
        frame(TEXT, b"compressed", reserved=0x40),
        frame(PING, b"control", reserved=0x10),
        frame(0x3, b"unknown opcode"),
        frame(PING, b"", fin=False),
        b"\x81\x05hello",  # not masked
        frame(CLOSE, (999).to_bytes(2, "big")),
    ],
)
async def test_malformed_frame_closes_the_connection_with_a_protocol_error(wrong: bytes) -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}) as listener, websocket(listener, "/noted") as client:
        await client.send(wrong + frame(TEXT, b"unheard"))
        assert await client.close_code() == 1002
        assert await client.ended()
        assert echo.events == ["opened", "closed"]


# --- limits on what comes in ---


async def test_a_message_over_the_limit_is_refused_whole_or_in_fragments() -> None:
    async with serving(max_frame_bytes=1000) as listener:
        for data in (
            frame(TEXT, b"x" * 1001),
            frame(TEXT, b"x" * 600, fin=False) + frame(CONTINUATION, b"x" * 401),
        ):
            async with websocket(listener) as client:
                await client.send(frame(TEXT, b"x" * 1000))
                assert len(await client.message()) == 1000
                await client.send(data)
                assert await client.close_code() == Close.TOO_BIG
                assert await client.ended()
        assert listener.counters.closed[Close.TOO_BIG] == 2


async def test_a_frame_that_announces_100_mb_is_refused_before_it_is_read() -> None:
    async with serving() as listener, websocket(listener) as client:
        await client.send(frame(BINARY, announce=100 * MB))
        assert await client.close_code() == Close.TOO_BIG
        assert listener.counters.bytes_in == 0


async def test_a_client_that_pushes_100_mb_learns_why_it_was_closed() -> None:
    async with serving() as listener, websocket(listener) as client:
        client.writer.write(frame(BINARY, announce=100 * MB))
        push = asyncio.create_task(_push(client, bytes(MB), 100))
        assert await client.close_code() == Close.TOO_BIG
        assert listener.counters.bytes_in == 0
        await _cut_off(push)
        await until(lambda: not listener.connections)


@pytest.mark.parametrize("opcode", [TEXT, PING, CONTINUATION])
async def test_a_million_tiny_frames_are_cut_off_by_the_rate_limit(opcode: int) -> None:
    start = frame(TEXT, b"", fin=False) if opcode == CONTINUATION else b""
    tiny = bytes([opcode | (0 if opcode == CONTINUATION else 0x80), 0x80, 0, 0, 0, 0])
    async with serving(max_frames_per_s=100, burst_frames=200) as listener, websocket(listener) as client:
        push = asyncio.create_task(_push(client, start + tiny * 10_000, 100))
        assert await client.close_code() == Close.RATE
        assert listener.counters.frames_in <= 500
        await _cut_off(push)
        await until(lambda: not listener.connections)


async def test_a_steady_sender_below_the_rate_is_not_disturbed() -> None:
    async with serving(max_frames_per_s=100_000, burst_frames=5) as listener, websocket(listener) as client:
        for n in range(300):
            await client.send(frame(TEXT, b"%d" % n))
            assert await client.message() == b"%d" % n


async def test_a_route_may_have_limits_of_its_own() -> None:
    routes = {"/wide": Route(Echo, ConnectionLimits(max_frame_bytes=5000))}
    async with serving(routes, max_frame_bytes=1000) as listener:
        async with websocket(listener, "/wide") as wide, websocket(listener) as narrow:
            await wide.send(frame(TEXT, b"x" * 5000))
            assert len(await wide.message()) == 5000
            await narrow.send(frame(TEXT, b"x" * 5000))
            assert await narrow.close_code() == Close.TOO_BIG


# --- silent peers ---


async def test_an_idle_peer_is_pinged_and_stays_if_it_answers() -> None:
    async with serving(ping_idle_s=0.02, ping_reply_s=0.5) as listener, websocket(listener) as client:
        for _ in range(3):
            assert await client.frame() == (PING, b"")
            await client.send(frame(PONG))
        assert not listener.counters.closed


async def test_a_peer_that_answers_no_ping_is_closed() -> None:
    async with serving(ping_idle_s=0.02, ping_reply_s=0.02) as listener, websocket(listener) as client:
        assert await client.frame() == (PING, b"")
        assert await client.close_code() == Close.TIMEOUT
        await until(lambda: not listener.connections)


# --- slow readers ---


class Flood(Echo):
    """Answers every message with messages of all header sizes until nobody takes them any more: every third one of its
    own, the others as for many connections."""

    def text(self, conn: Connection, data: bytes) -> None:
        for n in range(int(data)):
            message = b"%d " % n + b"x" * (n * 997 % 70_000)
            if n % 3:
                conn.send_frame(conn.frame(message))
            else:
                conn.send(message)
            if conn.closed:
                return


async def test_client_that_never_reads_is_closed_while_another_is_served() -> None:
    async with serving({"/flood": Flood}, out_queue_bytes=MB) as listener, websocket(listener) as other:
        async with _slow(listener) as slow:
            await slow.send(upgrade("/flood") + frame(TEXT, b"5000"))
            await until(lambda: listener.counters.closed[Close.SLOW_CONSUMER] == 1)
            for n in range(20):
                await other.send(frame(TEXT, b"%d" % n))
                assert await other.message() == b"%d" % n
            await until(lambda: len(listener.connections) == 1)  # the slow one is cut off: it never left by itself


async def test_connection_closes_when_even_few_bytes_stay_unread_past_the_timeout() -> None:
    flood = Flood()
    async with serving({"/flood": lambda: flood}, out_queue_bytes=100 * MB, out_queue_age_s=0.1) as listener:
        async with _slow(listener) as slow:
            await slow.send(upgrade("/flood"))
            await until(lambda: bool(flood.conns))
            conn = flood.conns[0]
            while conn.buffered == 0:
                conn.send(b"x" * 10_000)
                await asyncio.sleep(0)  # written at the end of the turn
            await until(lambda: conn.closed)
            assert listener.counters.closed == {Close.SLOW_CONSUMER: 1}
            await until(lambda: flood.events[-1] == "closed")


async def test_a_slow_reader_that_wakes_up_finds_every_message_intact_and_why_it_was_closed() -> None:
    async with serving({"/flood": Flood}, out_queue_bytes=4 * MB, close_timeout_s=10.0) as listener:
        async with _slow(listener) as slow:
            await slow.send(upgrade("/flood") + frame(TEXT, b"5000"))
            await until(lambda: listener.counters.closed[Close.SLOW_CONSUMER] == 1)
            assert (await slow.answer()).status == 101
            for n in range(listener.counters.frames_out):
                assert await slow.frame() == (TEXT, b"%d " % n + b"x" * (n * 997 % 70_000))
            assert await slow.close_code() == Close.SLOW_CONSUMER
            assert await slow.ended()


async def test_a_reader_that_falls_behind_and_catches_up_stays() -> None:
    async with serving({"/flood": Flood}, out_queue_bytes=100 * MB) as listener, _slow(listener) as slow:
        await slow.send(upgrade("/flood") + frame(TEXT, b"300"))
        await until(lambda: len(listener.registry.backlogged) == 1)
        assert (await slow.answer()).status == 101
        for n in range(300):
            assert await slow.frame() == (TEXT, b"%d " % n + b"x" * (n * 997 % 70_000))
        await until(lambda: len(listener.registry.backlogged) == 0)
        assert not listener.counters.closed


async def test_half_closed_peer_that_does_not_read_is_aborted() -> None:
    async with serving({"/flood": Flood}, out_queue_bytes=100 * MB, out_queue_age_s=0.1) as listener:
        async with _slow(listener) as slow:
            await slow.send(upgrade("/flood") + frame(TEXT, b"1000"))
            slow.writer.write_eof()
            await until(lambda: listener.counters.opened == 1 and not listener.connections)


# --- the end ---


async def test_close_codes_reach_the_client() -> None:
    class Closer(Echo):
        def text(self, conn: Connection, data: bytes) -> None:
            conn.close(int(data), "because " + "ü" * 100)
            conn.send(b"unsent")
            conn.close(4999)

    async with serving({"/close": Closer}) as listener:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
            for code in (1000, 1001, 4000, 4001, 4502, 4999):
                async with http.ws_connect("/close") as ws:
                    await ws.send_str(str(code))
                    message = await ws.receive()
                    assert message.type is aiohttp.WSMsgType.CLOSE
                    assert (message.data, message.extra) == (code, "because " + "ü" * 57)
                    assert ws.close_code == code
        await until(lambda: not listener.connections)


async def test_the_client_closes_and_gets_its_code_back() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}) as listener:
        for payload, code in ((b"", 1000), ((4321).to_bytes(2, "big") + b"bye", 4321)):
            async with websocket(listener, "/noted") as client:
                await client.send(frame(CLOSE, payload) + frame(TEXT, b"unheard"))
                assert await client.close_code() == code
                assert await client.ended()
            await until(lambda: not listener.connections)
        assert echo.events == ["opened", "closed"] * 2
        assert echo.conns[0].closed
        assert not listener.counters.closed  # counts what we ended


async def test_endpoint_is_notified_once_of_a_broken_connection() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}) as listener, websocket(listener, "/noted") as client:
        client.writer.transport.abort()
        await until(lambda: not listener.connections)
        assert echo.events == ["opened", "closed"]
        echo.conns[0].send(b"into the void")
        echo.conns[0].close(4000)
        assert echo.events == ["opened", "closed"]


async def test_endpoint_is_notified_of_a_close_at_once_although_the_peer_lingers() -> None:
    echo = Echo()
    async with serving({"/noted": lambda: echo}, close_timeout_s=0.2) as listener:
        async with websocket(listener, "/noted") as client:
            (conn,) = echo.conns
            conn.close(4000)
            assert conn.closed
            assert echo.events == ["opened"]  # not from inside the call
            await asyncio.sleep(0)
            assert echo.events == ["opened", "closed"]
            assert listener.connections == {conn}
            await client.send(frame(TEXT, b"unheard"))
            await until(lambda: not listener.connections)  # though the client has not closed its half
            assert echo.events == ["opened", "closed"]


@pytest.mark.parametrize("where", ["opened", "text", "binary"])
async def test_exception_in_an_endpoint_closes_only_its_connection(where: str) -> None:
    class Faulty(Echo):
        def opened(self, conn: Connection) -> None:
            self.fault("opened")

        def text(self, conn: Connection, data: bytes) -> None:
            self.fault("text")

        def binary(self, conn: Connection, data: bytes) -> None:
            self.fault("binary")

        def closed(self, conn: Connection) -> None:
            raise RuntimeError("even here")

        def fault(self, here: str) -> None:
            if here == where:
                raise RuntimeError("a bug")

    async with serving({"/faulty": Faulty}) as listener, websocket(listener) as other:
        async with websocket(listener, "/faulty") as client:
            await client.send(frame(TEXT, b"a") + frame(BINARY, b"b"))
            assert await client.close_code() == 1011
        await until(lambda: listener.counters.endpoint_errors == 2)
        await other.send(frame(TEXT, b"works"))
        assert await other.message() == b"works"


# --- helpers of these tests ---


def _slow(listener: Listener) -> AbstractAsyncContextManager[RawClient]:
    return connected(listener, receive_bytes=4096)


async def _push(client: RawClient, data: bytes, times: int) -> None:
    for _ in range(times):
        await client.send(data)


async def _cut_off(push: "asyncio.Task[None]") -> None:
    try:
        await push
    except ConnectionError:
        pass
