"""Frames that are too large, too many, or none: the connection is closed with a code that says why."""

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from dragoman.tools.bench.abuse.attack import CUT_OFF, Answers, Attack, Scene, good
from dragoman.tools.bench.abuse.messages import utterance
from dragoman.tools.bench.abuse.raw_client import CONTINUATION, PING, TEXT, Ended, Wire, frame, tcp, upgrade, websocket

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


async def pour(wire: Wire, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        await wire.write(piece)


async def poured(wire: Wire, pieces: Iterable[bytes]) -> str:
    """Pour until it is closed; with which code."""
    pouring = asyncio.create_task(pour(wire, pieces))
    try:
        return await wire.closed()
    finally:
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)


async def huge_frame(scene: Scene) -> Answers:
    """Announced, and then sent in full."""
    seen: Answers = Counter()
    for path in PATHS:
        async with websocket(scene.port, path) as wire:
            await wire.write(frame(TEXT, b"", announce=HUGE_BYTES))
            seen[await poured(wire, (PIECE for _ in range(HUGE_BYTES // len(PIECE))))] += 1
    return seen


async def huge_pieces(scene: Scene) -> Answers:
    seen: Answers = Counter()
    first, more = frame(TEXT, PIECE, fin=False), frame(CONTINUATION, PIECE, fin=False)
    for path in PATHS:
        async with websocket(scene.port, path) as wire:
            await wire.write(first)
            seen[await poured(wire, (more for _ in range(HUGE_BYTES // len(PIECE))))] += 1
    return seen


async def tiny_frames(scene: Scene) -> Answers:
    """So many to each: texts to a session, pings to one, and PINGs to chat."""
    seen: Answers = Counter()
    rounds = scene.scale.frames // BATCH
    async with scene.session() as (wire, _):
        seen[await poured(wire, (frame(TEXT, b"{}") * BATCH for _ in range(rounds)))] += 1
    async with scene.session() as (wire, _):
        seen[await poured(wire, (frame(PING, b"") * BATCH for _ in range(rounds)))] += 1
    async with scene.chatter() as wire:
        seen[await poured(wire, (frame(TEXT, b'{"type":"PING"}') * BATCH for _ in range(rounds)))] += 1
    return seen


async def broken_frames(scene: Scene) -> Answers:
    """No mask, opcodes nobody has defined, control frames in pieces, bits of extensions."""
    seen: Answers = Counter()
    for path in PATHS:
        for data in BROKEN:
            async with websocket(scene.port, path) as wire:
                await wire.write(data)
                seen[await wire.closed()] += 1
    return seen


async def compressed(scene: Scene) -> Answers:
    """Compression is not negotiated, however it is asked for, and what comes compressed is not inflated."""
    seen: Answers = Counter()
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-webkit-deflate-frame"
    bomb = zlib.compress(bytes(20_000_000))
    for path in PATHS:
        async with tcp(scene.port) as wire:
            await wire.write(upgrade(path, offer))
            status, head = await wire.head()
            seen["negotiated" if "xtensions" in head else f"HTTP {status}"] += 1
            await wire.write(frame(TEXT, bomb, reserved=0x40))
            seen[await wire.closed()] += 1
    return seen


async def half_open(scene: Scene) -> Answers:
    """They go in the middle: of the request, right after it, within a frame, within a message."""
    seen: Answers = Counter()
    beginnings = (frame(TEXT, b"x" * 100)[:1], frame(TEXT, b"x" * 200)[:3], frame(TEXT, b"x" * 100)[:20])
    for _ in range(scene.scale.crowd):
        for path in PATHS:
            async with tcp(scene.port) as wire:
                await wire.write(upgrade(path)[:40])
            async with tcp(scene.port) as wire:
                await wire.write(upgrade(path))
            for begun in (*beginnings, frame(TEXT, b"x", fin=False)):
                async with websocket(scene.port, path) as wire:
                    await wire.write(begun)
                    seen["HTTP 101"] += 1
    return seen


async def unfinished(scene: Scene) -> Answers:
    """All but the last byte of the largest frame, from many who have not said who they are and then say no more."""
    told = await asyncio.gather(*(_but_the_last(scene.port, PATHS[n % 3]) for n in range(scene.scale.crowd)))
    return Counter(told)


async def _but_the_last(port: int, path: str) -> str:
    size = 60_000 if path == "/ws" else 1_000_000
    async with websocket(port, path) as wire:
        await wire.write(frame(TEXT, bytes(size))[:-1])
        return await wire.closed()


async def early_words(scene: Scene) -> Answers:
    """Results by the megabyte from nodes that have not registered."""
    seen: Answers = Counter()
    about = {"job_id": "j", "attempt_id": 1, "node_id": "n", "session_id": "s", "trace_id": "t", "utterance_index": 0}
    text = json.dumps({"type": "job_result", **about, "success": True, "tts_audio": "A" * 900_000}).encode()
    for _ in range(scene.scale.crowd // 10):
        async with websocket(scene.port, "/ws/node") as wire:
            seen[await poured(wire, (frame(TEXT, text) for _ in range(64)))] += 1
    return seen


async def never_reads(scene: Scene) -> Answers:
    """A session whose own node answers loudly, and that does not listen."""
    seen: Answers = Counter()
    async with scene.node() as (node, name), websocket(scene.port, "/ws/session", receive_bytes=TAKEN_BYTES) as wire:
        await wire.say(scene.init())
        session = (await wire.until("session_init_ack"))["session_id"]
        working = asyncio.create_task(_answer_loudly(node, name))
        try:
            for index in range(UNREAD):
                await wire.say(utterance(session, index))
            await working
            seen[await wire.closed()] += 1
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    return seen


async def _answer_loudly(node: Wire, name: str) -> None:
    """Until every buffer on the way is full, and the session is given up: who waits for the last answer is told."""
    with suppress(Ended, TimeoutError):
        for index in range(UNREAD):
            job = await node.until("job_assign", "job_cancel")
            if job["type"] != "job_assign":
                return
            if index < UNREAD - 1:
                about = {key: job[key] for key in ("job_id", "attempt_id", "session_id", "trace_id", "utterance_index")}
                result = json.dumps({"type": "job_result", "node_id": name, "success": True, **about})
                await node.write(frame(TEXT, f"{result[:-1]},".encode(), fin=False) + LOUD)
        await node.until("job_cancel")


ATTACKS = (
    Attack("huge_frame", "a frame of 100 MB", huge_frame, good("closed 4502"), CUT_OFF),
    Attack("huge_pieces", "a message of 100 MB in pieces", huge_pieces, good("closed 4502"), CUT_OFF),
    Attack("tiny_frames", "a million tiny frames", tiny_frames, good("closed 4006"), CUT_OFF),
    Attack("broken_frames", "frames against the protocol", broken_frames, good("closed 1002")),
    Attack("compressed", "compression, asked for and used unasked", compressed, good("HTTP 101", "closed 1002")),
    Attack("half_open", "gone in the middle of something", half_open, good("HTTP 101")),
    Attack(
        "unfinished",
        "all but the last byte of a large frame",
        unfinished,
        good("closed 4002", "closed 4005", "closed 4501"),
        good("closed 4003") | CUT_OFF,
    ),
    Attack("early_words", "megabytes of a node that never registers", early_words, good("closed 4005"), CUT_OFF),
    Attack("never_reads", "a client that never reads", never_reads, good(), good("closed 4001") | CUT_OFF),
)
