"""The client SDK against real instances and nodes: files, utterances, and connections that break."""

import asyncio
import io
import signal
import time
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import jwt
import msgspec
import pytest

from dragoman.client import Failed, Renewed, Result, Resumed, Session, SessionError, SessionLost, Timing, Transcript
from dragoman.protocol.audio import opus_run
from dragoman.tools.processes import InstanceProcess
from support.cluster import SPOKEN_PACKET, Cluster, running
from support.redis_servers import RedisAt
from support.waiting import wait_until

TIMEOUT_S = 60.0
QUICK = Timing(backoff_first_s=0.02, backoff_longest_s=0.2, heartbeat_s=0.2)


@asynccontextmanager
async def environment(
    redis: RedisAt, folder: Path, instances: int = 1, node: dict[str, object] | None = None, **flags: object
) -> AsyncIterator[tuple[Cluster, list[InstanceProcess]]]:
    """Instances, and a node that dials in to whichever lives."""
    async with running(redis, folder) as cluster:
        here = [await cluster.instance(**flags) for _ in range(instances)]
        cluster.node(*reversed(here), **node or {})
        for one in here:
            await wait_until(one.node_count, TIMEOUT_S)
        yield cluster, here


# Nobody dies. A node that is missing is known at once; one that a busy machine keeps for seconds is not missing.
UNHURRIED: dict[str, object] = {
    "scheduler__phase2__instance_presence_ttl_seconds": 10,
    "speech__placement_wait_ms": 50,
    "speech__job_ack_timeout_ms": 25_000,
    "speech__attempt_timeout_ms": 25_000,
}


@pytest.fixture(scope="module")
def here(redis_server: RedisAt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceProcess]:
    """An instance with a node, for the tests that break nothing."""
    with asyncio.Runner() as runner, ExitStack() as ends:
        flags: dict[str, object] = UNHURRIED | {"speech__max_duration_ms": 2000}
        standing = environment(redis_server, tmp_path_factory.mktemp("here"), **flags)  # type: ignore[arg-type]
        _, (instance,) = runner.run(standing.__aenter__())
        ends.callback(lambda: runner.run(standing.__aexit__(None, None, None)))
        yield instance


def session_at(*instances: InstanceProcess, **options: Any) -> Session:
    urls = [f"ws://127.0.0.1:{one.port}/ws/session" for one in instances]
    defaults: dict[str, Any] = {"src": "en", "tgt": "es", "timing": QUICK}
    return Session(urls, **defaults | options)


def audio_ms(result: Result) -> int:
    """How much audio the node had for it."""
    return int(msgspec.json.decode(result.message.extra)["audio_ms"])


def run_of(packets: int) -> bytes:
    return opus_run([SPOKEN_PACKET] * packets)


def cut_off(session: Session) -> None:
    """The connection is gone without a word."""
    if session.socket is not None:
        session.socket.abort()


async def back(session: Session) -> Resumed | Renewed:
    async for event in session:
        if isinstance(event, Resumed | Renewed):
            return event
    raise AssertionError("the session is over")


def wav_of(pcm: bytes, rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(pcm)
    return file.getvalue()


# ---------------------------------------------------------------- speaking


async def test_client_streams_a_file_and_gets_every_translation(here: InstanceProcess, tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(wav_of(bytes(80_000), 8000))
    async with session_at(here, vad=False) as session:
        results = [result async for result in session.stream_file(path, fast=True)]
    assert [result.index for result in results] == [0, 1, 2]
    assert sum(map(audio_ms, results)) == 5000
    assert results[0].text_translated == f"[es] utterance 0 of {session.id}"
    assert results[0].tts_audio
    await wait_until(lambda: _has_sessions(here, 0), TIMEOUT_S)


async def _has_sessions(instance: InstanceProcess, count: int) -> bool:
    return bool((await instance.get("/api/v1/stats"))["sessions"] == count)


async def test_manual_cut_is_between_exactly_these_chunks(here: InstanceProcess) -> None:
    async with session_at(here) as session:
        for packets in (13, 20, 5):
            await session.send(run_of(packets))
            await session.cut()
        results = session.results()
        heard = [await anext(results) for _ in range(3)]
    assert [audio_ms(result) for result in heard] == [260, 400, 100]


async def test_numbered_utterances_of_both_formats_are_shown_in_order(here: InstanceProcess) -> None:
    async with session_at(here) as session:
        for index in range(6):
            if index % 2:
                await session.utterance(bytes(3200 * index), audio_format="pcm16")
            else:
                await session.utterance(run_of(5 * index + 1))
        await session.finish()
        transcript = Transcript()
        async for event in session:
            transcript.add(event)
    heard = [audio_ms(line.result) for line in transcript.lines if line.result is not None]
    assert heard == [100 * index if index % 2 else 100 * index + 20 for index in range(6)]


async def test_client_gets_an_error_for_a_pair_that_no_node_serves(here: InstanceProcess) -> None:
    async with session_at(here, tgt="fr") as session:
        await session.utterance(run_of(5))
        with pytest.raises(SessionError, match="utterance 0: no node for this job") as error:
            await anext(session.results())
        assert (error.value.index, error.value.code) == (0, "NO_AVAILABLE_NODE")


async def test_a_token_is_needed_where_a_secret_is_set(redis_server: RedisAt, tmp_path: Path) -> None:
    secret = "an open secret of thirty-two bytes"
    claims = {"iss": "dragoman", "exp": int(time.time()) + 86_400, "typ": "client", "sub": "alice"}
    async with running(redis_server, tmp_path) as cluster:
        here = await cluster.instance(security__secret=secret)
        with pytest.raises(SessionError, match="a token is needed") as refused:
            await session_at(here).open()
        assert refused.value.code == "UNAUTHORIZED"
        async with session_at(here, token=jwt.encode(claims, secret, "HS256")) as session:
            cut_off(session)
            assert await back(session) == Resumed(session.id, 0, 0)


# ---------------------------------------------------------------- connections that break


@pytest.mark.parametrize("instances", [1, 2])
async def test_broken_connection_loses_and_repeats_no_result(
    instances: int, redis_server: RedisAt, tmp_path: Path
) -> None:
    random = Random(instances)
    async with environment(redis_server, tmp_path, instances, speech__binary_frames=True) as (_, here):
        async with session_at(*here) as session:
            spoken_ms = []
            for _ in range(20):
                pieces = [random.randint(1, 13) for _ in range(random.randint(1, 4))]
                spoken_ms.append(20 * sum(pieces))
                for at, packets in enumerate(pieces, 1):
                    await session.send(run_of(packets), final=at == len(pieces))
                    if random.random() < 0.2:
                        cut_off(session)
            await session.finish()
            events = [event async for event in session]
        assert len([event for event in events if isinstance(event, Resumed)]) > 3
        told = sorted((event.index, event) for event in events if isinstance(event, Result | Failed))
        indexes = [index for index, _ in told]
        assert indexes == sorted(set(indexes)), "none comes twice"
        heard_ms = {index: audio_ms(event) for index, event in told if isinstance(event, Result)}
        assert heard_ms == {index: spoken_ms[index] for index in heard_ms}
        assert len(heard_ms) == 20


async def test_utterance_in_progress_survives_the_death_of_its_instance(redis_server: RedisAt, tmp_path: Path) -> None:
    async with environment(redis_server, tmp_path, instances=2) as (_, (a, b)):
        async with session_at(a, b) as session:
            await session.send(run_of(10), final=True)
            assert (await anext(session.results())).index == 0
            for _ in range(5):
                await session.send(run_of(10))
            await wait_until(lambda: _has_heard(a, 7), TIMEOUT_S)
            a.kill()
            assert await back(session) == Resumed(session.id, 5, 0)
            await session.send(run_of(10))
            await session.cut()
            result = await anext(session.results())
            assert (result.index, audio_ms(result)) == (1, 1200)


async def _has_heard(instance: InstanceProcess, frames: int) -> bool:
    return bool((await instance.get("/api/v1/stats"))["frames_in"] >= frames)


async def test_draining_instance_hands_its_sessions_over(redis_server: RedisAt, tmp_path: Path) -> None:
    async with environment(redis_server, tmp_path, instances=2) as (_, (a, b)):
        async with session_at(a, b) as session:
            await session.utterance(run_of(10))
            assert (await anext(session.results())).index == 0
            a.signal(signal.SIGTERM)
            assert isinstance(await back(session), Resumed)
            await session.utterance(run_of(20))
            result = await anext(session.results())
            assert (result.index, audio_ms(result)) == (1, 400)


async def test_session_ends_when_its_client_does_not_return_in_time(redis_server: RedisAt, tmp_path: Path) -> None:
    async with environment(redis_server, tmp_path, speech__resume_grace_s=0.1) as (_, (here,)):
        async with session_at(here) as session:
            stay_away(session, here)
            with pytest.raises(SessionLost, match="The session is over"):
                await anext(session.events())
        async with session_at(here, on_lost="new") as session:
            old = session.id
            stay_away(session, here)
            assert await back(session) == Renewed(session.id, old)
            await session.utterance(run_of(10))
            assert (await anext(session.results())).index == 0


def stay_away(session: Session, instance: InstanceProcess) -> None:
    """Lose the connection, and dial again when the instance has given the session up."""
    connector = session._connection._connector
    connect = connector.connect

    async def when_it_has(*callbacks: Any) -> Any:
        await wait_until(lambda: _has_sessions(instance, 0), TIMEOUT_S)
        return await connect(*callbacks)

    connector.connect = when_it_has  # type: ignore[method-assign, assignment]
    cut_off(session)
