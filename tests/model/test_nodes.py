"""mark_node_seen.lua and forget_nodes.lua against a dictionary of nodes and the time each was heard."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.store.nodes import FORGET_NODES, MARK_NODE_SEEN
from model.machines import START_MS, Bench, check


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
