from itertools import product
from pathlib import Path

from dragoman.domain.job import TRANSITIONS, Event, Job, Outcome, Reply, State, chart
from support.tables import for_each

UNFINISHED = {State.CREATED, State.DISPATCHED, State.ACCEPTED, State.RUNNING}
ENDINGS = {Event.RESULT, Event.EXPIRE, Event.CANCEL, Event.GIVE_UP}

# Written out by hand, row by row of the specification, not derived from the table under test.
ALLOWED: dict[tuple[State, Event], State] = {
    (State.CREATED, Event.DISPATCH): State.DISPATCHED,
    (State.DISPATCHED, Event.ACK): State.ACCEPTED,
    (State.DISPATCHED, Event.START): State.RUNNING,
    (State.ACCEPTED, Event.START): State.RUNNING,
    (State.FINISHED, Event.RELEASE): State.RELEASED,
    **dict.fromkeys(product(UNFINISHED, ENDINGS), State.FINISHED),
    **{(state, Event.REASSIGN): State.CREATED for state in UNFINISHED},
}
ALREADY = {
    *((state, Event.DISPATCH) for state in set(State) - {State.CREATED}),
    *((state, Event.ACK) for state in (State.ACCEPTED, State.RUNNING, State.FINISHED, State.RELEASED)),
    *((state, Event.START) for state in (State.RUNNING, State.FINISHED, State.RELEASED)),
    *product((State.FINISHED, State.RELEASED), ENDINGS),
    (State.RELEASED, Event.RELEASE),
}


def job_in(state: State, attempt: int = 1) -> Job:
    ended = state in (State.FINISHED, State.RELEASED)
    return Job(
        state=state,
        attempt=attempt,
        node_id=None if state is State.CREATED else "node-A",
        outcome=Outcome.OK if ended else None,
    )


@for_each(list(product(State, Event)))
def test_every_event_in_every_state_is_in_the_table_or_refused(state: State, event: Event) -> None:
    job, untouched = job_in(state, attempt=2), job_in(state, attempt=2)
    reply = job.apply(event, attempt=2)
    if (state, event) in ALLOWED:
        assert reply is Reply.OK
        assert job.state is ALLOWED[state, event]
    else:
        assert reply is (Reply.ALREADY if (state, event) in ALREADY else Reply.ILLEGAL)
        assert job == untouched


@for_each(list(product(State, Event)))
def test_an_event_of_another_attempt_is_stale_in_every_state(state: State, event: Event) -> None:
    for attempt in (1, 3):
        job = job_in(state, attempt=2)
        assert job.apply(event, attempt=attempt, node_id="node-A") is Reply.STALE
        assert job == job_in(state, attempt=2)


@for_each(list(product(State, [Event.ACK, Event.START, Event.RESULT])))
def test_message_about_a_job_of_another_node_changes_nothing(state: State, event: Event) -> None:
    job = job_in(state)
    assert job.apply(event, attempt=1, node_id="node-B") is Reply.WRONG_NODE
    assert job == job_in(state)


def test_the_table_has_a_row_for_every_state() -> None:
    assert set(TRANSITIONS) == set(State)


def test_a_job_goes_its_way() -> None:
    job = Job()
    assert job.apply(Event.DISPATCH, 1, node_id="node-A") is Reply.OK
    assert job.node_id == "node-A"
    assert job.apply(Event.ACK, 1, node_id="node-A") is Reply.OK
    assert job.apply(Event.START, 1, node_id="node-A") is Reply.OK
    assert job.apply(Event.RESULT, 1, node_id="node-A", outcome=Outcome.EMPTY) is Reply.OK
    assert job.apply(Event.RELEASE, 1) is Reply.OK
    assert job == Job(State.RELEASED, 1, "node-A", Outcome.EMPTY)


def test_an_old_node_answers_without_acknowledging() -> None:
    job = Job()
    job.apply(Event.DISPATCH, 1, node_id="node-A")
    assert job.apply(Event.RESULT, 1, node_id="node-A", outcome=Outcome.OK) is Reply.OK


def test_a_slot_is_given_back_once() -> None:
    job = job_in(State.FINISHED)
    assert [job.apply(Event.RELEASE, 1) for _ in range(3)] == [Reply.OK, Reply.ALREADY, Reply.ALREADY]


def test_a_reassigned_job_starts_over_with_the_next_attempt_and_no_node() -> None:
    job = job_in(State.RUNNING)
    assert job.apply(Event.REASSIGN, 1) is Reply.OK
    assert job == Job(State.CREATED, attempt=2)
    assert job.apply(Event.RESULT, 1, node_id="node-A", outcome=Outcome.OK) is Reply.STALE


def test_a_result_that_names_no_attempt_still_has_to_come_from_the_assigned_node() -> None:
    job = job_in(State.DISPATCHED, attempt=2)
    assert job.apply(Event.RESULT, None, node_id="node-B", outcome=Outcome.EMPTY) is Reply.WRONG_NODE
    assert job.apply(Event.RESULT, None, node_id="node-A", outcome=Outcome.EMPTY) is Reply.OK


@for_each(
    [
        (Event.RESULT, Outcome.OK),
        (Event.EXPIRE, Outcome.EXPIRED),
        (Event.CANCEL, Outcome.CANCELLED),
        (Event.GIVE_UP, Outcome.FAILED),
    ]
)
def test_no_job_ends_without_an_outcome(event: Event, outcome: Outcome) -> None:
    job = job_in(State.RUNNING)
    job.apply(event, 1, code="WHY")
    assert (job.outcome, job.code) == (outcome, "WHY")


def test_the_chart_in_the_documentation_is_the_one_printed_from_the_table() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "internals", "job-states.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{chart()}```" in page, "print dragoman.domain.job.chart() into docs/internals/job-states.md"
