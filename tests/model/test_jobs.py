"""The scripts of jobs against the table of domain/job.py."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dragoman.domain.job import OUTCOME_OF, Event, Job, Outcome, Reply, State
from dragoman.store.jobs import ADVANCE_JOB, CREATE_JOB, NOTE_LATE_RESULT, NOTE_RELEASE_STATE
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, planted, with_bug

NODES = st.sampled_from(["", "n1", "n2"])
STAMPS = {
    State.CREATED: "reassigned_ms",
    State.DISPATCHED: "dispatched_ms",
    State.ACCEPTED: "acked_ms",
    State.RUNNING: "started_ms",
    State.FINISHED: "finished_ms",
    State.RELEASED: "released_ms",
}
TTL_MS = 3_600_000
SAME = "the node that has it"


@dataclass(frozen=True)
class Said:
    """What somebody says of a job beside the event itself."""

    attempt: int | None  # as the difference from the current one
    node: str
    outcome: Outcome | None
    code: str
    ttl: int


SAID = st.builds(
    Said,
    attempt=st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1, None]),
    node=st.sampled_from([SAME, SAME, SAME, "", "n1", "n2"]),
    outcome=st.none() | st.sampled_from(Outcome),
    code=st.sampled_from(["", "NO_TEXT", "INSTANCE_LOST", "SKIPPED"]),
    ttl=st.sampled_from([TTL_MS, 2 * TTL_MS]),
)


class Life(RuleBasedStateMachine):
    """One job; the model is the domain's own, and a dictionary of the times and notes beside it."""

    def __init__(self, bench: Bench, advance: Script = ADVANCE_JOB) -> None:
        super().__init__()
        self.bench, self.script = bench, advance
        self.key = bench.keys.job(bench.fresh_name())
        self.now = START_MS
        self.job: Job | None = None
        self.beside: dict[str, str] = {}
        self.life = TTL_MS

    def create_here(self, node: str) -> bytes:
        self.now += 1
        values: dict[str, Any] = {"node": node, "epoch": 7 if node else "", "ttl": TTL_MS, "now": self.now}
        fields = ["session_id", "s", "request", f"r{self.now}"]
        reply: bytes = self.bench.do(CREATE_JOB(self.bench.redis, job=self.key, fields=fields, **values))
        if self.job is not None and self.job.state in (State.FINISHED, State.RELEASED):
            self.beside = {"session_id": "s", "request": f"r{self.now}"} | self.beside
        if self.job is None:
            self.job = Job()
            self.beside = {"v": "1", "created_ms": str(self.now), "session_id": "s", "request": f"r{self.now}"}
            if node:
                self.job.apply(Event.DISPATCH, 1, node)
                self.beside |= {"node_epoch": "7", "dispatched_ms": str(self.now)}
        return reply

    @initialize(node=st.sampled_from(["", "n1", "n2", None]))
    def begin(self, node: str | None) -> None:
        """Mostly with a record, sometimes without."""
        if node is not None:
            assert self.create_here(node) == b"OK"

    @rule(node=NODES)
    def create(self, node: str) -> None:
        job = self.job
        over = job is not None and job.state in (State.FINISHED, State.RELEASED)
        assert self.create_here(node) == (b"OK" if job is None else b"ENDED" if over else b"ALREADY")

    @rule(event=st.sampled_from([Event.DISPATCH, Event.ACK, Event.START]), said=SAID)
    def go_on(self, event: Event, said: Said) -> None:
        self.advance(event, said)

    @rule(event=st.sampled_from([Event.RESULT, Event.EXPIRE, Event.CANCEL, Event.GIVE_UP]), said=SAID)
    def end(self, event: Event, said: Said) -> None:
        self.advance(event, said)

    @rule(said=SAID)
    def release(self, said: Said) -> None:
        self.advance(Event.RELEASE, said)

    @rule(said=SAID)
    def reassign(self, said: Said) -> None:
        self.advance(Event.REASSIGN, said)

    @rule(node=st.sampled_from(["n1", "n2"]))
    def late_result(self, node: str) -> None:
        self.now += 1
        reply = self.bench.do(NOTE_LATE_RESULT(self.bench.redis, job=self.key, node=node, now=self.now))
        outcome, code = (self.job.outcome, self.job.code) if self.job is not None else (None, None)
        late = outcome in (Outcome.FAILED, Outcome.EXPIRED) or (outcome is Outcome.CANCELLED and code == "SKIPPED")
        assert reply == (b"LATE" if late else b"NO")
        if late and "late_ms" not in self.beside:
            self.beside |= {"late_ms": str(self.now), "late_node_id": node}

    @rule(state=st.sampled_from(["sent", "skipped"]))
    def note_release_state(self, state: str) -> None:
        reply = self.bench.do(NOTE_RELEASE_STATE(self.bench.redis, job=self.key, state=state))
        assert reply == (b"UNKNOWN" if self.job is None else b"OK")
        if self.job is not None:
            self.beside["release_state"] = state

    def advance(self, event: Event, said: Said) -> None:
        self.now += 1
        job = self.job or Job()
        attempt = None if said.attempt is None else job.attempt + said.attempt
        node = (job.node_id or "n1") if said.node == SAME else said.node
        outcome = said.outcome or OUTCOME_OF.get(event)
        reply = self.bench.do(
            self.script(
                self.bench.redis,
                job=self.key,
                event=event.value,
                attempt="" if attempt is None else attempt,
                node=node,
                outcome=outcome.value if outcome else "",
                code=said.code,
                ttl=said.ttl,
                now=self.now,
                fields=["note", self.now],
            )
        )
        if self.job is None:
            assert reply.decode() == Reply.UNKNOWN
            return
        past = {
            f"attempt_{job.attempt}_node_id": job.node_id or "",
            f"attempt_{job.attempt}_reason": said.code,
            f"attempt_{job.attempt}_dispatched_ms": self.beside.get("dispatched_ms", ""),
            f"attempt_{job.attempt}_ended_ms": str(self.now),
        }
        assert reply.decode() == self.job.apply(event, attempt, node or None, said.outcome, said.code)
        if reply == b"OK":
            self.beside |= {STAMPS[self.job.state]: str(self.now), "note": str(self.now)}
            self.life = said.ttl
            if event is Event.START:
                self.beside.setdefault("acked_ms", str(self.now))
            elif event is Event.REASSIGN:
                self.beside |= past
                for gone in ("node_epoch", "dispatched_ms", "acked_ms", "started_ms"):
                    self.beside.pop(gone, None)

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        there = self.bench.hash(self.key)
        if self.job is None:
            assert not there
            return
        told = Job(
            State(there.pop("state")),
            int(there.pop("attempt")),
            there.pop("node_id", "") or None,
            Outcome(there.pop("outcome")) if "outcome" in there else None,
            there.pop("code", None),
        )
        assert told == self.job
        assert there == self.beside
        assert self.bench.lives(self.key, self.life)

    def teardown(self) -> None:
        self.bench.call("DEL", self.key)


def test_the_scripts_of_a_job_follow_the_table_of_the_domain(bench: Bench) -> None:
    check(lambda: Life(bench), examples=80)


BUGS = {
    "no look at the attempt": ("if attempt ~= '' and attempt ~= have[2] then return 'STALE' end\n", ""),
    "no look at the node": ("if from_node and node ~= '' and node ~= have[3] then return 'WRONG_NODE' end\n", ""),
    "a release that is allowed twice": ("return from == 'FINISHED' end", "return rank[from] >= rank.FINISHED end"),
    "a reassignment that keeps the attempt": ("    redis.call('HINCRBY', job, 'attempt', 1)\n", ""),
    "an end that is allowed after the end": ("return rank[from] < rank.F", "return rank[from] <= rank.F"),
    "a reassignment that keeps the node": ("'node_id', 'node_epoch'", "'node_epoch'"),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", planted(BUGS, "no look at the attempt", "a reassignment that keeps the node"))
def test_a_bug_in_advance_job_is_found(bench: Bench, bug: str) -> None:
    wrong = with_bug("advance_job", *BUGS[bug])
    assert finds_a_difference(lambda: Life(bench, wrong))


@pytest.mark.parametrize("state", State)
def test_every_event_in_every_state_is_answered_as_the_table_says(bench: Bench, state: State) -> None:
    for event, attempt, node in product(Event, (None, 1, 2, 3), ("", "n1", "n2")):
        key = bench.keys.job(bench.fresh_name())
        job = Job(state, attempt=2, node_id=None if state is State.CREATED else "n1")
        bench.call("HSET", key, "state", state.value, "attempt", 2, *(["node_id", "n1"] if job.node_id else []))
        said = {"event": event.value, "attempt": attempt or "", "node": node, "outcome": "", "code": ""}
        reply = bench.do(ADVANCE_JOB(bench.redis, job=key, **said, ttl=TTL_MS, now=START_MS, fields=[]))
        assert reply.decode() == job.apply(event, attempt, node or None), (event, attempt, node)
        there = bench.hash(key)
        assert (there["state"], there["attempt"], there.get("node_id") or None) == (
            job.state,
            str(job.attempt),
            job.node_id,
        )
        bench.call("DEL", key)
