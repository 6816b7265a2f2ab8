from dragoman.tools.verify.node_events import Kind, NodeEvent
from dragoman.tools.verify.recordings import Recordings, burdens


def event(at: float, kind: Kind, job: str) -> NodeEvent:
    return NodeEvent(at, kind, "n", 1, slots=1, job=job, attempt=1, session="s", turn=job)


def others(*events: NodeEvent) -> list[int]:
    """How many other jobs the node had, each time that it was given one."""
    return [one.others for one in burdens(Recordings(list(events)), {}, within_s=1.0)]


def test_a_job_that_is_called_back_before_it_was_begun_takes_no_slot() -> None:
    """It was late, and had been given up: whoever was given its slot may come before the word that calls it back."""
    given, late = event(1.0, Kind.GIVEN, "a"), event(1.0, Kind.GIVEN, "late")
    assert others(late, given, event(1.01, Kind.CANCELLED, "late")) == [0]


def test_a_job_that_was_begun_or_is_called_back_much_later_takes_one() -> None:
    begun, given = event(1.0, Kind.GIVEN, "begun"), event(1.0, Kind.GIVEN, "a")
    assert others(begun, event(1.0, Kind.STARTED, "begun"), given, event(1.01, Kind.CANCELLED, "begun")) == [0, 1]
    assert others(begun, given, event(2.5, Kind.CANCELLED, "begun")) == [0, 1]
