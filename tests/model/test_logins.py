"""take_login_attempt.lua against domain/limits/rates.py."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from dragoman.domain.limits.rates import RatePerKey
from dragoman.store.chat.logins import TAKE_LOGIN_ATTEMPT, WINDOW_MS
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, with_bug

PER_MINUTE = 4
INTERVAL_MS = WINDOW_MS // PER_MINUTE
STEPS = st.sampled_from([0, 1, 100, INTERVAL_MS - 1, INTERVAL_MS, 2 * INTERVAL_MS, WINDOW_MS])


class Door(RuleBasedStateMachine):
    def __init__(self, bench: Bench, script: Script = TAKE_LOGIN_ATTEMPT) -> None:
        super().__init__()
        self.bench, self.script = bench, script
        self.key = bench.keys.login_tries(bench.fresh_name())
        self.now = START_MS
        self.rate = RatePerKey(PER_MINUTE)

    @rule(ms=STEPS)
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def somebody_tries(self) -> None:
        reply = self.bench.do(
            self.script(self.bench.redis, full_at=self.key, interval=INTERVAL_MS, window=WINDOW_MS, now=self.now)
        )
        assert (reply == b"OK") is self.rate.take("key", self.now / 1000)
        assert 0 < int(self.bench.call("PTTL", self.key)) <= WINDOW_MS

    def teardown(self) -> None:
        self.bench.call("DEL", self.key)


def test_the_script_counts_tries_as_the_domain_does(bench: Bench) -> None:
    check(lambda: Door(bench))


BUGS = {
    "a bound off by one": ("after - now > window", "after - now >= window"),
    "a refused try that costs": ("then return 'WAIT' end", "then redis.call('SET', full_at, after) return 'WAIT' end"),
    "tries of two minutes": ("after - now > window", "after - now > 2 * window"),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", BUGS)
def test_bug_in_take_login_attempt_is_found(bench: Bench, bug: str) -> None:
    assert finds_a_difference(lambda: Door(bench, with_bug("chat/take_login_attempt", *BUGS[bug])))
