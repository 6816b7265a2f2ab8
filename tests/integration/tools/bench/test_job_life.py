import pytest

from dragoman.domain.job import State
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.bench.job_life import DRIVER, JobLife, live, round_trips
from dragoman.tools.bench.measure import drive
from dragoman.tools.processes import CannotRun


async def test_a_job_is_two_round_trips_from_its_assignment_and_seven_from_its_end(redis: Redis, keys: Keys) -> None:
    assert await round_trips(redis, keys) == (2, 7)


async def test_jobs_that_were_lived_hold_nothing(redis: Redis, keys: Keys) -> None:
    waits_s: list[float] = []
    lived = await drive(lambda caller, going: live(JobLife(redis, keys, caller), going, waits_s), 10, 0.0)
    assert lived.calls == len(waits_s) >= 10
    assert await redis.call("EXISTS", keys.jobs_of(DRIVER)) == 0
    assert await redis.call("KEYS", f"{keys.prefix}:v1:nodes:*:reserved") == []
    jobs = await redis.call("KEYS", f"{keys.prefix}:v1:jobs:*")
    assert len(jobs) == lived.calls
    assert {await redis.call("HGET", job.decode(), "state") for job in jobs} == {State.RELEASED.encode()}


async def test_a_step_that_is_refused_ends_the_bench(redis: Redis, keys: Keys) -> None:
    life = JobLife(redis, keys, 0)
    await life.begin()
    await life.ask()
    with pytest.raises(CannotRun, match=r"^Redis answered a step of job-.* instead of"):
        await life.acknowledged()
