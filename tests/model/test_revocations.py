"""The scripts of the revocation list against a dictionary of names and the ends of their entries."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.store.revocations import ADD_REVOCATION, READ_REVOCATIONS, REMOVE_REVOCATION
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, with_bug

LIMIT, PRUNE = 3, 2
NAMES = st.sampled_from(["token:a", "token:b", "client:default/ann", "user:42", "node:default/n"])


class SharedList(RuleBasedStateMachine):
    def __init__(
        self,
        bench: Bench,
        add: Script = ADD_REVOCATION,
        remove: Script = REMOVE_REVOCATION,
        read: Script = READ_REVOCATIONS,
    ) -> None:
        super().__init__()
        self.bench, self.add, self.remove, self.read = bench, add, remove, read
        tag = f"{{{bench.fresh_name()}}}"
        self.keys = {part: f"{bench.keys.prefix}:{tag}:{part}" for part in ("entries", "expiry", "version")}
        self.now, self.version, self.known = START_MS, 0, 0
        self.until: dict[str, int] = {}

    @rule(ms=st.sampled_from([1, 10, 100]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(name=NAMES, for_ms=st.sampled_from([0, 1, 10, 1000]))
    def an_operator_revokes(self, name: str, for_ms: int) -> None:
        until = self.now + for_ms if for_ms else 0
        ended = sorted((end, name) for name, end in self.until.items() if end and end <= self.now)
        for _, old in ended[:PRUNE]:
            del self.until[old]
        reply = self.bench.do(
            self.add(
                self.bench.redis, **self.keys, name=name, entry=f"{name} {until}", until_ms=until, limit=LIMIT,
                prune=PRUNE, now=self.now,
            )
        )  # fmt: skip
        if name not in self.until and len(self.until) >= LIMIT:
            assert reply == b"FULL"
            return
        self.until[name], self.version = until, self.version + 1
        assert reply == self.version

    @rule(name=NAMES)
    def an_operator_allows(self, name: str) -> None:
        reply = self.bench.do(self.remove(self.bench.redis, **self.keys, name=name))
        if self.until.pop(name, None) is None:
            assert reply == b"NONE"
        else:
            self.version += 1
            assert reply == self.version

    @rule()
    def an_instance_reads(self) -> None:
        keys = {part: self.keys[part] for part in ("entries", "version")}
        version, *found = self.bench.do(self.read(self.bench.redis, **keys, known=self.known))
        assert version == self.version
        if self.known == self.version:
            assert not found
        else:
            assert found
            assert dict(zip(found[0][::2], found[0][1::2], strict=True)) == {
                name.encode(): f"{name} {until}".encode() for name, until in self.until.items()
            }
        self.known = self.version

    @invariant()
    def entries_that_end_are_in_the_index(self) -> None:
        found = self.bench.call("ZRANGE", self.keys["expiry"], 0, -1)
        assert {name.decode() for name in found} == {name for name, until in self.until.items() if until}

    def teardown(self) -> None:
        for key in self.keys.values():
            self.bench.call("DEL", key)


def test_the_scripts_change_the_list_as_a_dictionary_does(bench: Bench) -> None:
    check(lambda: SharedList(bench))


BUGS = {
    "a bound off by one": ("add_revocation", ">= limit", "> limit"),
    "an expiry that is not indexed": ("add_revocation", "redis.call('ZADD', expiry, until_ms, name)", ""),
    "an entry that stays when it is pruned": ("add_revocation", "redis.call('HDEL', entries, old)", ""),
    "an old expiry of what is revoked for ever": (
        "add_revocation",
        "else\n    redis.call('ZREM', expiry, name)\n",
        "",
    ),
    "an allowed name that stays in the index": ("remove_revocation", "redis.call('ZREM', expiry, name)", ""),
    "a change that is not counted": (
        "remove_revocation",
        "return redis.call('INCR', version)",
        "return redis.call('GET', version)",
    ),
    "a reader that is told of no change": ("read_revocations", "current == known", "current >= known"),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_scripts_is_found(bench: Bench, bug: str) -> None:
    name, old, new = BUGS[bug]
    broken = {name.partition("_")[0]: with_bug(name, old, new)}
    assert finds_a_difference(lambda: SharedList(bench, **broken))
