"""claim_node.lua, delete_if_equal.lua, renew_if_equal.lua and restore_owner.lua against an owner and an epoch."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.store.chat.users import RESTORE_OWNER
from dragoman.store.instances import CLAIM_NODE, DELETE_IF_EQUAL, RENEW_IF_EQUAL
from model.machines import START_MS, Bench, check

INSTANCES = st.sampled_from(["i1", "i2", "i3"])
TTLS = st.sampled_from([120_000, 600_000])
EPOCH_TTL_MS = 3_600_000


class Owning(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        node = bench.fresh_name()
        self.owner_key, self.epoch_key = bench.keys.node_owner(node), bench.keys.node_epoch(node)
        self.named_key = bench.keys.node_named(node)
        self.now = START_MS
        self.owner: str | None = None
        self.life = 0
        self.epoch: int | None = None
        self.named: str | None = None
        self.named_life = 0

    @rule(ms=st.sampled_from([-5000, -1, 0, 0, 1, 1000]))
    def the_clock_of_redis_moves(self, ms: int) -> None:
        self.now += ms

    @rule(instance=INSTANCES, ttl=TTLS, standing=st.sampled_from(["token", "anonymous", "unasked"]))
    def claim(self, instance: str, ttl: int, standing: str) -> None:
        keys = {"owner": self.owner_key, "epoch": self.epoch_key, "named": self.named_key}
        values = {"instance": instance, "ttl": ttl, "epoch_ttl": EPOCH_TTL_MS, "standing": standing, "now": self.now}
        answer = self.bench.do(CLAIM_NODE(self.bench.redis, **keys, **values))
        if standing == "anonymous" and self.named is not None:
            assert answer == b"TAKEN"
            return
        if standing == "token":
            self.named, self.named_life = instance, ttl
        reply = int(answer)
        assert self.epoch is None or reply > self.epoch, "above every earlier one, even if the clock stepped back"
        self.epoch = max((self.epoch or 0) + 1, self.now)
        self.owner, self.life = instance, ttl
        assert reply == self.epoch

    @rule(value=INSTANCES)
    def drop(self, value: str) -> None:
        reply = self.bench.do(DELETE_IF_EQUAL(self.bench.redis, key=self.owner_key, value=value))
        assert reply.decode() == self.verdict(value)
        if self.owner == value:
            self.owner = None

    @rule(value=INSTANCES, ttl=TTLS)
    def keep(self, value: str, ttl: int) -> None:
        reply = self.bench.do(RENEW_IF_EQUAL(self.bench.redis, key=self.owner_key, value=value, ttl=ttl))
        assert reply.decode() == self.verdict(value)
        if self.owner == value:
            self.life = ttl

    @rule(value=INSTANCES, former=INSTANCES, ttl=TTLS)
    def give_back(self, value: str, former: str, ttl: int) -> None:
        script = RESTORE_OWNER(self.bench.redis, owner=self.owner_key, value=value, former=former, ttl=ttl)
        assert self.bench.do(script).decode() == self.verdict(value)
        if self.owner == value:
            self.owner, self.life = former, ttl

    def verdict(self, value: str) -> str:
        return "NONE" if self.owner is None else "OK" if self.owner == value else "OTHER"

    @rule()
    def redis_forgets_the_epoch(self) -> None:
        self.bench.call("DEL", self.epoch_key)
        self.epoch = None

    @rule()
    def the_name_lapses(self) -> None:
        self.bench.call("DEL", self.named_key)
        self.named = None

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        owner, epoch = self.bench.call("GET", self.owner_key), self.bench.call("GET", self.epoch_key)
        assert owner == (None if self.owner is None else self.owner.encode())
        assert epoch == (None if self.epoch is None else str(self.epoch).encode())
        assert self.owner is None or self.bench.lives(self.owner_key, self.life)
        assert self.epoch is None or self.bench.lives(self.epoch_key, EPOCH_TTL_MS)
        assert self.bench.call("GET", self.named_key) == (None if self.named is None else self.named.encode())
        assert self.named is None or self.bench.lives(self.named_key, self.named_life)

    def teardown(self) -> None:
        self.bench.call("DEL", self.owner_key, self.epoch_key, self.named_key)


def test_the_scripts_of_owners_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Owning(bench))
