import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from dragoman.node.link import Closed, Link


class Echo(WSListener):
    """Says back what it hears; `bye` makes it close."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            text = frame.get_payload_as_bytes()
            if text == b"bye":
                transport.send_close(4003, b"full")  # type: ignore[arg-type]  # takes any code
            elif text == b"die":
                transport.disconnect(graceful=False)
            else:
                transport.send(WSMsgType.TEXT, text[:2], fin=False)
                transport.send(WSMsgType.CONTINUATION, text[2:])
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()


class Ear:
    def __init__(self) -> None:
        self.heard: asyncio.Queue[bytes | int] = asyncio.Queue()


@asynccontextmanager
async def linked(ear: Ear) -> AsyncIterator[Link]:
    server = await ws_create_server(lambda request: Echo(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(10):
        link = await Link.open(f"ws://127.0.0.1:{port}/", ear.heard.put_nowait, ear.heard.put_nowait, timeout_s=5)
        try:
            yield link
        finally:
            await link.close()
            server.close()


def test_a_message_in_two_frames_is_heard_as_one() -> None:
    async def scenario() -> None:
        ear = Ear()
        async with linked(ear) as link:
            link.send(b"hello")
            link.send(b"again")
            assert [await ear.heard.get(), await ear.heard.get()] == [b"hello", b"again"]

    asyncio.run(scenario())


def test_a_mark_comes_back_after_what_was_sent_before_it() -> None:
    async def scenario() -> None:
        ear = Ear()
        async with linked(ear) as link:
            link.send(b"hello")
            link.ask_read(7)
            assert [await ear.heard.get(), await ear.heard.get()] == [b"hello", 7]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("word", "closed"), [(b"bye", Closed(4003, "full")), (b"die", Closed(1006, "the connection was lost"))]
)
def test_the_end_of_a_link_says_why(word: bytes, closed: Closed) -> None:
    async def scenario() -> None:
        async with linked(Ear()) as link:
            link.send(word)
            assert await link.closed == closed

    asyncio.run(scenario())


def test_what_is_sent_after_the_end_goes_nowhere() -> None:
    async def scenario() -> None:
        async with linked(Ear()) as link:
            link.abort()
            await link.closed
            link.send(b"hello?")
            link.ask_read(1)
            link.abort()
            await link.close()

    asyncio.run(scenario())


@asynccontextmanager
async def slow_server(answers: asyncio.Event) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """Takes connections, and answers the handshake when it is told to. Its events: asked, gone."""
    gone = asyncio.Event()
    asked = asyncio.Event()

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


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    async def scenario() -> None:
        answers = asyncio.Event()
        async with slow_server(answers) as (url, _, gone):
            with pytest.raises(TimeoutError):
                await Link.open(url, lambda _: None, lambda _: None, timeout_s=0.02)
            answers.set()
            await gone.wait()

    asyncio.run(scenario())


def test_a_link_nobody_waits_for_any_more_is_closed_when_it_opens() -> None:
    async def scenario() -> None:
        answers = asyncio.Event()
        async with slow_server(answers) as (url, asked, gone):
            opening = asyncio.ensure_future(Link.open(url, lambda _: None, lambda _: None, timeout_s=60))
            await asked.wait()
            opening.cancel()
            await asyncio.wait({opening})
            answers.set()
            await gone.wait()

    asyncio.run(scenario())
