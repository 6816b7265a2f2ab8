from typing import Any

import pytest

from dragoman.cli.explain import BY_TURN, DROPPED, OBSTACLES, OUTCOMES, story
from dragoman.domain.job import Outcome
from dragoman.domain.placement import Obstacle
from dragoman.domain.release import Drop
from dragoman.domain.turn import AffinityResult

T = 1_794_782_977_000


def job(**fields: Any) -> dict[str, Any]:
    """As the API tells of one that went well; times are ms after its beginning."""
    told: dict[str, Any] = {
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
    told |= {f"{name}_ms": str(T + at) for name, at in times.items() if at is not None}
    return told | fields


def told(heading: str, **fields: Any) -> str:
    return "\n".join(story(job(**fields))[heading])


def test_a_job_is_named_with_what_it_translates() -> None:
    assert told("What") == "job-1: utterance 3 of session s-1, en → es; driven by instance i0."


def test_a_free_choice_names_those_it_was_between() -> None:
    where = told("Where")
    assert where.startswith("5 nodes could serve en → es. Of n1, n2, drawn at random, n1 was the best")


def test_a_pool_of_one_leaves_no_choice() -> None:
    receipt = {"pool": 1, "drawn": ["n1"], "chosen": "n1"}
    assert told("Where", receipt=receipt) == "1 node could serve en → es. It went to n1."


def test_a_choice_without_a_voice_is_told() -> None:
    receipt = {"pool": 2, "drawn": ["n1"], "chosen": "n1", "text_only": True}
    assert told("Where", receipt=receipt).endswith("n1 is not known to speak es: the result may be text only.")


@pytest.mark.parametrize("affinity", list(AffinityResult))
def test_what_the_turn_had_to_say_is_told(affinity: AffinityResult) -> None:
    where = told("Where", receipt={"pool": 5, "drawn": ["n1", "n2"], "chosen": "n1", "affinity": affinity.value})
    assert BY_TURN[affinity.value].format(chosen="n1") in where
    assert ("drawn at random" in where) is (affinity is not AffinityResult.HIT)


@pytest.mark.parametrize("obstacle", list(Obstacle))
def test_why_nobody_could_have_it_is_told_with_names(obstacle: Obstacle) -> None:
    counts, names = {obstacle.value: 2}, {"n1": obstacle.value, "n2": obstacle.value}
    receipt = {"pool": 2, "drawn": [], "chosen": None, "counts": counts, "names": names}
    where = told("Where", receipt=receipt, node_id="", outcome="failed", code="NO_AVAILABLE_NODE")
    assert f"2 were {OBSTACLES[obstacle.value]} (n1, n2). So nobody had it." in where


def test_an_empty_pool_is_told() -> None:
    where = told("Where", receipt={"pool": 0, "drawn": [], "chosen": None, "counts": {}, "names": {}})
    assert where == "No node served en → es. So nobody had it."


def test_a_job_without_a_receipt_is_told_as_that() -> None:
    assert told("Where", receipt=None) == "No placement was recorded."


def test_every_wait_has_its_reason() -> None:
    assert [line.strip() for line in told("When").splitlines()] == [
        "+0 ms  recorded",
        "+1200 ms  sent to its node (1200 ms for a node)",
        "+1203 ms  taken by the node (3 ms for the node's word)",
        "+1300 ms  begun (97 ms in the node's queue)",
        "+1800 ms  ended (500 ms for the work itself)",
        "+1801 ms  slot given back",
    ]


def test_what_a_job_waited_for_its_place_is_told() -> None:
    times = {"dispatched": 0}
    assert [line.strip() for line in told("When", times=times, waited_ms="750").splitlines()][:4] == [
        "+0 ms  cut",
        "+750 ms  recorded (750 ms for a node with a free slot)",
        "+750 ms  sent to its node",
        "+1953 ms  taken by the node (1203 ms for the node's word)",
    ]


def test_of_an_attempt_that_was_taken_back_only_that_is_told() -> None:
    times = {"acked": 10, "started": 11, "reassigned": 2000, "dispatched": 2005, "finished": 15_000, "released": None}
    assert [line.strip() for line in told("When", times=times).splitlines()] == [
        "+0 ms  recorded",
        "+2000 ms  taken back for another attempt",
        "+2005 ms  sent to its node (5 ms for a node)",
        "+15.0 s  ended (13.0 s for the node's answer)",
    ]


def test_every_attempt_that_was_taken_back_is_explained_with_its_node_and_why_it_ended() -> None:
    attempts = [
        {"attempt": "1", "node_id": "n7", "reason": "node_lost", "dispatched_ms": str(T), "ended_ms": str(T + 40)},
        {"attempt": "2", "node_id": "n8", "reason": "a_new_one", "dispatched_ms": str(T + 40), "ended_ms": "soon"},
    ]
    where = told("Where", attempts=attempts, attempt="3", times={"reassigned": 50}).splitlines()
    assert where[:2] == [
        "Attempt 1 at n7 ended after 40 ms: the node was lost.",
        "Attempt 2 at n8 ended: a_new_one.",
    ]
    assert where[2].startswith("Attempt 3: 5 nodes could serve en → es.")


def test_a_job_that_found_no_node_gives_no_slot_back_and_did_no_work() -> None:
    times = {"dispatched": None, "acked": None, "started": None, "finished": 2000, "released": 2001}
    fields = {
        "times": times,
        "node_id": "",
        "outcome": "failed",
        "code": "NO_AVAILABLE_NODE",
        "message": "no node\x1b[2J.",
    }
    assert [line.strip() for line in told("When", **fields).splitlines()] == [
        "+0 ms  recorded",
        "+2000 ms  ended (2000 ms for a node)",
    ]
    assert (
        told("End", **fields) == "It failed (NO_AVAILABLE_NODE), at the first attempt. The reason: no node\\u001b[2J."
    )


def test_a_last_attempt_that_found_no_node_is_told_before_the_one_that_did() -> None:
    times = {"dispatched": 0, "acked": None, "started": None, "reassigned": 2000}
    fields = {"times": times, "node_id": "", "attempt": "2", "outcome": "failed", "code": "NODE_UNAVAILABLE"}
    assert told("Where", **fields).startswith("No node was found for attempt 2. Before that: 5 nodes could serve")
    assert "sent to its node" not in told("When", **fields)
    assert told("End", **fields) == "It failed (NODE_UNAVAILABLE), after 2 attempts."


def test_why_nobody_could_have_a_last_attempt_is_told() -> None:
    receipt = {"pool": 1, "drawn": [], "chosen": None, "counts": {"seen": 1}, "names": {"n1": "seen"}}
    times = {"dispatched": None, "acked": None, "started": None, "reassigned": 2000}
    where = told("Where", times=times, node_id="", attempt="2", receipt=receipt, outcome="failed")
    assert where.startswith("For attempt 2: 1 node could serve en → es. 1 was out, having had this job before (n1).")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_words(outcome: Outcome) -> None:
    assert told("End", outcome=outcome.value).startswith(OUTCOMES[outcome.value])


def test_the_job_of_a_skipped_utterance_is_explained_with_its_late_result() -> None:
    times = {"finished": 6000, "released": 6001, "late": 7000}
    ended = {"outcome": "cancelled", "code": "SKIPPED", "release_state": "skipped", "late_node_id": "n1"}
    assert told("End", times=times, **ended) == (
        "It was cancelled at n1 (SKIPPED), at the first attempt. Its utterance was skipped: a later one was sent, and "
        "this one had no result within the release window. A result of n1 came after that, and was dropped."
    )
    assert told("When", times=times, **ended).endswith("+7000 ms  result received too late, dropped")


@pytest.mark.parametrize("drop", list(Drop))
def test_a_dropped_result_is_not_explained_as_sent(drop: Drop) -> None:
    assert f"The result was dropped: {DROPPED[drop.value]}." in told("End", release_state=drop.value)


def test_a_backfilled_result_is_explained_as_such() -> None:
    assert told("End", release_state="backfilled").endswith("The result was sent after a later one, marked backfilled.")


def test_a_job_that_runs_is_told_as_running() -> None:
    end = told("End", outcome="", state="RUNNING", attempt="2")
    assert end == "It has not ended: RUNNING at n1, attempt 2."


def test_a_slot_that_is_still_held_is_told() -> None:
    assert told("End", state="FINISHED").endswith("Its slot has not been given back yet.")


def test_an_answer_of_another_release_is_told_as_far_as_it_goes() -> None:
    assert set(story({"attempt": "two", "created_ms": "once"})) == {"What", "Where", "When", "End"}
