"""report_unavailable.lua and pause_node.lua against domain/storm.py."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.domain.storm import StormGuard, StormSettings
from dragoman.store.nodes import PAUSE_NODE, REPORT_UNAVAILABLE
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, with_bug

SETTINGS = StormSettings(debounce_window_s=50, unavailable_ttl_s=200, rate_limit=4, rate_window_s=100, first_pause_s=50)
TTL_MS = int(SETTINGS.unavailable_ttl_s * 1000)
STEPS = st.sampled_from([0, 1, 10_000, 49_999, 50_000, 99_999, 100_000, 150_000, 200_000])


class Guard(RuleBasedStateMachine):
    def __init__(self, bench: Bench, report: Script = REPORT_UNAVAILABLE, pause: Script = PAUSE_NODE) -> None:
        super().__init__()
        self.bench, self.script, self.pause_script = bench, report, pause
        self.key = bench.keys.storm(bench.fresh_name())
        self.now = START_MS
        self.guard = StormGuard(SETTINGS)
        self.lives_ms = 0

    @rule(ms=STEPS)
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(service=st.sampled_from(["asr@1", "asr@2", "nmt@1"]))
    def report(self, service: str) -> None:
        reply = self.bench.do(
            self.script(
                self.bench.redis,
                storm=self.key,
                service=service,
                debounce_ms=SETTINGS.debounce_window_s * 1000,
                ttl_ms=SETTINGS.unavailable_ttl_s * 1000,
                limit=SETTINGS.rate_limit,
                window_ms=SETTINGS.rate_window_s * 1000,
                now=self.now,
            )
        )
        self.lives_ms = max(self.lives_ms, TTL_MS)
        assert reply.decode() == self.guard.report(service, self.now)

    @rule()
    def pause(self) -> None:
        first_ms = int(SETTINGS.first_pause_s * 1000)
        pause_ms = self.bench.do(
            self.pause_script(self.bench.redis, storm=self.key, first_ms=first_ms, ttl_ms=TTL_MS, now=self.now)
        )
        assert pause_ms == self.guard.pause(self.now)
        if pause_ms:
            self.lives_ms = max(self.lives_ms, pause_ms + TTL_MS)

    @rule()
    def recover(self) -> None:
        self.bench.call("HDEL", self.key, "paused", "pauses")
        self.guard.recovered()
        if not self.bench.hash(self.key):
            self.lives_ms = 0

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        there = self.bench.hash(self.key)
        assert [int(at) for at in there.pop("recent", "").split()] == list(self.guard.recent)
        assert int(there.pop("whole", "0")) == self.guard.whole_until_ms
        assert int(there.pop("paused", "0")) == self.guard.paused_until_ms
        assert int(there.pop("pauses", "0")) == self.guard.pauses
        assert {name.removeprefix("m:"): int(at) for name, at in there.items()} == self.guard.marks
        if self.lives_ms:
            assert self.bench.lives(self.key, self.lives_ms)

    def teardown(self) -> None:
        self.bench.call("DEL", self.key)


def test_the_script_of_the_storm_guard_does_what_the_domain_does(bench: Bench) -> None:
    check(lambda: Guard(bench))


PAUSE_BUGS = {
    "pauses that do not grow": ("2 ^ math.min(pauses, 16)", "1"),
    "pauses that are never forgotten": ("if now - paused >= ttl_ms then", "if false then"),
    "a second report that lengthens a pause": ("if now < paused then return 0 end", ""),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", PAUSE_BUGS)
def test_a_bug_in_pause_node_is_found(bench: Bench, bug: str) -> None:
    wrong = with_bug("pause_node", *PAUSE_BUGS[bug])
    assert finds_a_difference(lambda: Guard(bench, pause=wrong))


BUGS = {
    "a bound off by one": ("if #recent > limit then", "if #recent >= limit then"),
    "a window that never ends": ("< window_ms then", "< 1e18 then"),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_report_unavailable_is_found(bench: Bench, bug: str) -> None:
    wrong = with_bug("report_unavailable", *BUGS[bug])
    assert finds_a_difference(lambda: Guard(bench, wrong))
