"""Redis dies in the middle of a job: whoever listens is told all the same; what is owed is written when it is back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.domain.job import Outcome, State
from dragoman.domain.turn import Turn
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.protocol.codes import ErrorCode
from dragoman.services.speech.turn_queue import TurnQueue
from support.in_process import PATIENCE_S, Ear, House, Open, missing_model, order
from support.redis_servers import RedisAt, own
from support.waiting import wait_until

CALM = {"scheduler__phase2__instance_presence_ttl_seconds": 10}


@pytest.fixture
def redis_at(server_binary: ServerBinary, tmp_path: Path) -> Iterator[RedisAt]:
    """A server of one test alone, which may kill it."""
    with RedisServer(server_binary, tmp_path / "data", port=CHOOSE_PORT, fsync="always") as server:
        yield RedisAt("single", (server.tcp_url,), server=server)


async def kill(redis_at: RedisAt, house: House) -> None:
    await asyncio.to_thread(own(redis_at.server).kill)
    await wait_until(lambda: not house.redis.connected, PATIENCE_S)


async def restart(redis_at: RedisAt, house: House) -> None:
    await asyncio.to_thread(own(redis_at.server).start)
    await house.redis.wait_connected()


async def ended(ear: Ear, index: int = 0) -> Outcome:
    await wait_until(lambda: index in ear.ends, PATIENCE_S)
    return ear.ends[index].outcome


async def test_a_missing_model_that_cannot_be_reported_still_ends_the_job(house: Open, redis_at: RedisAt) -> None:
    here = await house(**CALM)
    node = await here.node("n")
    mine, ear = order(ear=(told := Ear())), told
    here.services.dispatcher.take(mine)
    await wait_until(lambda: node.jobs, PATIENCE_S)
    await kill(redis_at, here)
    node.answer(node.jobs[0], success=False, error=missing_model())
    assert await ended(ear) is Outcome.FAILED
    assert ear.ends[0].code == ErrorCode.SCHEDULER_DEPENDENCY_DOWN
    await restart(redis_at, here)
    record = await wait_until(lambda: here.released(mine.job_id), PATIENCE_S)
    assert record["state"] == State.RELEASED


async def test_a_slot_that_cannot_be_given_back_does_not_end_its_job(house: Open, redis_at: RedisAt) -> None:
    """An old node keeps a max-duration job; its slot goes back after a while, or when Redis is there again."""
    quick = {"attempt_timeout_ms": 300, "job_ack_timeout_ms": 300, "job_timeout_ms": 20_000}
    here = await house(**CALM, **{f"speech__{name}": ms for name, ms in quick.items()})
    node = await here.node("n", features=())
    ear, line = Ear(), TurnQueue(Turn("turn-1"))
    here.services.dispatcher.take(order(line=line, ends_turn=False, ear=ear))
    await wait_until(lambda: node.jobs, PATIENCE_S)
    (driver,) = here.services.dispatcher._driven.values()
    await kill(redis_at, here)
    await wait_until(lambda: driver._run.deadline() is None, PATIENCE_S)  # the slot's time is over
    assert not ear.ends
    await restart(redis_at, here)
    node.answer(node.jobs[0])
    assert await ended(ear) is Outcome.OK

    async def nothing_held() -> bool:
        return not await here.reserved("n")

    await wait_until(nothing_held, PATIENCE_S)
    await here.stores.turns.end("s-1", "turn-1")


async def test_a_result_that_cannot_be_recorded_is_kept_and_sent_when_redis_is_back(
    house: Open, redis_at: RedisAt
) -> None:
    here = await house(**CALM)
    node = await here.node("n")
    mine, ear = order(ear=(told := Ear())), told
    here.services.dispatcher.take(mine)
    await wait_until(lambda: node.jobs, PATIENCE_S)
    await kill(redis_at, here)
    node.answer(node.jobs[0])
    await asyncio.to_thread(own(redis_at.server).start)
    assert await ended(ear) is Outcome.OK
    record = await wait_until(lambda: here.released(mine.job_id), PATIENCE_S)
    assert record["outcome"] == "ok"


async def test_a_cut_while_redis_is_away_fails_after_its_wait_and_the_next_one_works(
    house: Open, redis_at: RedisAt
) -> None:
    here = await house(**CALM, speech__placement_wait_ms=300)
    await here.node("n", working=True)
    await kill(redis_at, here)
    ear = Ear()
    here.services.dispatcher.take(order(ear=ear))
    assert await ended(ear) is Outcome.FAILED
    assert ear.ends[0].code == ErrorCode.SCHEDULER_DEPENDENCY_DOWN
    assert here.services.view.fleet.reserved("n") == 0
    await restart(redis_at, here)
    here.services.dispatcher.take(order(index=1, ear=ear))
    assert await ended(ear, 1) is Outcome.OK
