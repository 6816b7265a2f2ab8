"""Turns, the list of nodes and tries to log in against dictionaries and the domain."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.domain.limits.rates import RatePerKey
from dragoman.store.attempts import TAKE_ATTEMPT, WINDOW_MS
from dragoman.store.jobs import Turns
from dragoman.store.nodes import FORGET_NODES, MARK_NODE_SEEN
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, with_bug


class Hearing(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        # The real key is one for all; examples need one each.
        self.key = f"{bench.keys.nodes_last_seen}:{bench.fresh_name()}"
        self.now = START_MS
        self.heard: dict[str, int] = {}

    @rule(ms=st.sampled_from([-10, 0, 1, 10, 100]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(node=st.sampled_from(["n1", "n2", "n3", "n4", "n5"]))
    def hear(self, node: str) -> None:
        reply = self.bench.do(MARK_NODE_SEEN(self.bench.redis, last_seen=self.key, node=node, now=self.now))
        self.heard[node] = self.now
        assert int(reply) == self.now

    @rule(older_ms=st.sampled_from([0, 1, 10, 50]), limit=st.integers(1, 6))
    def forget(self, older_ms: int, limit: int) -> None:
        values = {"older_ms": older_ms, "limit": limit, "now": self.now}
        reply = self.bench.do(FORGET_NODES(self.bench.redis, last_seen=self.key, **values))
        due = sorted((at, node) for node, at in self.heard.items() if at <= self.now - older_ms)[:limit]
        assert [node.decode() for node in reply] == [node for _, node in due], "the longest silent first"
        for _, node in due:
            del self.heard[node]

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        flat = self.bench.call("ZRANGE", self.key, 0, -1, "WITHSCORES")
        assert {node.decode(): int(float(at)) for node, at in zip(flat[::2], flat[1::2], strict=True)} == self.heard

    def teardown(self) -> None:
        self.bench.call("DEL", self.key)


def test_the_scripts_of_the_node_list_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Hearing(bench))


WHICH = st.sampled_from(["1", "2", "3"])


class Speaking(RuleBasedStateMachine):
    """One session with its turns."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.turns = bench, Turns(bench.redis, bench.keys)
        self.session = f"{bench.keys.prefix}-{bench.fresh_name()}"
        self.current: str | None = None
        self.node: dict[str, str] = {}

    @rule(which=WHICH, node=st.sampled_from(["n1", "n2"]))
    def bind(self, which: str, node: str) -> None:
        self.bench.do(self.turns.bind(self.session, self.session + which, node))
        self.current = which
        self.node.setdefault(which, node)

    @rule(which=WHICH)
    def end(self, which: str) -> None:
        self.bench.do(self.turns.end(self.session, self.session + which))
        self.over(which)

    @rule()
    def end_current(self) -> None:
        self.bench.do(self.turns.end_current(self.session))
        if self.current is not None:
            self.over(self.current)

    def over(self, which: str) -> None:
        self.node.pop(which, None)
        if self.current == which:
            self.current = None

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        current = self.bench.do(self.turns.current(self.session))
        assert current == (None if self.current is None else self.session + self.current)
        for which in "123":
            assert self.bench.do(self.turns.node_of(self.session + which)) == self.node.get(which)
        assert self.bench.call("EXISTS", self.bench.keys.session_turn(self.session)) == (self.current is not None)

    def teardown(self) -> None:
        for which in "123":
            self.bench.do(self.turns.end(self.session, self.session + which))


def test_turns_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Speaking(bench), examples=40)


PER_MINUTE = 4
INTERVAL_MS = WINDOW_MS // PER_MINUTE
STEPS = st.sampled_from([0, 1, 100, INTERVAL_MS - 1, INTERVAL_MS, 2 * INTERVAL_MS, WINDOW_MS])


class Door(RuleBasedStateMachine):
    def __init__(self, bench: Bench, script: Script = TAKE_ATTEMPT) -> None:
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
def test_bug_in_take_attempt_is_found(bench: Bench, bug: str) -> None:
    assert finds_a_difference(lambda: Door(bench, with_bug("take_attempt", *BUGS[bug])))
