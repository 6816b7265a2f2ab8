"""Who says a lot at once: heard whole and in order, and a few messages at a time."""

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
    Run,
    frame,
    serving,
    until,
    websocket,
)

MANY = 50
SAID = [b"%d" % number for number in range(MANY)]


@dataclass
class Ear:
    """Notes what it hears; does something about one of the messages."""

    heard: list[bytes] = field(default_factory=list)
    at: bytes = b""
    do: Callable[[Connection], None] = lambda conn: None

    def opened(self, conn: Connection) -> None: ...

    def text(self, conn: Connection, data: bytes) -> None:
        self.heard.append(data)
        if data == self.at:
            self.do(conn)

    def binary(self, conn: Connection, data: bytes) -> None:
        self.text(conn, data)

    def closed(self, conn: Connection) -> None:
        self.heard.append(b"closed")


def at_once(client: RawClient, *frames: bytes) -> None:
    """In one piece, and all of it here before anybody looks."""
    client.writer.write(b"".join(frames))


def texts() -> list[bytes]:
    return [frame(TEXT, word) for word in SAID]


def test_others_have_their_turn_in_between(run: Run) -> None:
    async def main() -> None:
        ear = Ear()
        async with serving({"/ear": lambda: ear}) as listener:
            async with websocket(listener, "/ear") as talker, websocket(listener, "/ear") as other:
                at_once(talker, *texts())
                at_once(other, frame(TEXT, b"me too"))
                await until(lambda: len(ear.heard) == MANY + 1)
        heard = ear.heard[: MANY + 1]
        assert heard.index(b"me too") < MANY // 2
        assert [word for word in heard if word != b"me too"] == SAID

    run(main)


def test_fragments_and_bytes_keep_their_place(run: Run) -> None:
    async def main() -> None:
        ear = Ear()
        async with serving({"/ear": lambda: ear}) as listener, websocket(listener, "/ear") as talker:
            whole = [*SAID, b"in pieces", b"bytes", *SAID]
            for _ in range(3):
                pieces = frame(TEXT, b"in ", fin=False) + frame(PING, b"?") + frame(CONTINUATION, b"pieces")
                at_once(talker, *texts(), pieces, frame(BINARY, b"bytes"), *texts())
                await until(lambda: len(ear.heard) >= len(whole))
                assert ear.heard == whole
                ear.heard.clear()

    run(main)


@pytest.mark.parametrize("leaves", [True, False], ids=["with a close", "without a word"])
def test_frames_sent_before_a_disconnect_are_handled(run: Run, leaves: bool) -> None:
    async def main() -> None:
        ear = Ear()
        async with serving({"/ear": lambda: ear}) as listener:
            async with websocket(listener, "/ear") as talker:
                at_once(talker, *texts(), *[frame(CLOSE, b"\x03\xe8")] * leaves)
            await until(lambda: not listener.connections)
        assert ear.heard == [*SAID, b"closed"]

    run(main)


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
def test_frames_before_a_protocol_error_are_handled(run: Run, limits: dict[str, Any], fault: bytes, code: int) -> None:
    async def main() -> None:
        ear = Ear()
        async with serving({"/ear": lambda: ear}, **limits) as listener, websocket(listener, "/ear") as talker:
            # picows looks one frame ahead, and what comes just before a frame that is none goes with it.
            at_once(talker, *texts(), frame(PONG), fault, *texts())
            assert await talker.close_code() == code
            await until(lambda: not listener.connections)
        assert ear.heard == [*SAID, b"closed"]

    run(main)


def test_a_pong_comes_behind_the_answers_to_what_was_said_before_the_ping(run: Run) -> None:
    async def main() -> None:
        async with serving() as listener, websocket(listener) as talker:
            at_once(talker, *texts(), frame(PING, b"?"), frame(TEXT, b"after"))
            answers = [await talker.frame() for _ in range(MANY + 2)]
        assert answers == [*((TEXT, word) for word in SAID), (PONG, b"?"), (TEXT, b"after")]

    run(main)


def test_frames_before_a_close_are_still_paced(run: Run) -> None:
    async def main() -> None:
        ear = Ear()
        async with serving({"/ear": lambda: ear}) as listener:
            async with websocket(listener, "/ear") as talker, websocket(listener, "/ear") as other:
                at_once(talker, *texts(), frame(CLOSE, b"\x03\xe8"))
                at_once(other, frame(TEXT, b"me too"))
                await until(lambda: b"closed" in ear.heard)
        heard = ear.heard[: MANY + 2]
        assert heard.index(b"me too") < MANY // 2
        assert [word for word in heard if word != b"me too"] == [*SAID, b"closed"]

    run(main)


def test_endless_sender_is_read_in_bounded_turns(run: Run) -> None:
    async def main() -> None:
        ear = Ear()
        said = [b"%d" % number for number in range(20)]
        async with serving({"/ear": lambda: ear}) as listener, websocket(listener, "/ear") as talker:
            for word in said * 10:
                await talker.send(frame(TEXT, word.ljust(100_000)))
            await until(lambda: len(ear.heard) == 200)
            assert [word.rstrip() for word in ear.heard] == said * 10

    run(main)


def test_no_frame_is_handled_after_the_close(run: Run) -> None:
    async def main() -> None:
        ear = Ear(at=b"20", do=lambda conn: conn.close(Close.TIMEOUT))
        async with serving({"/ear": lambda: ear}) as listener, websocket(listener, "/ear") as talker:
            at_once(talker, *texts())
            assert await talker.close_code() == Close.TIMEOUT
            await until(lambda: not listener.connections)
        assert ear.heard == [*SAID[:21], b"closed"]

    run(main)


def test_paused_endpoint_gets_the_rest_of_the_turn_and_then_nothing_until_it_resumes(run: Run) -> None:
    async def main() -> None:
        paused: list[Connection] = []

        def pause(conn: Connection) -> None:
            conn.pause_reading()
            paused.append(conn)

        ear = Ear(at=b"20", do=pause)
        async with serving({"/ear": lambda: ear}) as listener, websocket(listener, "/ear") as talker:
            at_once(talker, *texts())
            await until(lambda: len(ear.heard) == MANY)
            await talker.send(frame(TEXT, b"later"))
            async with websocket(listener) as other:  # is heard, so the loop has looked at what there is
                await other.send(frame(TEXT, b"now"))
                assert await other.message() == b"now"
            assert len(ear.heard) == MANY
            paused[0].resume_reading()
            await until(lambda: ear.heard[-1] == b"later")

    run(main)
