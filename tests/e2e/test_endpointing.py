"""A client streams everything, silence included; the server finds its utterances, also after a resume."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from dragoman.client import Event, Partial, Result, Resumed, Session
from dragoman.protocol.audio import encode_base64
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.cluster import Cluster, Speaker
from support.voice import RATE, silent, vowel
from support.waiting import wait_until

TIMEOUT_S = 60.0
HEARS: dict[str, Any] = {"audio_format": "pcm16", "sample_rate": RATE, "vad": "server"}


async def send(speaker: Speaker, seq: int, audio: bytes, *, final: bool = False) -> None:
    payload = bytes(encode_base64(audio)).decode().strip('"')
    await speaker.say("audio_chunk", session_id=speaker.session_id, seq=seq, is_final=final, payload=payload)


def audio_ms(result: dict[str, Any]) -> int:
    """How much audio the node had for it."""
    return int(result["extra"]["audio_ms"])


async def test_stream_with_silence_becomes_one_utterance_for_each_time_someone_speaks(cluster: Cluster) -> None:
    here = await cluster.instance()
    cluster.node(here)
    await wait_until(here.node_count, TIMEOUT_S)
    session = Session(
        f"ws://127.0.0.1:{here.port}/ws/session", src="en", tgt="es", audio_format="pcm16", sample_rate=RATE
    )
    stream = silent(1500) + vowel(800) + silent(900) + vowel(600) + silent(2000) + vowel(700)
    async with session:
        assert session.vad
        pieces = [stream[at : at + 3200] for at in range(0, len(stream), 3200)]
        results = [result async for result in session.translate(pieces, fast=True)]
    assert [result.index for result in results] == [0, 1, 2]
    lengths = [json.loads(bytes(result.message.extra))["audio_ms"] for result in results]
    assert sum(lengths) < 1600 + 1450 + 1000  # without the silence between them
    assert min(lengths) > 600


async def test_client_learns_what_finds_its_utterances(cluster: Cluster) -> None:
    here = await cluster.instance()
    for fields, vad in ((HEARS, "server"), (HEARS | {"audio_format": "opus"}, None), ({}, None)):
        async with aiohttp.ClientSession() as http:
            speaker = Speaker(await http.ws_connect(f"ws://127.0.0.1:{here.port}/ws/session"))
            assert (await speaker.init(**fields)).get("vad") == vad
            await speaker.say("session_init", client_version="t", platform="web", src_lang="en", tgt_lang="es", vad="x")
            refused = await speaker.until(lambda m: m["type"] == "error")
            assert (refused["code"], "`vad`" in refused["message"]) == ("INVALID_MESSAGE", True)


async def test_chunk_that_a_cut_split_is_continued_on_another_instance(cluster: Cluster) -> None:
    a, b = await cluster.instance(), await cluster.instance()
    cluster.node(b)
    for one in (a, b):
        await wait_until(one.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(a, resume=True, **HEARS)
    split = vowel(900) + silent(1200) + vowel(600)
    await send(speaker, 1, silent(400))
    await send(speaker, 2, split)
    first = await speaker.result(0, TIMEOUT_S)
    a.kill()
    again, ack = await cluster.resumed(speaker, b)
    assert (ack["vad"], ack["next_index"], ack["audio_seq"]) == ("server", 1, 1)
    await send(again, 2, split)
    await send(again, 3, silent(1000))
    second = await again.result(1, TIMEOUT_S)
    assert 1500 <= audio_ms(first) <= 1750  # 200 ms before it, and 500 ms after it
    assert 1200 <= audio_ms(second) <= 1450
    await send(again, 4, vowel(500), final=True)
    assert 450 <= audio_ms(await again.result(2, TIMEOUT_S)) <= 800


async def test_speaker_whose_instance_is_killed_in_mid_utterance_sees_its_words_again_and_has_the_whole_result(
    cluster: Cluster,
) -> None:
    a, b = await cluster.instance(), await cluster.instance()
    cluster.node(b)
    for one in (a, b):
        await wait_until(one.node_count, TIMEOUT_S)
    urls = [f"ws://127.0.0.1:{one.port}/ws/session" for one in (a, b)]
    seen: list[Event] = []
    session = Session(urls, src="en", tgt="es", audio_format="pcm16", sample_rate=RATE, vad=True, previews=True)

    def words() -> list[Partial]:
        return [event for event in seen if isinstance(event, Partial) and event.preview_id]

    async def speak_until(done: Callable[[], object]) -> int:
        chunks = 0
        while not done():
            await session.send(vowel(100))
            chunks += 1
            await asyncio.sleep(0.1)
        return chunks

    async def read() -> None:
        async for event in session:
            seen.append(event)

    async with session:
        reading = asyncio.create_task(read())
        spoken = await speak_until(words)
        a.kill()
        spoken += await speak_until(lambda: any(isinstance(event, Resumed) for event in seen))
        before = {one.preview_id for one in words()}
        spoken += await speak_until(lambda: {one.preview_id for one in words()} - before)
        await session.cut()
        await session.finish()
        await reading
    results = [at for at, event in enumerate(seen) if isinstance(event, Result)]
    said_ms = sum(json.loads(bytes(seen[at].message.extra))["audio_ms"] for at in results)  # type: ignore[union-attr]
    assert abs(said_ms - 100 * spoken) <= 100  # nothing of it is lost or doubled
    assert not [event for event in seen[results[-1] :] if isinstance(event, Partial)]


@pytest.mark.long
async def test_silence_need_not_be_sent_again_to_another_instance(cluster: Cluster, redis: Redis, keys: Keys) -> None:
    a, b = await cluster.instance(), await cluster.instance()
    cluster.node(b)
    await wait_until(b.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(a, resume=True, **HEARS)
    await send(speaker, 1, vowel(600) + silent(1000))
    await speaker.result(0, TIMEOUT_S)
    looks = 0

    async def silence_is_stored() -> bool:
        nonlocal looks
        looks += 1
        if looks % 16 == 1:  # a chunk at each look would be more frames than a client may send
            await send(speaker, 2 + looks // 16, silent(500))
        stored = await redis.call("HGET", keys.session_state(speaker.session_id), "audio_seq")
        return stored is not None and int(stored) > 2

    await wait_until(silence_is_stored, TIMEOUT_S)
    a.kill()
    _, ack = await cluster.resumed(speaker, b)
    assert ack["audio_seq"] > 2
