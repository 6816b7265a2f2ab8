from itertools import product

from dragoman.domain.placement import AffinityResult, Turn, affinity, should_bind_job_to_node
from dragoman.domain.segmenter import Cut, Reason, Segmenter, SegmenterSettings
from support.tables import for_each


def first_cut(*, is_final: bool, duration_ms: int = 1000, at: float = 0.0) -> Cut:
    """The first cut of a session: one chunk of audio at 0 s, and a look at the clock at `at`."""
    segmenter = Segmenter(SegmenterSettings(), lambda: "turn")
    [cut] = segmenter.chunk(b"audio", duration_ms, is_final, 0.0) or segmenter.poll(at)
    assert isinstance(cut, Cut)
    return cut


def test_should_bind_job_to_node_manual_no_bind() -> None:
    """A manual cut that is the first of its turn is also the last: nothing can follow it to its node."""
    cut = first_cut(is_final=True)
    assert (cut.reason, cut.begins_turn) == (Reason.MANUAL, True)
    assert not should_bind_job_to_node(cut.begins_turn, cut.ends_turn)


def test_should_bind_job_to_node_max_duration_bind() -> None:
    cut = first_cut(is_final=False, duration_ms=10_000)
    assert (cut.reason, cut.begins_turn) == (Reason.MAX_DURATION, True)
    assert should_bind_job_to_node(cut.begins_turn, cut.ends_turn)


def test_should_bind_job_to_node_timeout_no_bind() -> None:
    cut = first_cut(is_final=False, at=3.0)
    assert (cut.reason, cut.begins_turn) == (Reason.TIMEOUT, True)
    assert not should_bind_job_to_node(cut.begins_turn, cut.ends_turn)


@for_each([Reason.MANUAL, Reason.TIMEOUT, Reason.CLOSE])
def test_a_later_job_that_ends_its_turn_binds_nothing(reason: Reason) -> None:
    assert not should_bind_job_to_node(begins_turn=False, ends_turn=reason.ends_turn)


def test_a_later_job_binds_nothing() -> None:
    assert not should_bind_job_to_node(begins_turn=False, ends_turn=False)


def test_the_first_job_that_finds_a_node_binds_the_turn_once() -> None:
    turn = Turn("t")
    assert turn.placed("node-A", ends_turn=False)
    assert turn.node_id == "node-A"
    assert not turn.placed("node-B", ends_turn=False), "a job that went elsewhere does not take the turn with it"
    assert turn.node_id == "node-A"


def test_a_turn_of_one_job_binds_nothing() -> None:
    turn = Turn("t")
    assert not turn.placed("node-A", ends_turn=True)
    assert turn.node_id is None


def test_a_turn_that_has_ended_is_bound_to_no_node_and_binds_to_none() -> None:
    turn = Turn("t")
    turn.placed("node-A", ends_turn=False)
    turn.end()
    assert turn.ended
    assert turn.node_id is None
    assert not turn.placed("node-B", ends_turn=False)


@for_each(list(product([True, False], repeat=3)))
def test_affinity_names_the_first_thing_in_the_way(connected: bool, eligible: bool, has_room: bool) -> None:
    named = affinity(connected=connected, eligible=eligible, has_room=has_room)
    obstacles = [
        (not connected, AffinityResult.OFFLINE),
        (not eligible, AffinityResult.NOT_IN_POOL),
        (not has_room, AffinityResult.FULL),
    ]
    assert named is next((result for there, result in obstacles if there), AffinityResult.HIT)


def test_the_words_of_affinity_are_the_labels_of_its_metric() -> None:
    assert [result.value for result in AffinityResult] == ["hit", "first", "offline", "not_in_pool", "full"]
