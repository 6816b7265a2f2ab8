"""open_inbox.lua, mark_takeover.lua, close_inbox.lua and drive_job.lua against one name at the door."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.store.instances import CLOSE_INBOX, MARK, MARK_TAKEOVER, OPEN_INBOX
from dragoman.store.jobs import DRIVE_JOB
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, planted, with_bug

INCARNATIONS = st.sampled_from(["a", "b"])
HOLDERS = st.sampled_from(["a", "b", MARK + "a", MARK + "b"])
GROUP = "scheduler"


class Door(RuleBasedStateMachine):
    def __init__(self, bench: Bench, drive: Script = DRIVE_JOB) -> None:
        super().__init__()
        self.bench, self.script = bench, drive
        instance = bench.fresh_name()
        self.opened, self.inbox = bench.keys.open(instance), bench.keys.inbox(instance)
        self.counts, self.jobs_of = bench.keys.counts(instance), bench.keys.jobs_of(instance)
        self.holder: str | None = None
        self.entries: list[bytes] = []
        self.grouped = False
        self.jobs: dict[str, int] = {}

    @rule(incarnation=INCARNATIONS)
    def open(self, incarnation: str) -> None:
        keys = {"opened": self.opened, "inbox": self.inbox}
        reply = self.bench.do(OPEN_INBOX(self.bench.redis, **keys, incarnation=incarnation, group=GROUP))
        if self.holder in (None, incarnation):
            self.holder, self.grouped = incarnation, True
            assert reply == b"OK"
        else:
            assert reply.decode() == self.holder

    @rule(incarnation=INCARNATIONS)
    def mark(self, incarnation: str) -> None:
        self.swap(incarnation, MARK + incarnation)

    @rule(incarnation=INCARNATIONS)
    def unmark(self, incarnation: str) -> None:
        self.swap(MARK + incarnation, incarnation)

    def swap(self, old: str, new: str) -> None:
        reply = self.bench.do(MARK_TAKEOVER(self.bench.redis, opened=self.opened, incarnation=old, mark=new))
        if self.holder is None:
            assert reply == b"GONE"
        elif self.holder in (old, new):
            assert reply == b"OK"
            self.holder = new
        else:
            assert reply == b"OTHER"

    @rule(incarnation=HOLDERS, job=st.sampled_from(["j", "k"]), deadline=st.integers(START_MS, START_MS + 9))
    def drive(self, incarnation: str, job: str, deadline: int) -> None:
        keys = {"opened": self.opened, "driven": self.jobs_of}
        reply = self.bench.do(
            self.script(self.bench.redis, **keys, incarnation=incarnation, job=job, deadline=deadline)
        )
        if self.holder == incarnation:
            assert reply == b"OK"
            self.jobs[job] = deadline
        else:
            assert reply == b"DECLARED_DEAD"

    @rule()
    def somebody_pushes(self) -> None:
        if self.holder is not None:
            self.entries.append(self.bench.call("XADD", self.inbox, "*", "a", "1"))
            self.bench.call("HINCRBY", self.counts, "added", 1)

    @rule()
    def the_inbox_is_emptied(self) -> None:
        if self.entries:
            assert self.bench.call("XDEL", self.inbox, *self.entries) == len(self.entries)
            self.entries = []

    @rule(holder=HOLDERS)
    def close(self, holder: str) -> None:
        keys = {"opened": self.opened, "inbox": self.inbox, "counts": self.counts}
        reply = self.bench.do(CLOSE_INBOX(self.bench.redis, **keys, holder=holder))
        if self.holder is None:
            assert reply == b"NONE"
        elif self.holder != holder:
            assert reply == b"OTHER"
        elif self.entries:
            assert reply == b"BUSY"
        else:
            assert reply == b"OK"
            self.holder, self.grouped = None, False
            assert self.bench.call("EXISTS", self.inbox, self.counts) == 0

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        found = self.bench.call("GET", self.opened)
        assert found == (None if self.holder is None else self.holder.encode())
        assert self.bench.call("XLEN", self.inbox) == len(self.entries)
        assert self.bench.call("EXISTS", self.inbox) == self.grouped
        flat = self.bench.call("ZRANGE", self.jobs_of, 0, -1, "WITHSCORES")
        assert {job.decode(): int(at) for job, at in zip(flat[::2], flat[1::2], strict=True)} == self.jobs

    def teardown(self) -> None:
        self.bench.call("DEL", self.opened, self.inbox, self.counts, self.jobs_of)


def test_scripts_of_presence_match_the_model(bench: Bench) -> None:
    check(lambda: Door(bench))


BUGS = {
    "no look at who has the inbox": (
        "if redis.call('GET', opened) ~= incarnation then return 'DECLARED_DEAD' end\n",
        "",
    ),
    "an inbox that anybody has": (
        "if redis.call('GET', opened) ~= incarnation",
        "if redis.call('EXISTS', opened) == 0",
    ),
    "a deadline that is rounded": ("'%.0f'", "'%.3g'"),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", planted(BUGS, "no look at who has the inbox"))
def test_a_bug_in_drive_job_is_found(bench: Bench, bug: str) -> None:
    wrong = with_bug("drive_job", *BUGS[bug])
    assert finds_a_difference(lambda: Door(bench, wrong))
