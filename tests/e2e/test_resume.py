"""A client that lost its socket goes on, on any instance: every index is sent once or told failed."""

from typing import Any

import pytest

from dragoman.store.jobs import Turns
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.cluster import Cluster, Speaker
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)


def about(index: int) -> Any:
    """A result of this index, or the news that it failed."""
    return lambda m: (
        (m["type"] == "translation_result" and m["utterance_index"] == index)
        or (m["type"] == "error" and (m.get("details") or {}).get("utterance_index") == index)
    )


async def cut(speaker: Speaker) -> None:
    """The socket is gone without a word."""
    transport = speaker.ws._response.connection.transport  # type: ignore[union-attr]
    assert transport is not None
    transport.abort()


async def two(cluster: Cluster) -> tuple[Any, Any]:
    return await cluster.instance(), await cluster.instance()


async def test_result_that_arrived_during_a_disconnect_is_sent_after_the_resume(cluster: Cluster) -> None:
    here = await cluster.instance()
    cluster.node(here, delay_ms=300)
    await wait_until(here.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(here, resume=True)
    await speaker.utterance(0)
    await speaker.until(lambda m: m["type"] == "ui_event" and m["event"] == "DISPATCHED")
    await cut(speaker)
    again, ack = await cluster.resumed(speaker, here)
    assert (ack["resumed"], ack["next_index"]) == (True, 1)
    assert (await again.result(0, TIMEOUT_S))["utterance_index"] == 0
    await again.utterance(1)
    assert await again.result(1, TIMEOUT_S)


async def test_a_session_survives_the_death_of_its_instance(cluster: Cluster) -> None:
    a, b = await two(cluster)
    cluster.node(b, delay_ms=3000, slots=4)
    await wait_until(a.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(a, resume=True)
    for index in range(3):
        await speaker.utterance(index)
        await speaker.until(lambda m: m["type"] == "ui_event" and m["event"] == "DISPATCHED")
    a.kill()
    again, ack = await cluster.resumed(speaker, b)
    assert ack["next_index"] == 3
    told = [await again.until(about(index), TIMEOUT_S) for index in range(3)]
    assert {m["type"] for m in told} <= {"translation_result", "error"}
    assert all(m["code"] == "INSTANCE_LOST" for m in told if m["type"] == "error")
    await again.utterance(3)
    assert await again.result(3, TIMEOUT_S)
    seen = [m["utterance_index"] for m in again.heard if m["type"] == "translation_result"]
    assert not seen, "no index comes twice"


async def test_a_turn_goes_on_with_its_node_on_another_instance(cluster: Cluster, redis: Redis, keys: Keys) -> None:
    """In mid-turn and in mid-word: chunks that are in no cut yet are asked for again."""
    turns = Turns(redis, keys)
    a, b = [await cluster.instance(speech__max_duration_ms=1000) for _ in range(2)]
    for _ in range(4):
        cluster.node(b)
    await wait_until(lambda: a.has_nodes(4), TIMEOUT_S)
    speaker = await cluster.speaker(a, resume=True)
    for seq in range(6):  # 260 ms each: one cut after four, two left in the buffer
        await speaker.chunk(seq)
    first = await speaker.result(0, TIMEOUT_S)
    turn = await wait_until(lambda: turns.current(speaker.session_id), TIMEOUT_S)
    node = await turns.node_of(turn or "")
    a.kill()
    await wait_until(lambda: b.sees_only("i1"), TIMEOUT_S)
    again, ack = await cluster.resumed(speaker, b)
    assert (ack["next_index"], ack["audio_seq"]) == (1, 3)
    for seq in (4, 5, 6, 7):
        await again.chunk(seq)
    second = await again.result(1, TIMEOUT_S)
    jobs = [await b.get(f"/api/v1/jobs/{result['job_id']}") for result in (first, second)]
    assert {job["turn_id"] for job in jobs} == {turn}
    assert [job["node_id"] for job in jobs] == [node, node]
    await again.say("audio_chunk", session_id=again.session_id, seq=8, is_final=True, payload="")
    await wait_until(lambda: _gone(turns, speaker.session_id, turn or ""), TIMEOUT_S)


async def test_session_that_is_not_resumed_leaves_no_key(cluster: Cluster, redis: Redis, keys: Keys) -> None:
    quick = {"speech__resume_grace_s": 1, "speech__max_duration_ms": 500}
    a, b = [await cluster.instance(**quick) for _ in range(2)]
    cluster.node(b)
    await wait_until(a.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(a, resume=True)
    for seq in range(3):
        await speaker.chunk(seq)
    await speaker.result(0, TIMEOUT_S)
    assert await Turns(redis, keys).current(speaker.session_id)
    a.kill()
    await wait_until(lambda: _none(redis, keys.session_turn(speaker.session_id)), TIMEOUT_S)
    await wait_until(lambda: _none(redis, keys.session_state(speaker.session_id)), TIMEOUT_S)
    await wait_until(lambda: _none(redis, keys.sessions_grace), TIMEOUT_S)


async def _gone(turns: Turns, session: str, turn: str) -> bool:
    return await turns.node_of(turn) is None and await turns.current(session) is None


async def _none(redis: Any, key: str) -> bool:
    return not await redis.call("EXISTS", key)
