"""The scripts session_* against a session kept in a few lists; grace_add and grace_due too."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dragoman.store.sessions import (
    DELETE_PARKED,
    END_SESSION,
    LIST_EXPIRED_GRACE,
    OPEN_SESSION,
    PARK_RESULT,
    READ_PARKED,
    RESUME_SESSION,
    START_GRACE,
    TRIM_OUTBOX,
    WRITE_SESSION,
)
from model.machines import START_MS, Bench, check

TTL_MS, OWNER_TTL_MS = 600_000, 300_000
MAX_ENTRIES, MAX_BYTES, MAX_PARKED = 3, 20, 2
EPOCH = st.sampled_from([0, 0, 0, 0, -1, 1])  # as the difference from the current one
NAMES = ("field", "open:0", "open:1", "settled:1")
NAME = st.sampled_from(NAMES)


class Talk(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        name = bench.fresh_name()
        self.state, self.owner = bench.keys.session_state(name), bench.keys.session_owner(name)
        self.outbox, self.parked = bench.keys.session_outbox(name), bench.keys.session_parked(name)
        self.forget()

    def forget(self) -> None:
        self.there, self.epoch, self.seq = False, 1, 0
        self.kept: dict[int, int] = {}  # seq → length of the frame
        self.late: list[bytes] = []
        self.fields: dict[str, str] = {}
        self.version = self.said = 0

    @initialize()
    def open(self) -> None:
        said = {"token": "hash", "subject": "me", "fields": ["field", "", "open:0", ""]}
        assert self.bench.do(OPEN_SESSION(self.bench.redis, state=self.state, ttl=TTL_MS, **said)) == b"OK"
        assert self.bench.lives(self.state, TTL_MS)
        self.there, self.fields = True, {"field": "", "open:0": ""}

    def fenced(self, epoch: int) -> bool:
        return not self.there or epoch != self.epoch

    @rule(
        difference=EPOCH,
        ahead=st.sampled_from([1, 1, 1, 2, 0, -1, None]),
        size=st.sampled_from([0, 1, 5, 10, 21]),
        newer=st.sampled_from([1, 1, 2, 0, -1, None]),
        behind=st.sampled_from([None, None, 0, 0, 1, -1]),
        second=st.sampled_from([0, 0, 1, 5]),
        base=st.sampled_from([None, 0, 0, 0, 1, -1]),
        names=st.lists(NAME, max_size=3, unique=True),
        gone=st.lists(NAME, max_size=2, unique=True),
        whole=st.sampled_from([False, False, False, True]),
    )
    def write(
        self,
        difference: int,
        ahead: int | None,
        size: int,
        newer: int | None,
        behind: int | None,
        second: int,
        base: int | None,
        names: list[str],
        gone: list[str],
        whole: bool,
    ) -> None:
        """A message with the next number, one that was left out, one that was written before, or none at all; with
        state that is newer, the same or older than what is there; behind any message, or one that is there or not;
        alone or with a second message. The fields change a version that is there or not, go, or are all there is."""
        epoch, seq = self.epoch + difference, 0 if ahead is None else max(self.seq + ahead, 0)
        limits = {"ttl": TTL_MS, "max_entries": MAX_ENTRIES, "max_bytes": MAX_BYTES}
        keys = {"state": self.state, "outbox": self.outbox}
        version = 0 if newer is None else max(self.version + newer, 0)
        after = 0 if behind is None else max(self.seq + behind, 0)
        changes = 0 if base is None else max(self.version + base, 0)
        self.said += 1
        fields = [*gone, *(part for name in names for part in (name, self.said))]
        said: dict[str, Any] = {"epoch": epoch, "seq": seq, "version": version, "base": changes}
        said |= {"whole": int(whole), "gone": len(gone), "fields": fields}
        said |= {"frame": b"x" * size, "second": b"x" * second}
        reply = self.bench.do(WRITE_SESSION(self.bench.redis, **keys, **limits, **said, after=after))
        if self.fenced(epoch) or after > self.seq or changes > self.version:
            assert reply == (b"FENCED" if self.fenced(epoch) else b"EARLY")
            return
        assert reply == b"OK"
        if (fields or whole) and (version == 0 or version > self.version):
            dropped = {name for name in self.fields if name in gone or (whole and ":" in name)}
            self.fields = {name: value for name, value in self.fields.items() if name not in dropped}
            self.fields |= dict.fromkeys(names, str(self.said))
            self.version = max(version, self.version)
        if seq > self.seq:
            sizes = [size, second] if second else [size]
            self.kept |= dict(enumerate(sizes, seq))
            self.seq = seq + len(sizes) - 1
            while len(self.kept) > MAX_ENTRIES or sum(self.kept.values()) > MAX_BYTES:
                del self.kept[min(self.kept)]

    @rule(difference=EPOCH, behind=st.integers(0, 4))
    def free(self, difference: int, behind: int) -> None:
        epoch, last_seq = self.epoch + difference, max(self.seq - behind, 0)
        keys = {"state": self.state, "outbox": self.outbox}
        reply = self.bench.do(TRIM_OUTBOX(self.bench.redis, **keys, epoch=epoch, last_seq=last_seq, ttl=TTL_MS))
        if self.fenced(epoch):
            assert reply == b"FENCED"
            return
        gone = [seq for seq in self.kept if seq <= last_seq]
        for seq in gone:
            del self.kept[seq]
        assert reply == len(gone)

    @rule(
        behind=st.integers(-1, 4),
        token=st.sampled_from(["hash", "hash", "hash", "wrong"]),
        subject=st.sampled_from(["me", "me", "me", "you"]),
        instance=st.sampled_from(["a", "b"]),
    )
    def resume(self, behind: int, token: str, subject: str, instance: str) -> None:
        before = (self.bench.call("GET", self.owner) or b"").decode()
        last_seq = max(self.seq - behind, 0)
        keys = {"state": self.state, "owner": self.owner, "outbox": self.outbox}
        said = {"token": token, "subject": subject, "last_seq": last_seq, "instance": instance}
        reply = self.bench.do(RESUME_SESSION(self.bench.redis, **keys, **said, owner_ttl=OWNER_TTL_MS, ttl=TTL_MS))
        missed = range(last_seq + 1, min(self.kept, default=self.seq + 1))
        if not self.there:
            assert reply == [b"NONE"]
        elif token != "hash" or subject != "me" or last_seq > self.seq:
            assert reply == [b"DENIED"]
        elif missed:
            assert reply == [b"TOO_OLD"]
        else:
            self.epoch += 1
            assert reply[:3] == [b"OK", str(self.epoch).encode(), before.encode()]
            state = dict(zip(reply[3][::2], reply[3][1::2], strict=True))
            assert (state[b"epoch"], state[b"seq"]) == (str(self.epoch).encode(), str(self.seq).encode())
            assert [len(frame) for frame in reply[4]] == [self.kept[seq] for seq in self.kept if seq > last_seq]
            assert self.bench.call("GET", self.owner) == instance.encode()
            assert self.bench.lives(self.owner, OWNER_TTL_MS)

    @rule(data=st.sampled_from([b"one", b"two"]), tried=st.sampled_from(["", "a", "b"]))
    def park(self, data: bytes, tried: str) -> None:
        keys = {"state": self.state, "owner": self.owner, "parked": self.parked}
        owner = (self.bench.call("GET", self.owner) or b"").decode()
        reply = self.bench.do(
            PARK_RESULT(self.bench.redis, **keys, data=data, tried=tried, max_parked=MAX_PARKED, ttl=TTL_MS)
        )
        if not self.there:
            assert reply == b"NONE"
        elif owner not in ("", tried):
            assert reply == b"OWNED"
        elif len(self.late) >= MAX_PARKED:
            assert reply == b"FULL"
        else:
            assert reply == b"OK"
            self.late.append(data)
            assert self.bench.lives(self.parked, TTL_MS)

    @rule(difference=EPOCH)
    def look_at_parked(self, difference: int) -> None:
        keys = {"state": self.state, "parked": self.parked}
        reply = self.bench.do(READ_PARKED(self.bench.redis, **keys, epoch=self.epoch + difference))
        assert reply == (b"FENCED" if self.fenced(self.epoch + difference) else self.late)

    @rule(difference=EPOCH, settled=st.lists(st.sampled_from([b"one", b"two", b"never parked"]), max_size=3))
    def unpark(self, difference: int, settled: list[bytes]) -> None:
        keys = {"state": self.state, "parked": self.parked}
        reply = self.bench.do(DELETE_PARKED(self.bench.redis, **keys, epoch=self.epoch + difference, handled=settled))
        if self.fenced(self.epoch + difference):
            assert reply == b"FENCED"
            return
        assert reply == b"OK"
        for data in settled:
            if data in self.late:
                self.late.remove(data)

    @rule(difference=EPOCH, again=st.booleans())
    def end(self, difference: int, again: bool) -> None:
        epoch = self.epoch + difference
        keys = {"state": self.state, "outbox": self.outbox, "parked": self.parked}
        reply = self.bench.do(END_SESSION(self.bench.redis, **keys, epoch=epoch))
        if self.there and epoch != self.epoch:
            assert reply == b"FENCED"
            return
        assert reply == b"OK"
        self.forget()
        if again:
            self.open()

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        there = self.bench.hash(self.state)
        assert bool(there) == self.there
        if there:
            told = (int(there["epoch"]), int(there["seq"]), int(there.get("outbox_bytes", 0)))
            assert told == (self.epoch, self.seq, sum(self.kept.values()))
            assert {name: value for name, value in there.items() if name in NAMES} == self.fields
            assert int(there.get("version", 0)) == self.version
        rows = self.bench.call("XRANGE", self.outbox, "-", "+")
        assert {int(id.split(b"-")[0]): len(fields[1]) for id, fields in rows} == self.kept
        assert self.bench.call("LRANGE", self.parked, 0, -1) == self.late

    def teardown(self) -> None:
        self.bench.call("DEL", self.state, self.outbox, self.parked, self.owner)


def test_the_scripts_of_a_resumable_session_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Talk(bench), examples=40)


class Grace(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.key = f"{bench.keys.sessions_grace}:{bench.fresh_name()}"
        self.now = START_MS
        self.ends: dict[str, int] = {}

    @rule(ms=st.sampled_from([0, 1, 10, 100]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(member=st.sampled_from(["s1|1", "s1|2", "s2|1", "s3|1"]), after=st.sampled_from([0, 10, 50]))
    def leave_behind(self, member: str, after: int) -> None:
        reply = self.bench.do(START_GRACE(self.bench.redis, grace=self.key, member=member, after=after, now=self.now))
        self.ends[member] = self.now + after
        assert int(reply) == self.now + after

    @rule(most=st.integers(1, 5), settle=st.booleans())
    def look(self, most: int, settle: bool) -> None:
        reply = self.bench.do(LIST_EXPIRED_GRACE(self.bench.redis, grace=self.key, limit=most, now=self.now))
        due = sorted((at, member) for member, at in self.ends.items() if at <= self.now)[:most]
        assert [member.decode() for member in reply] == [member for _, member in due]
        for _, member in due if settle else []:
            self.bench.call("ZREM", self.key, member)
            del self.ends[member]

    def teardown(self) -> None:
        self.bench.call("DEL", self.key)


def test_the_scripts_of_grace_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Grace(bench), examples=30)
