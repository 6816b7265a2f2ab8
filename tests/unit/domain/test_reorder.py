from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.domain.reorder import IndexRefused, Reorder


def test_utterances_in_order_go_at_once() -> None:
    reorder: Reorder[str] = Reorder()
    assert reorder.offer(0, "a", 0.0) == ["a"]
    assert reorder.offer(1, "b", 0.0) == ["b"]
    assert reorder.deadline() is None


def test_an_early_one_waits_for_the_one_before() -> None:
    reorder: Reorder[str] = Reorder()
    assert reorder.offer(1, "b", 0.0) == []
    assert reorder.deadline() == 0.3
    assert reorder.offer(0, "a", 0.2) == ["a", "b"]
    assert reorder.deadline() is None


def test_an_early_one_goes_alone_when_its_patience_is_over() -> None:
    reorder: Reorder[str] = Reorder()
    reorder.offer(2, "c", 0.0)
    assert reorder.poll(0.29) == []
    assert reorder.poll(0.3) == ["c"]


def test_with_it_goes_all_that_is_before_it() -> None:
    reorder: Reorder[str] = Reorder()
    reorder.offer(4, "e", 0.0)
    reorder.offer(2, "c", 0.25)
    reorder.offer(5, "f", 0.25)
    assert reorder.poll(0.3) == ["c", "e", "f"]


def test_one_that_comes_after_its_place_was_passed_goes_at_once_and_once() -> None:
    reorder: Reorder[str] = Reorder()
    reorder.offer(1, "b", 0.0)
    reorder.poll(0.3)
    assert reorder.offer(0, "a", 0.5) == ["a"]
    assert reorder.offer(0, "a", 0.5) is IndexRefused.USED


def test_an_index_is_used_while_it_waits_and_after_it_went() -> None:
    reorder: Reorder[str] = Reorder()
    reorder.offer(1, "b", 0.0)
    assert reorder.offer(1, "B", 0.0) is IndexRefused.USED
    reorder.offer(0, "a", 0.0)
    assert reorder.offer(1, "B", 0.0) is IndexRefused.USED


def test_an_index_whose_place_is_settled_is_used() -> None:
    reorder: Reorder[str] = Reorder()
    reorder.offer(1, "b", 0.0)
    reorder.poll(0.3)
    assert reorder.offer(0, "a", 9.0, expected=2) is IndexRefused.USED


def test_an_index_too_far_ahead_is_refused() -> None:
    reorder: Reorder[str] = Reorder(span=10)
    assert reorder.offer(11, "x", 0.0) is IndexRefused.AHEAD
    assert reorder.offer(10, "x", 0.0) == []


def test_places_that_were_passed_are_not_remembered_for_ever() -> None:
    reorder: Reorder[int] = Reorder(span=10)
    now = 0.0
    for index in range(9, 10_000, 10):
        now += 1.0
        reorder.offer(index, index, now, expected=max(0, index - 10))
        reorder.poll(now + 0.3)
    assert len(reorder._missing) <= 3 * 10


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.125, 0.25, 0.5])), max_size=40),
    polls=st.booleans(),
)
def test_every_index_goes_out_at_most_once_and_none_waits_past_its_patience(
    steps: list[tuple[int, float]], polls: bool
) -> None:
    reorder: Reorder[int] = Reorder(reorder_ms=250)
    now, gone, waiting = 0.0, list[int](), dict[int, float]()
    for index, passed in steps:
        now += passed
        if polls:
            gone += (polled := reorder.poll(now))
            assert polled == sorted(polled)
            waiting = {i: at for i, at in waiting.items() if i not in polled}
        known = index in gone or index in waiting
        answer = reorder.offer(index, index, now)
        assert (answer is IndexRefused.USED) == known
        if not isinstance(answer, IndexRefused):
            waiting[index] = now
            gone += answer
            assert answer == sorted(answer)
            waiting = {i: at for i, at in waiting.items() if i not in answer}
            assert all(now < at + 0.25 for at in waiting.values())
            assert reorder.deadline() == min((at + 0.25 for at in waiting.values()), default=None)
    gone += reorder.poll(now + 1.0)
    assert sorted(gone) == sorted({index for index, _ in steps})
