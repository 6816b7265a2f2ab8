import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from dragoman.client.link import Closed, Frame, Link
from unit.node.test_link import slow_server


class Echo(WSListener):
    """Says back what it hears, in two frames; `bye` makes it close, `deaf` makes it stop reading."""

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
async def linked(heard: asyncio.Queue[bytes]) -> AsyncIterator[Link]:
    echo = Echo()
    server = await ws_create_server(lambda request: echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(10):
        link = await Link.open(f"ws://127.0.0.1:{port}/", heard.put_nowait, timeout_s=5)
        try:
            yield link
        finally:
            await link.close()
            server.close()
            echo.transport.disconnect(graceful=False)
            await echo.transport.wait_disconnected()


async def test_messages_of_both_kinds_go_out_and_come_back_whole() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    async with linked(heard) as link:
        link.send(Frame(b"hello"))
        link.send(Frame(b"\x00\x01\x02\x03", binary=True))
        assert [await heard.get(), await heard.get()] == [b"hello", b"\x00\x01\x02\x03"]


@pytest.mark.parametrize(
    ("word", "closed"), [(b"bye", Closed(4003, "full")), (b"die", Closed(1006, "the connection was lost"))]
)
async def test_the_end_of_a_link_says_why(word: bytes, closed: Closed) -> None:
    async with linked(asyncio.Queue()) as link:
        link.send(Frame(word))
        assert await link.closed == closed


async def test_hanging_up_is_said_and_answered() -> None:
    async with linked(asyncio.Queue()) as link:
        link.hang_up()
        link.hang_up()
        assert (await link.closed).code == 1000


async def test_a_server_that_does_not_answer_a_goodbye_is_left_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.client.link._GOODBYE_S", 0.01)
    async with linked(asyncio.Queue()) as link:
        link.send(Frame(b"deaf"))
        await link.close()
        assert link.closed.done()


async def test_a_link_is_not_writable_while_the_server_does_not_read() -> None:
    async with linked(asyncio.Queue()) as link:
        link.send(Frame(b"deaf"))
        while link.writable.is_set():
            link.send(Frame(bytes(100_000), binary=True))
            await asyncio.sleep(0)
        link.abort()
        await link.writable.wait()
        await link.closed


async def test_what_is_sent_after_the_end_goes_nowhere() -> None:
    async with linked(asyncio.Queue()) as link:
        link.abort()
        await link.closed
        link.send(Frame(b"hello?"))
        link.abort()
        await link.close()


async def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    answers = asyncio.Event()
    async with slow_server(answers) as (url, _, gone):
        with pytest.raises(TimeoutError):
            await Link.open(url, lambda _: None, timeout_s=0.02)
        answers.set()
        await gone.wait()


async def test_a_link_nobody_waits_for_any_more_is_closed_when_it_opens() -> None:
    answers = asyncio.Event()
    async with slow_server(answers) as (url, asked, gone):
        opening = asyncio.ensure_future(Link.open(url, lambda _: None, timeout_s=60))
        await asked.wait()
        opening.cancel()
        await asyncio.wait({opening})
        answers.set()
        await gone.wait()
