from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.limits.fair_queue import FairQueue

KEYS = st.sampled_from("abc")


def drained(queue: FairQueue[str]) -> list[str]:
    found = []
    while (item := queue.pop()) is not None:
        found.append(item)
    return found


def test_keys_take_turns_and_each_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.push(item[0], item) is None
    assert drained(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_key_that_is_alone_may_use_the_whole_queue() -> None:
    queue: FairQueue[str] = FairQueue(3)
    assert [queue.push("a", item) for item in ("a1", "a2", "a3")] == [None] * 3
    assert queue.push("a", "a4") == "a4"
    assert len(queue) == 3


def test_a_newcomer_displaces_the_newest_of_the_key_that_has_most() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for item in ("a1", "a2", "a3"):
        queue.push("a", item)
    assert queue.push("b", "b1") == "a3"
    assert queue.push("b", "b2") == "b2"
    assert drained(queue) == ["a1", "b1", "a2"]


def test_an_entry_can_be_taken_out_and_what_is_not_there_is_ignored() -> None:
    queue: FairQueue[str] = FairQueue(3)
    queue.push("a", "a1")
    queue.push("a", "a2")
    queue.remove("a", "a1")
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    assert len(queue) == 1
    assert drained(queue) == ["a2"]


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=60), st.integers(1, 6))
def test_no_key_has_more_than_its_share_beside_one_that_was_refused(steps: list[tuple[str, bool]], size: int) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(size)
    waiting: Counter[str] = Counter()
    for number, (key, popping) in enumerate(steps):
        if popping:
            popped = queue.pop()
            waiting.subtract([popped[0]] if popped else [])
            continue
        waiting[key] += 1
        left_out = queue.push(key, (key, number))
        if left_out is not None:
            waiting[left_out[0]] -= 1
            assert waiting[left_out[0]] >= max(waiting.values()) - 1
        assert len(queue) == sum(waiting.values()) <= size
