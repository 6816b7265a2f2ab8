"""Frames that are too large, too many, or none: the connection is closed with a code that says why."""

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from dragoman.tools.bench.abuse.attack import NO_CLOSE_FRAME, Answers, Attack, Target, expected
from dragoman.tools.bench.abuse.messages import utterance
from dragoman.tools.bench.abuse.raw_client import (
    CONTINUATION,
    PING,
    TEXT,
    Disconnected,
    RawClient,
    frame,
    tcp,
    upgrade,
    websocket,
)

PATHS = ("/ws/session", "/ws/node", "/ws")
HUGE_BYTES = 100_000_000
PIECE = bytes(60_000)
BATCH = 1000
UNREAD = 12
TAKEN_BYTES = 1 << 17  # that wait with who does not read; if fewer, it is sent what it is sent in thousands of packets
# The rest of a result, in a frame that is made once: what an attacker has to do for it is not to be felt here.
LOUD = frame(
    CONTINUATION, b'"text_asr":"loud","text_translated":"loud","tts_format":"opus","tts_audio":"%b"}' % (b"A" * 400_000)
)
BROKEN = (
    frame(TEXT, b"{}", masked=False),
    frame(0x3, b"x"),
    frame(0x7, b"x"),
    frame(0xB, b"x"),
    frame(PING, b"x", fin=False),
    frame(PING, bytes(126)),
    frame(CONTINUATION, b"x"),
    frame(TEXT, b"x", fin=False) + frame(TEXT, b"x"),
    frame(TEXT, b"x", reserved=0x40),
    frame(TEXT, b"x", reserved=0x20),
    frame(TEXT, b"x", reserved=0x10),
)


async def pour(client: RawClient, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        await client.write(piece)


async def poured(client: RawClient, pieces: Iterable[bytes]) -> str:
    """Pour until it is closed; with which code."""
    pouring = asyncio.create_task(pour(client, pieces))
    try:
        return await client.closed()
    finally:
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)


async def huge_frame(target: Target) -> Answers:
    """Announced, and then sent in full."""
    seen: Answers = Counter()
    for path in PATHS:
        async with websocket(target.port, path) as client:
            await client.write(frame(TEXT, b"", announce=HUGE_BYTES))
            seen[await poured(client, (PIECE for _ in range(HUGE_BYTES // len(PIECE))))] += 1
    return seen


async def huge_pieces(target: Target) -> Answers:
    seen: Answers = Counter()
    first, more = frame(TEXT, PIECE, fin=False), frame(CONTINUATION, PIECE, fin=False)
    for path in PATHS:
        async with websocket(target.port, path) as client:
            await client.write(first)
            seen[await poured(client, (more for _ in range(HUGE_BYTES // len(PIECE))))] += 1
    return seen


async def tiny_frames(target: Target) -> Answers:
    """So many to each: texts to a session, pings to one, and PINGs to chat."""
    seen: Answers = Counter()
    rounds = target.scale.frames // BATCH
    async with target.session() as (client, _):
        seen[await poured(client, (frame(TEXT, b"{}") * BATCH for _ in range(rounds)))] += 1
    async with target.session() as (client, _):
        seen[await poured(client, (frame(PING, b"") * BATCH for _ in range(rounds)))] += 1
    async with target.chat_user() as client:
        seen[await poured(client, (frame(TEXT, b'{"type":"PING"}') * BATCH for _ in range(rounds)))] += 1
    return seen


async def broken_frames(target: Target) -> Answers:
    """No mask, opcodes nobody has defined, control frames in pieces, bits of extensions."""
    seen: Answers = Counter()
    for path in PATHS:
        for data in BROKEN:
            async with websocket(target.port, path) as client:
                await client.write(data)
                seen[await client.closed()] += 1
    return seen


async def compressed(target: Target) -> Answers:
    """Compression is not negotiated, however it is asked for, and what comes compressed is not inflated."""
    seen: Answers = Counter()
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-webkit-deflate-frame"
    bomb = zlib.compress(bytes(20_000_000))
    for path in PATHS:
        async with tcp(target.port) as client:
            await client.write(upgrade(path, offer))
            status, head = await client.head()
            seen["negotiated" if "xtensions" in head else f"HTTP {status}"] += 1
            await client.write(frame(TEXT, bomb, reserved=0x40))
            seen[await client.closed()] += 1
    return seen


async def half_open(target: Target) -> Answers:
    """They go in the middle: of the request, right after it, within a frame, within a message."""
    seen: Answers = Counter()
    beginnings = (frame(TEXT, b"x" * 100)[:1], frame(TEXT, b"x" * 200)[:3], frame(TEXT, b"x" * 100)[:20])
    for _ in range(target.scale.many):
        for path in PATHS:
            async with tcp(target.port) as client:
                await client.write(upgrade(path)[:40])
            async with tcp(target.port) as client:
                await client.write(upgrade(path))
            for begun in (*beginnings, frame(TEXT, b"x", fin=False)):
                async with websocket(target.port, path) as client:
                    await client.write(begun)
                    seen["HTTP 101"] += 1
    return seen


async def unfinished(target: Target) -> Answers:
    """All but the last byte of the largest frame, from many who have not said who they are and then say no more."""
    answers = await asyncio.gather(*(_but_the_last(target.port, PATHS[n % 3]) for n in range(target.scale.many)))
    return Counter(answers)


async def _but_the_last(port: int, path: str) -> str:
    size = 60_000 if path == "/ws" else 1_000_000
    async with websocket(port, path) as client:
        await client.write(frame(TEXT, bytes(size))[:-1])
        return await client.closed()


async def early_words(target: Target) -> Answers:
    """Results by the megabyte from nodes that have not registered."""
    seen: Answers = Counter()
    about = {"job_id": "j", "attempt_id": 1, "node_id": "n", "session_id": "s", "trace_id": "t", "utterance_index": 0}
    text = json.dumps({"type": "job_result", **about, "success": True, "tts_audio": "A" * 900_000}).encode()
    for _ in range(target.scale.many // 10):
        async with websocket(target.port, "/ws/node") as client:
            seen[await poured(client, (frame(TEXT, text) for _ in range(64)))] += 1
    return seen


async def never_reads(target: Target) -> Answers:
    """A session whose own node answers loudly, and that does not listen."""
    seen: Answers = Counter()
    async with (
        target.node() as (node, name),
        websocket(target.port, "/ws/session", receive_bytes=TAKEN_BYTES) as client,
    ):
        await client.send(target.init())
        session = (await client.wait_for("session_init_ack"))["session_id"]
        working = asyncio.create_task(_answer_loudly(node, name))
        try:
            for index in range(UNREAD):
                await client.send(utterance(session, index))
            await working
            seen[await client.closed()] += 1
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    return seen


async def _answer_loudly(node: RawClient, name: str) -> None:
    """Until every buffer on the way is full and the server ends the session, which cancels the last job."""
    with suppress(Disconnected, TimeoutError):
        for index in range(UNREAD):
            job = await node.wait_for("job_assign", "job_cancel")
            if job["type"] != "job_assign":
                return
            if index < UNREAD - 1:
                about = {key: job[key] for key in ("job_id", "attempt_id", "session_id", "trace_id", "utterance_index")}
                result = json.dumps({"type": "job_result", "node_id": name, "success": True, **about})
                await node.write(frame(TEXT, f"{result[:-1]},".encode(), fin=False) + LOUD)
        await node.wait_for("job_cancel")


ATTACKS = (
    Attack("huge_frame", "a frame of 100 MB", huge_frame, expected("closed 4502"), NO_CLOSE_FRAME),
    Attack("huge_pieces", "a message of 100 MB in fragments", huge_pieces, expected("closed 4502"), NO_CLOSE_FRAME),
    Attack("tiny_frames", "a million tiny frames", tiny_frames, expected("closed 4006"), NO_CLOSE_FRAME),
    Attack("broken_frames", "frames that violate the protocol", broken_frames, expected("closed 1002")),
    Attack(
        "compressed", "compression, requested and used unnegotiated", compressed, expected("HTTP 101", "closed 1002")
    ),
    Attack("half_open", "connections reset in the middle of a frame", half_open, expected("HTTP 101")),
    Attack(
        "unfinished",
        "all but the last byte of a large frame",
        unfinished,
        expected("closed 4002", "closed 4005", "closed 4501"),
        expected("closed 4003") | NO_CLOSE_FRAME,
    ),
    Attack(
        "early_words",
        "megabytes from a node that never registers",
        early_words,
        expected("closed 4005"),
        NO_CLOSE_FRAME,
    ),
    Attack(
        "never_reads", "a client that never reads", never_reads, expected(), expected("closed 4001") | NO_CLOSE_FRAME
    ),
)
