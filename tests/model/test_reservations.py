"""reserve_slot.lua, renew_slots.lua and release_slot.lua against a dictionary of jobs and their expiries."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.store.nodes import RELEASE_SLOT, RENEW_SLOTS, RESERVE_SLOT
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, planted, with_bug

JOBS = st.sampled_from("abcde")
LIMITS = st.sampled_from([3, 2, 1, 4, 0])
TTLS = st.sampled_from([120_000, 180_000, 300_000])
STEPS = st.sampled_from([0, 1, 59_999, 60_000, 119_999, 120_000, 180_000])


class Slots(RuleBasedStateMachine):
    def __init__(self, bench: Bench, reserve: Script = RESERVE_SLOT) -> None:
        super().__init__()
        self.bench, self.script = bench, reserve
        self.key = bench.keys.reserved(bench.fresh_name())
        self.now = START_MS
        self.expiry: dict[str, int] = {}
        self.life = 0

    def drop_expired(self) -> None:
        self.expiry = {job: at for job, at in self.expiry.items() if at > self.now}
        self.life = self.life if self.expiry else 0

    def lengthen(self, ttl: int) -> None:
        self.life = max(self.life, ttl)

    @precondition(lambda self: self.expiry)
    @rule(ms=STEPS)
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(job=JOBS, ttl=TTLS, limit=LIMITS)
    def reserve(self, job: str, ttl: int, limit: int) -> None:
        reply = self.bench.do(
            self.script(self.bench.redis, reserved=self.key, job=job, now=self.now, ttl=ttl, limit=limit)
        )
        self.drop_expired()
        if job in self.expiry:
            expected = "HELD"
        elif len(self.expiry) >= limit:
            expected = f"FULL {min(self.expiry.values(), default=self.now) - self.now}"
        else:
            expected = "OK"
            self.expiry[job] = self.now + ttl
            self.lengthen(ttl)
        assert reply.decode() == expected

    @rule(jobs=st.lists(JOBS, unique=True, max_size=4), ttl=TTLS)
    def renew(self, jobs: list[str], ttl: int) -> None:
        lost = self.bench.do(RENEW_SLOTS(self.bench.redis, reserved=self.key, now=self.now, ttl=ttl, jobs=jobs))
        self.drop_expired()
        held = [job for job in jobs if job in self.expiry]
        self.expiry.update((job, self.now + ttl) for job in held)
        if held:
            self.lengthen(ttl)
        assert [job.decode() for job in lost] == [job for job in jobs if job not in held]

    @precondition(lambda self: self.expiry)
    @rule(place=st.integers(0, 4), limit=LIMITS)
    def release_one_that_was_taken(self, place: int, limit: int) -> None:
        self.release(sorted(self.expiry)[place % len(self.expiry)], limit)

    @rule(job=JOBS, limit=LIMITS)
    def release(self, job: str, limit: int) -> None:
        reply = self.bench.do(RELEASE_SLOT(self.bench.redis, reserved=self.key, job=job, now=self.now, limit=limit))
        self.drop_expired()
        before = len(self.expiry)
        held = self.expiry.pop(job, None) is not None
        assert reply.decode() == ("NONE" if not held else "FREED" if before >= limit else "OK")
        self.drop_expired()

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        flat = self.bench.call("ZRANGE", self.key, 0, -1, "WITHSCORES")
        there = {job.decode(): int(float(at)) for job, at in zip(flat[::2], flat[1::2], strict=True)}
        assert there == self.expiry
        assert not there or self.bench.lives(self.key, self.life), "the key must outlive every slot in it"

    def teardown(self) -> None:
        self.bench.call("DEL", self.key)


def test_the_scripts_of_slots_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Slots(bench))


BUGS = {
    "a bound off by one": (">= limit", "> limit"),
    "a forgotten ZREM": ("redis.call('ZREMRANGEBYSCORE', reserved, '-inf', now)\n", ""),
    "an expiry not added to now": ("reserved, now + ttl, job)", "reserved, ttl, job)"),
    "a forgotten look whether the job has one": ("if redis.call('ZSCORE', reserved, job) then return 'HELD' end\n", ""),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", planted(BUGS, "a bound off by one"))
def test_a_bug_in_reserve_is_found(bench: Bench, bug: str) -> None:
    wrong = with_bug("reserve_slot", *BUGS[bug])
    assert finds_a_difference(lambda: Slots(bench, wrong))
