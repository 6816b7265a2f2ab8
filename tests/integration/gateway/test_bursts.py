"""Who says a lot at once: received whole and in order, and a few messages at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dragoman.gateway import Connection
from dragoman.protocol.codes import Close
from support.gateway import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawClient,
    frame,
    serving,
    until,
    websocket,
)
from support.waiting import ON_BOTH_LOOPS

pytestmark = ON_BOTH_LOOPS

MANY = 50
SENT = [b"%d" % number for number in range(MANY)]


@dataclass
class RecordingEndpoint:
    """Notes what it hears; does something about one of the messages."""

    received: list[bytes] = field(default_factory=list)
    at: bytes = b""
    do: Callable[[Connection], None] = lambda conn: None

    def opened(self, conn: Connection) -> None: ...

    def text(self, conn: Connection, data: bytes) -> None:
        self.received.append(data)
        if data == self.at:
            self.do(conn)

    def binary(self, conn: Connection, data: bytes) -> None:
        self.text(conn, data)

    def closed(self, conn: Connection) -> None:
        self.received.append(b"closed")


def at_once(client: RawClient, *frames: bytes) -> None:
    """In one piece, and all of it here before anybody looks."""
    client.writer.write(b"".join(frames))


def texts() -> list[bytes]:
    return [frame(TEXT, word) for word in SENT]


async def test_other_connections_have_their_turn_during_a_burst() -> None:
    endpoint = RecordingEndpoint()
    async with serving({"/record": lambda: endpoint}) as listener:
        async with websocket(listener, "/record") as sender, websocket(listener, "/record") as other:
            at_once(sender, *texts())
            at_once(other, frame(TEXT, b"me too"))
            await until(lambda: len(endpoint.received) == MANY + 1)
    received = endpoint.received[: MANY + 1]
    assert received.index(b"me too") < MANY // 2
    assert [word for word in received if word != b"me too"] == SENT


async def test_fragments_and_bytes_keep_their_place() -> None:
    endpoint = RecordingEndpoint()
    async with serving({"/record": lambda: endpoint}) as listener, websocket(listener, "/record") as sender:
        whole = [*SENT, b"in pieces", b"bytes", *SENT]
        for _ in range(3):
            pieces = frame(TEXT, b"in ", fin=False) + frame(PING, b"?") + frame(CONTINUATION, b"pieces")
            at_once(sender, *texts(), pieces, frame(BINARY, b"bytes"), *texts())
            await until(lambda: len(endpoint.received) >= len(whole))
            assert endpoint.received == whole
            endpoint.received.clear()


@pytest.mark.parametrize("leaves", [True, False], ids=["with a close", "without a word"])
async def test_frames_sent_before_a_disconnect_are_handled(leaves: bool) -> None:
    endpoint = RecordingEndpoint()
    async with serving({"/record": lambda: endpoint}) as listener:
        async with websocket(listener, "/record") as sender:
            at_once(sender, *texts(), *[frame(CLOSE, b"\x03\xe8")] * leaves)
        await until(lambda: not listener.connections)
    assert endpoint.received == [*SENT, b"closed"]


@pytest.mark.parametrize(
    ("limits", "fault", "code"),
    [
        ({"burst_frames": MANY, "max_frames_per_s": 1}, frame(TEXT, b"one too many"), Close.RATE),
        ({"max_frame_bytes": 2000}, frame(TEXT, bytes(3000)), Close.TOO_BIG),
        ({}, frame(TEXT, b"x", reserved=0x40), 1002),
        ({}, frame(CONTINUATION, b"x"), 1002),
        ({}, frame(0x3, b"x"), 1002),
    ],
    ids=["too many", "too large", "an extension", "a fragment", "no such frame"],
)
async def test_frames_before_a_protocol_error_are_handled(limits: dict[str, Any], fault: bytes, code: int) -> None:
    endpoint = RecordingEndpoint()
    async with (
        serving({"/record": lambda: endpoint}, **limits) as listener,
        websocket(listener, "/record") as sender,
    ):
        # picows looks one frame ahead, and what comes just before a frame that is none goes with it.
        at_once(sender, *texts(), frame(PONG), fault, *texts())
        assert await sender.close_code() == code
        await until(lambda: not listener.connections)
    assert endpoint.received == [*SENT, b"closed"]


async def test_pong_follows_the_answers_to_the_messages_before_the_ping() -> None:
    async with serving() as listener, websocket(listener) as sender:
        at_once(sender, *texts(), frame(PING, b"?"), frame(TEXT, b"after"))
        answers = [await sender.frame() for _ in range(MANY + 2)]
    assert answers == [*((TEXT, word) for word in SENT), (PONG, b"?"), (TEXT, b"after")]


async def test_frames_before_a_close_are_still_paced() -> None:
    endpoint = RecordingEndpoint()
    async with serving({"/record": lambda: endpoint}) as listener:
        async with websocket(listener, "/record") as sender, websocket(listener, "/record") as other:
            at_once(sender, *texts(), frame(CLOSE, b"\x03\xe8"))
            at_once(other, frame(TEXT, b"me too"))
            await until(lambda: b"closed" in endpoint.received)
    received = endpoint.received[: MANY + 2]
    assert received.index(b"me too") < MANY // 2
    assert [word for word in received if word != b"me too"] == [*SENT, b"closed"]


async def test_endless_sender_is_read_in_bounded_turns() -> None:
    endpoint = RecordingEndpoint()
    said = [b"%d" % number for number in range(20)]
    async with serving({"/record": lambda: endpoint}) as listener, websocket(listener, "/record") as sender:
        for word in said * 10:
            await sender.send(frame(TEXT, word.ljust(100_000)))
        await until(lambda: len(endpoint.received) == 200)
        assert [word.rstrip() for word in endpoint.received] == said * 10


async def test_no_frame_is_handled_after_the_close() -> None:
    endpoint = RecordingEndpoint(at=b"20", do=lambda conn: conn.close(Close.TIMEOUT))
    async with serving({"/record": lambda: endpoint}) as listener, websocket(listener, "/record") as sender:
        at_once(sender, *texts())
        assert await sender.close_code() == Close.TIMEOUT
        await until(lambda: not listener.connections)
    assert endpoint.received == [*SENT[:21], b"closed"]


async def test_paused_endpoint_gets_the_rest_of_the_turn_and_then_nothing_until_it_resumes() -> None:
    paused: list[Connection] = []

    def pause(conn: Connection) -> None:
        conn.pause_reading()
        paused.append(conn)

    endpoint = RecordingEndpoint(at=b"20", do=pause)
    async with serving({"/record": lambda: endpoint}) as listener, websocket(listener, "/record") as sender:
        at_once(sender, *texts())
        await until(lambda: len(endpoint.received) == MANY)
        await sender.send(frame(TEXT, b"later"))
        async with websocket(listener) as other:  # is received, so the loop has looked at what there is
            await other.send(frame(TEXT, b"now"))
            assert await other.message() == b"now"
        assert len(endpoint.received) == MANY
        paused[0].resume_reading()
        await until(lambda: endpoint.received[-1] == b"later")
