from typing import Any

import pytest

from dragoman.cli.explain import BY_TURN, DROPPED, OBSTACLES, OUTCOMES, story
from dragoman.domain.job import Outcome
from dragoman.domain.placement import AffinityResult, Obstacle
from dragoman.domain.release import Drop
from support.tables import for_each

T = 1_794_782_977_000


def job(**fields: Any) -> dict[str, Any]:
    """The API's answer for a job that succeeded; times are in ms after its creation."""
    answer: dict[str, Any] = {
        "job_id": "job-1",
        "session_id": "s-1",
        "utterance_index": "3",
        "src_lang": "en",
        "tgt_lang": "es",
        "driver": "i0",
        "state": "RELEASED",
        "attempt": "1",
        "node_id": "n1",
        "outcome": "ok",
        "code": "",
        "receipt": {"pool": 5, "drawn": ["n1", "n2"], "chosen": "n1", "affinity": None},
    }
    times = {"created": 0, "dispatched": 1200, "acked": 1203, "started": 1300, "finished": 1800, "released": 1801}
    times |= fields.pop("times", {})
    answer |= {f"{name}_ms": str(T + at) for name, at in times.items() if at is not None}
    return answer | fields


def lines_of(heading: str, **fields: Any) -> str:
    return "\n".join(story(job(**fields))[heading])


def test_explain_names_the_job_its_utterance_and_its_languages() -> None:
    assert lines_of("What") == "job-1: utterance 3 of session s-1, en → es; driven by instance i0."


@pytest.mark.parametrize(("kind", "session", "what"), [("room", "r-1", "room r-1"), ("chat", "chat", "chat")])
def test_explain_names_what_asked_for_a_text(kind: str, session: str, what: str) -> None:
    said = lines_of("What", text_kind=kind, session_id=session)
    assert said == f"job-1: a text of {what}, en → es; driven by instance i0."


def test_where_names_the_candidates_and_the_chosen_node() -> None:
    where = lines_of("Where")
    assert where.startswith("5 nodes could serve en → es. Candidates: n1, n2 (2 random of 5). Chosen: n1, ")


def test_where_names_only_the_chosen_node_for_a_pool_of_one() -> None:
    receipt = {"pool": 1, "drawn": ["n1"], "chosen": "n1"}
    assert lines_of("Where", receipt=receipt) == "1 node could serve en → es. Chosen: n1."


def test_where_names_the_node_that_has_heard_the_utterance_before_its_end() -> None:
    receipt = {"pool": 2, "drawn": ["n1"], "chosen": "n1", "previewed": True}
    assert lines_of("Where", receipt=receipt).endswith("Chosen: n1, which has heard the utterance while it was spoken.")


def test_where_says_that_the_result_may_be_text_only() -> None:
    receipt = {"pool": 2, "drawn": ["n1"], "chosen": "n1", "text_only": True}
    assert lines_of("Where", receipt=receipt).endswith("n1 may have no voice for es: the result may be text only.")


@for_each(list(AffinityResult))
def test_where_explains_the_affinity_of_the_turn(affinity: AffinityResult) -> None:
    where = lines_of("Where", receipt={"pool": 5, "drawn": ["n1", "n2"], "chosen": "n1", "affinity": affinity.value})
    assert BY_TURN[affinity.value].format(chosen="n1") in where
    assert ("2 random of 5" in where) is (affinity is not AffinityResult.HIT)


@for_each(list(Obstacle))
def test_where_names_every_node_that_was_not_eligible_and_why(obstacle: Obstacle) -> None:
    counts, names = {obstacle.value: 2}, {"n1": obstacle.value, "n2": obstacle.value}
    receipt = {"pool": 2, "drawn": [], "chosen": None, "counts": counts, "names": names}
    where = lines_of("Where", receipt=receipt, node_id="", outcome="failed", code="NO_AVAILABLE_NODE")
    assert f"2 {OBSTACLES[obstacle.value]} (n1, n2). No node was chosen." in where


def test_where_says_that_no_node_serves_the_languages() -> None:
    where = lines_of("Where", receipt={"pool": 0, "drawn": [], "chosen": None, "counts": {}, "names": {}})
    assert where == "No node served en → es. No node was chosen."


def test_where_says_that_no_placement_was_recorded() -> None:
    assert lines_of("Where", receipt=None) == "No placement was recorded."


def test_when_gives_a_reason_for_every_wait() -> None:
    assert [line.strip() for line in lines_of("When").splitlines()] == [
        "+0 ms  recorded",
        "+1200 ms  sent to the node (1200 ms for a node)",
        "+1203 ms  acknowledged by the node (3 ms for the acknowledgement)",
        "+1300 ms  started (97 ms in the node's queue)",
        "+1800 ms  finished (500 ms of work)",
        "+1801 ms  slot released",
    ]


def test_when_shows_the_wait_before_placement() -> None:
    times = {"dispatched": 0}
    assert [line.strip() for line in lines_of("When", times=times, waited_ms="750").splitlines()][:4] == [
        "+0 ms  cut",
        "+750 ms  recorded (750 ms for a node with a free slot)",
        "+750 ms  sent to the node",
        "+1953 ms  acknowledged by the node (1203 ms for the acknowledgement)",
    ]


def test_when_leaves_out_the_steps_of_an_earlier_attempt() -> None:
    times = {"acked": 10, "started": 11, "reassigned": 2000, "dispatched": 2005, "finished": 15_000, "released": None}
    assert [line.strip() for line in lines_of("When", times=times).splitlines()] == [
        "+0 ms  recorded",
        "+2000 ms  returned for another attempt",
        "+2005 ms  sent to the node (5 ms for a node)",
        "+15.0 s  finished (13.0 s for the node's answer)",
    ]


def test_where_explains_every_earlier_attempt() -> None:
    attempts = [
        {"attempt": "1", "node_id": "n7", "reason": "node_lost", "dispatched_ms": str(T), "ended_ms": str(T + 40)},
        {"attempt": "2", "node_id": "n8", "reason": "a_new_one", "dispatched_ms": str(T + 40), "ended_ms": "soon"},
    ]
    where = lines_of("Where", attempts=attempts, attempt="3", times={"reassigned": 50}).splitlines()
    assert where[:2] == [
        "Attempt 1 at n7 ended after 40 ms: the node disconnected.",
        "Attempt 2 at n8 ended: a_new_one.",
    ]
    assert where[2].startswith("Attempt 3: 5 nodes could serve en → es.")


def test_job_without_a_node_has_no_slot_and_no_work() -> None:
    times = {"dispatched": None, "acked": None, "started": None, "finished": 2000, "released": 2001}
    fields = {
        "times": times,
        "node_id": "",
        "outcome": "failed",
        "code": "NO_AVAILABLE_NODE",
        "message": "no node\x1b[2J.",
    }
    assert [line.strip() for line in lines_of("When", **fields).splitlines()] == [
        "+0 ms  recorded",
        "+2000 ms  finished (2000 ms for a node)",
    ]
    assert (
        lines_of("End", **fields) == "It failed (NO_AVAILABLE_NODE), at the first attempt. Reason: no node\\u001b[2J."
    )


def test_where_names_a_last_attempt_without_a_node_first() -> None:
    times = {"dispatched": 0, "acked": None, "started": None, "reassigned": 2000}
    fields = {"times": times, "node_id": "", "attempt": "2", "outcome": "failed", "code": "NODE_UNAVAILABLE"}
    assert lines_of("Where", **fields).startswith("No node was found for attempt 2. Before that: 5 nodes could serve")
    assert "sent to the node" not in lines_of("When", **fields)
    assert lines_of("End", **fields) == "It failed (NODE_UNAVAILABLE), after 2 attempts."


def test_where_explains_why_no_node_was_chosen_for_the_last_attempt() -> None:
    receipt = {"pool": 1, "drawn": [], "chosen": None, "counts": {"seen": 1}, "names": {"n1": "seen"}}
    times = {"dispatched": None, "acked": None, "started": None, "reassigned": 2000}
    where = lines_of("Where", times=times, node_id="", attempt="2", receipt=receipt, outcome="failed")
    assert where.startswith(
        "For attempt 2: 1 node could serve en → es. 1 excluded: this job was tried there before (n1)."
    )


@for_each(list(Outcome))
def test_end_has_a_text_for_every_outcome(outcome: Outcome) -> None:
    assert lines_of("End", outcome=outcome.value).startswith(OUTCOMES[outcome.value])


def test_end_explains_a_skipped_utterance_and_its_late_result() -> None:
    times = {"finished": 6000, "released": 6001, "late": 7000}
    ended = {"outcome": "cancelled", "code": "SKIPPED", "release_state": "skipped", "late_node_id": "n1"}
    assert lines_of("End", times=times, **ended) == (
        "It was cancelled at n1 (SKIPPED), at the first attempt. Its utterance was skipped: no result arrived "
        "within the release window after a later utterance. A result of n1 arrived after that and was dropped."
    )
    assert lines_of("When", times=times, **ended).endswith("+7000 ms  late result dropped")


@for_each(list(Drop))
def test_end_says_why_a_result_was_dropped(drop: Drop) -> None:
    assert f"The result was dropped: {DROPPED[drop.value]}." in lines_of("End", release_state=drop.value)


def test_end_says_that_a_result_was_backfilled() -> None:
    assert lines_of("End", release_state="backfilled").endswith(
        "The result was sent after a later one, marked as backfilled."
    )


def test_end_shows_the_state_of_a_running_job() -> None:
    end = lines_of("End", outcome="", state="RUNNING", attempt="2")
    assert end == "It has not ended: RUNNING at n1, attempt 2."


def test_end_says_that_the_slot_is_not_released() -> None:
    assert lines_of("End", state="FINISHED").endswith("Its slot is not released yet.")


def test_fields_of_another_release_are_ignored() -> None:
    assert set(story({"attempt": "two", "created_ms": "once"})) == {"What", "Where", "When", "End"}
