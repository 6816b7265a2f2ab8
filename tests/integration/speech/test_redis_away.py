"""Redis dies in the middle of a job: whoever listens is told all the same; what is owed is written when it is back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.domain.job import Outcome, State
from dragoman.domain.placement import Turn
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.protocol.codes import ErrorCode
from dragoman.services.speech.job_request import TurnQueue
from support.in_process import TIMEOUT_S, InProcessInstance, OpenInstance, RecordingListener, job_request, missing_model
from support.redis_servers import RedisAt, own
from support.waiting import wait_until

CALM = {"scheduler__phase2__instance_presence_ttl_seconds": 10}


@pytest.fixture
def redis_at(server_binary: ServerBinary, tmp_path: Path) -> Iterator[RedisAt]:
    """A server of one test alone, which may kill it."""
    with RedisServer(server_binary, tmp_path / "data", port=CHOOSE_PORT, fsync="always") as server:
        yield RedisAt("single", (server.tcp_url,), server=server)


async def kill(redis_at: RedisAt, instance: InProcessInstance) -> None:
    await asyncio.to_thread(own(redis_at.server).kill)
    await wait_until(lambda: not instance.redis.connected, TIMEOUT_S)


async def restart(redis_at: RedisAt, instance: InProcessInstance) -> None:
    await asyncio.to_thread(own(redis_at.server).start)
    await instance.redis.wait_connected()


async def ended(listener: RecordingListener, index: int = 0) -> Outcome:
    await wait_until(lambda: index in listener.ends, TIMEOUT_S)
    return listener.ends[index].outcome


async def test_a_missing_model_that_cannot_be_reported_still_ends_the_job(
    open_instance: OpenInstance, redis_at: RedisAt
) -> None:
    instance = await open_instance(**CALM)
    node = await instance.node("n")
    mine, listener = job_request(listener=(told := RecordingListener())), told
    instance.services.dispatcher.take(mine)
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    await kill(redis_at, instance)
    node.answer(node.jobs[0], success=False, error=missing_model())
    assert await ended(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.SCHEDULER_DEPENDENCY_DOWN
    await restart(redis_at, instance)
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert record["state"] == State.RELEASED


async def test_a_slot_that_cannot_be_given_back_does_not_end_its_job(
    open_instance: OpenInstance, redis_at: RedisAt
) -> None:
    """An old node keeps a max-duration job; its slot goes back after a while, or when Redis is there again."""
    quick = {"attempt_timeout_ms": 300, "job_ack_timeout_ms": 300, "job_timeout_ms": 20_000}
    instance = await open_instance(**CALM, **{f"speech__{name}": ms for name, ms in quick.items()})
    node = await instance.node("n", features=())
    listener, turn_queue = RecordingListener(), TurnQueue(Turn("turn-1"))
    instance.services.dispatcher.take(job_request(turn_queue=turn_queue, ends_turn=False, listener=listener))
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    (driver,) = instance.services.dispatcher._driven.values()
    await kill(redis_at, instance)
    await wait_until(lambda: driver.run.deadline() is None, TIMEOUT_S)  # the slot's time is over
    assert not listener.ends
    await restart(redis_at, instance)
    node.answer(node.jobs[0])
    assert await ended(listener) is Outcome.OK

    async def nothing_held() -> bool:
        return not await instance.reserved("n")

    await wait_until(nothing_held, TIMEOUT_S)
    await instance.stores.turns.end("s-1", "turn-1")


async def test_a_result_that_cannot_be_recorded_is_kept_and_sent_when_redis_is_back(
    open_instance: OpenInstance, redis_at: RedisAt
) -> None:
    instance = await open_instance(**CALM)
    node = await instance.node("n")
    mine, listener = job_request(listener=(told := RecordingListener())), told
    instance.services.dispatcher.take(mine)
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    await kill(redis_at, instance)
    node.answer(node.jobs[0])
    await asyncio.to_thread(own(redis_at.server).start)
    assert await ended(listener) is Outcome.OK
    record = await wait_until(lambda: instance.released(mine.job_id), TIMEOUT_S)
    assert record["outcome"] == "ok"


async def test_utterance_cut_during_a_redis_outage_fails_after_its_wait_and_the_next_works(
    open_instance: OpenInstance, redis_at: RedisAt
) -> None:
    instance = await open_instance(**CALM, speech__placement_wait_ms=300)
    await instance.node("n", working=True)
    await kill(redis_at, instance)
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(listener=listener))
    assert await ended(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.SCHEDULER_DEPENDENCY_DOWN
    assert instance.services.view.fleet.reserved("n") == 0
    await restart(redis_at, instance)
    instance.services.dispatcher.take(job_request(index=1, listener=listener))
    assert await ended(listener, 1) is Outcome.OK
