"""The checker finds what is planted and names it, and finds nothing where all is well."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from dragoman.store import inbox
from dragoman.store.chat import entries
from dragoman.tools.verify.facts import Disturbance, JobFact, Rules, SessionFact, Tolerated
from dragoman.tools.verify.recordings import Kind, NodeEvent
from dragoman.tools.verify.speech_ledger import Answer, Failure, Given, SessionLedger
from support.tables import for_each
from unit.tools.verify.history import BEGIN, SLOTS, History, changed, flawless_history, with_facts

Spoil = Callable[[History], None]


def spoken(history: History, *, numbered: bool = False) -> SessionLedger:
    return next(one for one in history.sessions if one.numbered is numbered and len(one.answers) > 2)


def turn_of_three(history: History) -> list[NodeEvent]:
    """What was given of a turn of several jobs, and is answered."""
    given = [one for one in history.events if one.kind is Kind.GIVEN]
    for first in given:
        jobs = [one for one in given if one.turn == first.turn]
        if len(jobs) == 3:
            return jobs
    raise AssertionError("no turn of three on this history")


# -- faults, one each ------------------------------------------------------------------------------


def an_acceptance_came_to_nothing(history: History) -> None:
    history.chat.sent(1001, "gone", 1002, "hello")
    history.chat.accepted(1001, "gone", 9999)


def a_result_was_never_sent(history: History) -> None:
    one = spoken(history)
    one.answers.remove(max(one.answers, key=lambda answer: answer.index))


def an_utterance_is_still_open(history: History) -> None:
    one = spoken(history)
    gone = one.answers.pop(0)
    count = history.facts.sessions[one.id].next_index
    left = SessionFact(count, gone.index, frozenset(range(gone.index + 1, count)))
    with_facts(history, sessions={**history.facts.sessions, one.id: left})


def a_session_was_lost(history: History) -> None:
    one = spoken(history)
    one.answers.pop()
    one.lost_at, one.lost_why = BEGIN + 60, "nobody knows it"
    with_facts(history, sessions={name: fact for name, fact in history.facts.sessions.items() if name != one.id})


def words_were_never_cut(history: History) -> None:
    one = spoken(history)
    last = max(abs(number) for given in one.given for number in given.pieces)
    one.given.append(replace(one.given[-1], pieces=(last + 1,)))


def words_are_in_two_utterances(history: History) -> None:
    one = spoken(history)
    first, second = sorted(one.answers, key=lambda answer: answer.index)[:2]
    one.answers[one.answers.index(second)] = replace(second, text=f"{first.text} {second.text}")


def an_utterance_was_heard_as_another(history: History) -> None:
    one = spoken(history, numbered=True)
    one.answers[0] = replace(one.answers[0], text="")
    started = history.event(Kind.STARTED, one.id, one.answers[0].index)
    first, _, _ = started.pieces.partition(" ")
    history.swap(started, changed(started, pieces=str(int(first.partition("-")[0]) + 1000)))


def a_result_was_sent_twice(history: History) -> None:
    one = spoken(history)
    one.answers.append(replace(max(one.answers, key=lambda answer: answer.index), at=BEGIN + 500))


def a_result_came_after_its_failure(history: History) -> None:
    one = spoken(history)
    answer = one.answers[0]
    one.failures.append(Failure(answer.index, answer.at - 0.001, answer.job, "NO_AVAILABLE_NODE", "none"))


def a_result_is_marked_wrongly(history: History) -> None:
    one = spoken(history)
    one.answers[0] = replace(one.answers[0], backfilled=True)


def _overtaken(history: History, delay_s: float) -> None:
    """A result leaves so much later than it came, behind the next one of the same node."""
    one = spoken(history)
    for first in sorted(one.answers, key=lambda answer: answer.index):
        for second in one.answers:
            gave, later = (history.event(Kind.ENDED, one.id, each.index) for each in (first, second))
            if second.index > first.index and gave.node == later.node:
                one.answers.remove(first)
                one.answers.append(replace(first, at=second.at + delay_s))
                one.answers.sort(key=lambda answer: answer.at)
                _mark(one)
                return
    raise AssertionError("no two answers of one node")


def _mark(one: SessionLedger) -> None:
    marked, highest = list[Answer](), -1
    for answer in one.answers:
        marked.append(replace(answer, backfilled=answer.index < highest))
        highest = max(highest, answer.index)
    one.answers[:] = marked


def a_result_was_held_back(history: History) -> None:
    _overtaken(history, 0.5)


def a_result_was_sent_after_its_window(history: History) -> None:
    _overtaken(history, 7.0)


def an_attempt_was_started_twice(history: History) -> None:
    started = next(one for one in history.events if one.kind is Kind.STARTED)
    history.events.append(changed(started, at=started.at + 0.01))


def an_utterance_became_two_jobs(history: History) -> None:
    given = next(one for one in history.events if one.kind is Kind.GIVEN)
    history.events.append(changed(given, job="job-another", at=given.at + 0.01))


def an_attempt_was_given_to_two_nodes(history: History) -> None:
    given = next(one for one in history.events if one.kind is Kind.GIVEN)
    history.events.append(changed(given, node="n2" if given.node == "n1" else "n1", at=given.at + 0.01))


def a_node_got_more_than_it_has_slots(history: History) -> None:
    given = next(one for one in history.events if one.kind is Kind.GIVEN)
    for number in range(SLOTS + 1):
        more = {"job": f"job-more-{number}", "turn": f"t-more-{number}", "index": 100 + number}
        history.events.append(changed(given, at=given.at + 0.0001 * number, **more))


def a_turn_left_its_node(history: History) -> None:
    second = turn_of_three(history)[1]
    other = "n2" if second.node == "n1" else "n1"
    for event in [one for one in history.events if one.job == second.job]:
        history.swap(event, changed(event, node=other, pid=101 if other == "n2" else 100))


def a_job_took_too_long(history: History) -> None:
    job = next(iter(history.facts.jobs.values()))
    late = replace(job, finished_at=job.created_at + 40)
    with_facts(history, jobs={**history.facts.jobs, job.job: late})


def a_job_has_no_outcome(history: History) -> None:
    job = next(iter(history.facts.jobs.values()))
    with_facts(history, jobs={**history.facts.jobs, job.job: replace(job, state="RUNNING", outcome="")})


def a_slot_is_taken(history: History) -> None:
    with_facts(history, slots={"n1": ["job-1"]})


def a_turn_left_its_key(history: History) -> None:
    with_facts(history, leaks=["scheduler:turn:t-1 is left of a turn that has ended"])


def an_inbox_does_not_add_up(history: History) -> None:
    with_facts(history, inboxes={**history.facts.inboxes, "a": inbox.InboxCounts(added=7, done=6)})


def an_inbox_is_not_empty(history: History) -> None:
    with_facts(history, inboxes={**history.facts.inboxes, "a": inbox.InboxCounts(added=7, done=6, waiting=1)})


def a_shard_does_not_add_up(history: History) -> None:
    with_facts(history, shards=[entries.ShardStatus(accepted=5, saved=4)])


def a_shard_is_not_empty(history: History) -> None:
    with_facts(history, shards=[entries.ShardStatus(accepted=5, saved=4, backlog=1, accepted_len=1)])


def messages_are_counted_that_are_not_there(history: History) -> None:
    with_facts(history, unsaved={1001: 2})


PLANTED: dict[Spoil, str] = {
    an_acceptance_came_to_nothing: "lost",
    a_result_was_never_sent: "lost",
    an_utterance_is_still_open: "lost",
    a_session_was_lost: "lost",
    words_were_never_cut: "lost",
    words_are_in_two_utterances: "duplicated",
    an_utterance_was_heard_as_another: "altered",
    a_result_was_sent_twice: "duplicated",
    a_result_came_after_its_failure: "settled twice",
    a_result_is_marked_wrongly: "reorder",
    a_result_was_held_back: "held back",
    a_result_was_sent_after_its_window: "late",
    an_attempt_was_started_twice: "started twice",
    an_utterance_became_two_jobs: "double booking",
    an_attempt_was_given_to_two_nodes: "double booking",
    a_node_got_more_than_it_has_slots: "over its slots",
    a_turn_left_its_node: "strayed",
    a_job_took_too_long: "late",
    a_job_has_no_outcome: "no outcome",
    a_slot_is_taken: "slot leak",
    a_turn_left_its_key: "key leak",
    an_inbox_does_not_add_up: "account",
    an_inbox_is_not_empty: "inbox left",
    a_shard_does_not_add_up: "account",
    a_shard_is_not_empty: "shard left",
    messages_are_counted_that_are_not_there: "shard left",
}


@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(0, 12), st.integers(1, 30))
def test_a_good_day_has_no_findings(seed: int, sessions: int, turns: int, messages: int) -> None:
    history = flawless_history(seed, sessions, turns, messages)
    verdict = history.verdict()
    assert verdict.findings == ()
    assert verdict.ok
    assert verdict.promised == verdict.kept == messages + len(history.facts.jobs)


@for_each(product(PLANTED, range(4)))
def test_check_finds_and_names_each_injected_error(spoil: Spoil, seed: int) -> None:
    history = flawless_history(seed, sessions=6, turns=16, messages=40)
    spoil(history)
    verdict = history.verdict()
    assert not verdict.ok
    assert PLANTED[spoil] in {finding.kind for finding in verdict.findings}, verdict.findings


@given(st.integers(0, 10**6), st.sampled_from(list(PLANTED)))
def test_one_fault_is_found_on_any_day(seed: int, spoil: Spoil) -> None:
    history = flawless_history(seed, sessions=6, turns=16, messages=40)
    spoil(history)
    assert PLANTED[spoil] in history.kinds()


# -- what is no broken promise ---------------------------------------------------------------------


def test_day_without_any_message_is_not_clean() -> None:
    """Nothing was put to the test, and that must not look like a success."""
    verdict = flawless_history(1, 0, 0, 0).verdict()
    assert [finding.kind for finding in verdict.findings] == ["nothing promised"]


def test_node_events_after_the_snapshot_are_ignored() -> None:
    history = flawless_history(1, 2, 6, 5)
    last = max(one.at for one in history.events)
    given = next(one for one in history.events if one.kind is Kind.GIVEN)
    late = changed(given, at=last + 1, job="job-late", turn="t-late", index=999)
    with_facts(history, read_at=last)
    history.events += [late, changed(late, kind=Kind.ENDED, outcome="empty")]
    assert history.verdict().findings == ()
    with_facts(history, read_at=last + 2)
    assert history.verdict().findings != ()


def test_results_after_the_snapshot_may_be_in_flight() -> None:
    """Silence at the end is cut when nobody speaks any more: its `DISPATCHED` may come before its result."""
    history = flawless_history(1, 2, 6, 5)
    last = max(one.at for one in history.events)
    spoken(history).seen[len(spoken(history).seen) + 9] = last + 1
    with_facts(history, read_at=last)
    assert history.verdict().findings == ()
    with_facts(history, read_at=last + 2)
    assert {finding.kind for finding in history.verdict().findings} == {"lost"}


def test_the_end_of_a_job_that_came_while_the_stores_were_looked_at_counts() -> None:
    history = flawless_history(1, 2, 6, 5)
    with_facts(history, read_at=max(one.at for one in history.events if one.kind is Kind.GIVEN))
    assert history.verdict().findings == ()


def test_message_confirmed_once_counts_as_delivered_and_is_kept_when_saved() -> None:
    history = flawless_history(1, 0, 0, 5)
    for entry in history.chat.entries.values():
        entry.accepted_at = None
    verdict = history.verdict()
    assert (verdict.findings, verdict.promised, verdict.kept) == ((), 5, 5)


def test_losses_within_the_durability_class_are_counted_apart() -> None:
    history = flawless_history()
    an_acceptance_came_to_nothing(history)
    now = time.monotonic()
    verdict = history.verdict(Tolerated(lost_spans=[(now - 2, now)]))
    assert verdict.findings == ()
    assert (verdict.lost, verdict.tolerated_lost) == (0, 1)
    assert verdict.kept == verdict.promised - 1


def test_losses_older_than_the_durability_class_are_not_tolerated() -> None:
    history = flawless_history()
    an_acceptance_came_to_nothing(history)
    now = time.monotonic()
    verdict = history.verdict(Tolerated(lost_spans=[(now + 10, now + 12)]))
    assert (verdict.lost, verdict.tolerated_lost) == (2, 0)  # lost, and its sender knows nothing of its end


def test_a_session_that_redis_forgot_is_counted_apart() -> None:
    history = flawless_history()
    a_session_was_lost(history)
    verdict = history.verdict(Tolerated(lost_spans=[(BEGIN - 1, BEGIN + 1)]))
    assert verdict.findings == ()
    assert verdict.tolerated_lost >= 1


def test_counters_that_redis_lost_are_reported_as_such() -> None:
    history = flawless_history()
    an_inbox_does_not_add_up(history)
    verdict = history.verdict(Tolerated(lost_spans=[(BEGIN, BEGIN + 2)]))
    assert verdict.ok
    assert any("inbox of a" in note for note in verdict.notes)


def test_counter_that_was_off_before_is_not_reported_again() -> None:
    history = flawless_history()
    an_inbox_does_not_add_up(history)
    assert history.verdict(before=history.facts).ok
    with_facts(history, inboxes={**history.facts.inboxes, "a": inbox.InboxCounts(added=17, done=14)})
    assert not history.verdict(before=replace(history.facts, inboxes={"a": inbox.InboxCounts(added=7, done=6)})).ok


def test_a_turn_may_leave_a_node_that_is_gone() -> None:
    history = flawless_history(sessions=6, turns=16)
    a_turn_left_its_node(history)
    first = turn_of_three(history)[0]
    history.events.append(changed(first, kind=Kind.LOST, at=first.at + 0.0005, job="", session="", index=-1, turn=""))
    assert "strayed" not in history.kinds()


def test_a_turn_may_leave_a_node_whose_process_was_killed() -> None:
    history = flawless_history(sessions=6, turns=16)
    a_turn_left_its_node(history)
    first = turn_of_three(history)[0]
    moved = next(one for one in turn_of_three(history) if one.node != first.node)
    history.events = [one for one in history.events if one.node != first.node or one.at < moved.at]
    assert "strayed" not in history.kinds()


def test_a_turn_may_leave_a_node_whose_instance_was_broken_and_no_other() -> None:
    history = flawless_history(sessions=6, turns=16)
    a_turn_left_its_node(history)
    first = turn_of_three(history)[0]
    port = {"n1": 5010, "n2": 5011}
    hers, other = port[first.node], port["n2" if first.node == "n1" else "n1"]
    assert "strayed" not in history.kinds(Tolerated(disturbed=[Disturbance(BEGIN, BEGIN + 500, frozenset({hers}))]))
    assert "strayed" in history.kinds(Tolerated(disturbed=[Disturbance(BEGIN, BEGIN + 500, frozenset({other}))]))


def test_results_may_be_overtaken_while_something_is_broken_or_the_session_moves() -> None:
    for spoil in (a_result_was_held_back, a_result_was_sent_after_its_window):
        history = flawless_history(sessions=6, turns=16)
        spoil(history)
        assert history.verdict(Tolerated(disturbed=[Disturbance(BEGIN, BEGIN + 500)])).ok
        for one in history.sessions:
            one.resumed_at = [answer.at - 0.0001 for answer in one.answers]
        assert history.verdict().ok


@for_each(
    [
        ("v1 at redis-1", -0.08, True),  # recorded after the later one
        ("v1 at redis-2", -0.08, True),
        ("v1 at redis-2", 0.08, True),  # two servers confirm in any order
        ("v2 at redis-1", 0.08, True),
        ("v1 at redis-1", 0.001, False),  # one instance, one server: recorded first, sent first
        ("v1 at redis-2", 1.1, False),  # no confirmation takes that long
    ]
)
def test_result_is_sent_in_the_order_in_which_ends_are_recorded_on_one_path(
    recorded_by: str, recorded_s: float, holds: bool
) -> None:
    """The node answered the first of two 80 ms before the second, and the client got it 10 ms after the second."""
    history = flawless_history(sessions=1, turns=0, messages=1)
    session = history.sessions[0]
    session.given, jobs = [Given((1,), BEGIN), Given((2,), BEGIN)], dict[str, JobFact]()
    for index, ended, recorded, by in ((0, 2.0, 2.2, recorded_by), (1, 2.08, 2.2 + recorded_s, "v1 at redis-1")):
        job, at = f"job-{index}", BEGIN + ended
        named = {"job": job, "attempt": 1, "session": session.id, "index": index}
        assigned = NodeEvent(BEGIN + 1, Kind.GIVEN, "n1", 100, slots=SLOTS, **named)  # type: ignore[arg-type]
        history.events += [assigned, changed(assigned, at=at, kind=Kind.ENDED, outcome="ok")]
        finished = BEGIN + recorded
        jobs[job] = JobFact(job, session.id, index, "RELEASED", "ok", "", 1, "n1", BEGIN + 1, finished, by)
    session.answers = [Answer(1, BEGIN + 3.4, "job-1", False, "2"), Answer(0, BEGIN + 3.41, "job-0", True, "1")]
    with_facts(history, jobs=jobs, sessions={session.id: SessionFact(2, 2)})
    assert {finding.kind for finding in history.verdict().findings} == (set() if holds else {"held back"})


def crowded_history(bound: int, free: int) -> History:
    """One node at one moment: so many jobs of one turn after its first, then so many that begin turns of their own."""
    history = flawless_history(sessions=1, turns=0, messages=0)
    given = NodeEvent(BEGIN, Kind.GIVEN, "n1", 100, slots=SLOTS, attempt=1, session=history.sessions[0].id)
    turns = ["t"] * (1 + bound) + [f"t-{number}" for number in range(free)]
    history.events += [
        changed(given, job=f"job-{number}", index=number, turn=turn, at=BEGIN + number / 1000)
        for number, turn in enumerate(turns)
    ]
    return history


def test_a_job_bound_to_its_turn_may_come_before_one_that_took_the_last_free_slot() -> None:
    assert "over its slots" not in crowded_history(bound=1, free=SLOTS - 1).kinds()
    assert "over its slots" in crowded_history(bound=1, free=SLOTS).kinds()


def test_jobs_bound_to_their_turn_are_too_many_beyond_the_overcommit() -> None:
    overcommit = Rules().overcommit
    assert "over its slots" not in crowded_history(bound=overcommit + 1, free=SLOTS - 2).kinds()
    assert "over its slots" in crowded_history(bound=overcommit + 1, free=SLOTS - 1).kinds()


def skipped_day(came_s_after: float) -> History:
    """The second to last result of a session came so long after the last was out, from the same node; never sent."""
    history = flawless_history(sessions=1, turns=0, messages=0)
    (one,) = history.sessions
    given = NodeEvent(BEGIN, Kind.GIVEN, "n1", 100, slots=SLOTS, attempt=1, session=one.id)
    for index, ended in ((0, BEGIN + 1 + came_s_after), (1, BEGIN + 1)):
        job = changed(given, job=f"job-{index}", index=index, turn=f"t-{index}")
        history.events += [job, changed(job, kind=Kind.STARTED, pieces=str(index + 1))]
        history.events.append(changed(job, kind=Kind.ENDED, outcome="ok", at=ended))
        one.given.append(Given((index + 1,), BEGIN))
    one.answers.append(Answer(1, BEGIN + 1, "job-1", False, "2"))
    with_facts(history, sessions={one.id: SessionFact(2, 2)})
    return history


def test_a_result_that_came_after_its_window_is_skipped_and_that_is_right() -> None:
    verdict = skipped_day(came_s_after=6.0).verdict()
    assert verdict.findings == ()
    assert "1 utterances were skipped" in verdict.notes


def test_a_result_that_came_within_its_window_and_was_not_sent_is_lost() -> None:
    assert skipped_day(came_s_after=2.0).kinds() == {"lost"}


def test_the_words_of_a_skipped_utterance_are_not_known_if_no_node_began_it() -> None:
    history = skipped_day(came_s_after=6.0)
    history.events = [one for one in history.events if one.index != 0 or one.kind is Kind.GIVEN]
    assert history.verdict().findings == ()


def test_a_session_that_was_lost_because_its_client_did_not_read_is_an_end_of_all_that_waited() -> None:
    history = flawless_history(1)
    a_session_was_lost(history)
    one = next(one for one in history.sessions if one.lost_at is not None)
    assert not history.verdict().ok
    one.slow = True
    verdict = history.verdict()
    assert verdict.ok, verdict.findings


def test_reported_failure_is_an_end() -> None:
    history = flawless_history()
    one = spoken(history)
    answer = one.answers.pop()
    one.failures.append(Failure(answer.index, answer.at, answer.job, "NO_AVAILABLE_NODE", "none"))
    _mark(one)
    verdict = history.verdict()
    assert verdict.findings == ()
    assert verdict.kept == verdict.promised


def test_findings_say_where_to_look() -> None:
    history = flawless_history()
    a_result_was_never_sent(history)
    (finding,) = history.verdict().findings
    assert finding.kind == "lost"
    assert spoken(flawless_history()).id in finding.sentence
    assert "attempt 1 on n" in finding.sentence
    assert str(finding) == f"{finding.kind}: {finding.sentence}"
