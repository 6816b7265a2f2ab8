"""The commands and end_turn.lua of turns against two dictionaries."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.store.turns import Turns
from model.machines import Bench, check

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
