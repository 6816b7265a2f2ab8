"""Jobs in Redis: one binding a request however many create it, and the table of steps."""

import asyncio

import pytest

from dragoman.domain.job import Event, Outcome, Reply
from dragoman.store.instances import MARK, Instances
from dragoman.store.jobs import JOB_TTL_MS, LOCK_MS, Binding, Jobs
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.redis_servers import Connect
from support.waiting import wait_until


@pytest.fixture
def jobs(redis: Redis, keys: Keys) -> Jobs:
    return Jobs(redis, keys)


# -- requests ---------------------------------------------------------------------------------------


async def create(jobs: Jobs, request: str, job: str) -> tuple[str, bool]:
    """The order of one job: look, lock, create, bind, unlock. Gives the job the request has, and whether it is ours."""
    while True:
        found, locked = await asyncio.gather(jobs.binding(request), jobs.lock(request, job))
        if found is None and locked is None:  # somebody is at it: look again
            await asyncio.sleep(0)
            continue
        mine = False
        if found is None:
            _, bound = await asyncio.gather(
                jobs.create(job, {"request": request}), jobs.bind(request, Binding(job, "i"))
            )
            mine = bound is not None
        if locked is not None:
            await jobs.unlock(request, job)
        binding = jobs.parse_binding(await jobs.binding(request))
        assert binding is not None
        return binding.job_id, mine


async def test_of_two_hundred_creators_of_one_request_one_binds_and_all_learn_of_it(
    jobs: Jobs, connect: Connect, keys: Keys, redis: Redis
) -> None:
    other = Jobs(await connect(), keys)
    answers = await asyncio.gather(*(create((jobs, other)[n % 2], "r", f"job-{n}") for n in range(200)))
    assert len({job for job, _ in answers}) == 1
    assert [mine for _, mine in answers].count(True) == 1
    assert await redis.call("EXISTS", keys.request_lock("r")) == 0
    assert 0 < await redis.call("PTTL", keys.request_binding("r")) <= JOB_TTL_MS
    jobs_made = [await jobs.get(f"job-{n}") for n in range(200)]
    assert len([made for made in jobs_made if made is not None]) == 1, "the lock kept the others from creating any"


async def test_different_requests_do_not_wait_for_each_other(jobs: Jobs) -> None:
    answers = await asyncio.gather(*(create(jobs, f"r{n}", f"job-{n}") for n in range(50)))
    assert answers == [(f"job-{n}", True) for n in range(50)]


async def test_a_crash_between_lock_and_binding_frees_the_request_when_the_lock_lapses(
    jobs: Jobs, connect: Connect, keys: Keys, redis: Redis
) -> None:
    assert await jobs.lock("r", "crashed") == b"OK"
    assert 0 < await redis.call("PTTL", keys.request_lock("r")) <= LOCK_MS
    other = Jobs(await connect(), keys)
    assert await other.lock("r", "next") is None
    await redis.call("PEXPIRE", keys.request_lock("r"), 1)  # its two seconds are over
    assert await create(other, "r", "next") == ("next", True)


async def test_expired_lock_loses_the_binding_and_releases_no_other_lock(jobs: Jobs) -> None:
    assert await jobs.lock("r", "slow") == b"OK"
    await jobs.redis.call("PEXPIRE", jobs.keys.request_lock("r"), 1)
    await wait_until(lambda: jobs.lock("r", "fast"))
    assert await jobs.bind("r", Binding("fast", "i1")) == b"OK"
    assert await jobs.bind("r", Binding("slow", "i2")) is None
    assert await jobs.unlock("r", "slow") == b"OTHER"
    assert await jobs.unlock("r", "fast") == b"OK"
    assert await jobs.unlock("r", "fast") == b"NONE"
    assert jobs.parse_binding(await jobs.binding("r")) == Binding("fast", "i1")


# -- the job itself ---------------------------------------------------------------------------------


async def test_a_job_is_recorded_created_or_dispatched_at_once(jobs: Jobs, redis: Redis, keys: Keys) -> None:
    assert await jobs.create("waiting", {"session_id": "s"}) == b"OK"
    assert await jobs.create("placed", {"session_id": "s"}, node="n", epoch=7) == b"OK"
    assert await jobs.create("placed", {"session_id": "other"}, node="m") == b"ALREADY"
    waiting, placed = await jobs.get("waiting"), await jobs.get("placed")
    assert waiting is not None
    assert placed is not None
    assert (waiting["state"], waiting["attempt"], waiting["session_id"], waiting["v"]) == ("CREATED", "1", "s", "1")
    assert "node_id" not in waiting
    assert (placed["state"], placed["node_id"], placed["node_epoch"]) == ("DISPATCHED", "n", "7")
    assert placed["created_ms"] == placed["dispatched_ms"]
    assert placed["session_id"] == "s"
    assert 0 < await redis.call("PTTL", keys.job("placed")) <= JOB_TTL_MS
    assert await jobs.get("unknown") is None


async def test_a_job_may_have_no_fields_at_all(jobs: Jobs) -> None:
    assert await jobs.create("j", {}) == b"OK"


async def test_a_job_runs_through_its_states_with_a_time_for_each(jobs: Jobs) -> None:
    await jobs.create("j", {})
    assert await jobs.advance("j", Event.DISPATCH, attempt=1, node="n", node_epoch=3) is Reply.OK
    assert await jobs.advance("j", Event.ACK, attempt=1, node="n") is Reply.OK
    assert await jobs.advance("j", Event.START, attempt=1, node="n") is Reply.OK
    assert await jobs.advance("j", Event.RESULT, attempt=1, node="n", outcome=Outcome.EMPTY, code="SILENT") is Reply.OK
    assert await jobs.advance("j", Event.RELEASE, attempt=1) is Reply.OK
    job = await jobs.get("j")
    assert job is not None
    assert (job["state"], job["outcome"], job["code"], job["node_epoch"]) == ("RELEASED", "empty", "SILENT", "3")
    times = [int(job[f"{step}_ms"]) for step in ("created", "dispatched", "acked", "started", "finished", "released")]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (Event.RESULT, Outcome.OK),
        (Event.EXPIRE, Outcome.EXPIRED),
        (Event.CANCEL, Outcome.CANCELLED),
        (Event.GIVE_UP, Outcome.FAILED),
    ],
)
async def test_no_job_ends_without_an_outcome(jobs: Jobs, event: Event, outcome: Outcome) -> None:
    await jobs.create("j", {}, node="n")
    assert await jobs.advance("j", event, attempt=None) is Reply.OK
    job = await jobs.get("j")
    assert job is not None
    assert job["outcome"] == outcome


async def test_a_step_that_is_refused_changes_nothing(jobs: Jobs) -> None:
    await jobs.create("j", {}, node="n")
    before = await jobs.get("j")
    assert await jobs.advance("j", Event.ACK, attempt=2, node="n", note="x") is Reply.STALE
    assert await jobs.advance("j", Event.ACK, attempt=1, node="m", note="x") is Reply.WRONG_NODE
    assert await jobs.advance("j", Event.RELEASE, attempt=1, note="x") is Reply.ILLEGAL
    assert await jobs.advance("j", Event.DISPATCH, attempt=1, node="m", note="x") is Reply.ALREADY
    assert await jobs.advance("nobody", Event.ACK, attempt=1) is Reply.UNKNOWN
    assert await jobs.get("j") == before
    assert await jobs.get("nobody") is None


async def test_a_reassigned_job_is_deaf_to_its_former_node(jobs: Jobs) -> None:
    await jobs.create("j", {}, node="n1", epoch=1)
    assert await jobs.advance("j", Event.REASSIGN, attempt=1) is Reply.OK
    job = await jobs.get("j")
    assert job is not None
    assert (job["state"], job["attempt"]) == ("CREATED", "2")
    assert not {"node_id", "node_epoch", "dispatched_ms", "acked_ms"} & job.keys(), "the attempt is gone, and its times"
    assert await jobs.advance("j", Event.DISPATCH, attempt=2, node="n2") is Reply.OK
    assert await jobs.advance("j", Event.RESULT, attempt=1, node="n1") is Reply.STALE
    assert await jobs.advance("j", Event.RESULT, attempt=None, node="n1") is Reply.WRONG_NODE
    assert await jobs.advance("j", Event.RESULT, attempt=2, node="n2") is Reply.OK


async def test_only_one_of_many_concurrent_releases_succeeds(jobs: Jobs, connect: Connect, keys: Keys) -> None:
    other = Jobs(await connect(), keys)
    await jobs.create("j", {}, node="n")
    ends = await asyncio.gather(*((jobs, other)[n % 2].advance("j", Event.EXPIRE, attempt=1) for n in range(20)))
    assert sorted(ends) == sorted([Reply.OK] + [Reply.ALREADY] * 19)
    gone = await asyncio.gather(*((jobs, other)[n % 2].advance("j", Event.RELEASE, attempt=1) for n in range(20)))
    assert sorted(gone) == sorted([Reply.OK] + [Reply.ALREADY] * 19)


async def test_instance_that_was_declared_dead_drives_no_job(jobs: Jobs, redis: Redis, keys: Keys) -> None:
    instances = Instances(redis, keys)
    assert await jobs.drive("i", "first", "too early", 1000) == b"DECLARED_DEAD"
    await instances.open("i", "first", "scheduler")
    assert await jobs.drive("i", "first", "j", 1000) == b"OK"
    await instances.mark_takeover("i", "first")
    assert await jobs.drive("i", "first", "too late", 1000) == b"DECLARED_DEAD"
    await instances.close("i", MARK + "first")
    await instances.open("i", "second", "scheduler")
    assert await jobs.drive("i", "first", "far too late", 1000) == b"DECLARED_DEAD"
    assert await jobs.driven_by("i", 10) == ["j"]


async def test_jobs_of_a_driver_are_listed_by_deadline(jobs: Jobs) -> None:
    await asyncio.gather(jobs.driven("i", "late", 3000), jobs.driven("i", "soon", 1000), jobs.driven("i", "mid", 2000))
    assert await jobs.driven_by("i", 2) == ["soon", "mid"]
    await jobs.undriven("i", "soon")
    assert await jobs.driven_by("i", 10) == ["mid", "late"]
    assert await jobs.driven_by("nobody", 10) == []
