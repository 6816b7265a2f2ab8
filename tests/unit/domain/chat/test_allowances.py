from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.allowances import Allowances


def tries(allowances: Allowances, key: str, now: float, count: int = 20) -> int:
    return sum(allowances.take(key, now) for _ in range(count))


def test_a_key_may_try_five_times_at_once_and_five_times_a_minute() -> None:
    allowances = Allowances(5)
    assert tries(allowances, "a", 100.0) == 5
    assert tries(allowances, "a", 112.0) == 1
    assert tries(allowances, "a", 172.0) == 5


def test_keys_do_not_share() -> None:
    allowances = Allowances(5)
    assert tries(allowances, "a", 0.0) == 5
    assert tries(allowances, "b", 0.0) == 5


def test_keys_that_have_all_their_tries_again_are_forgotten() -> None:
    allowances = Allowances(5)
    for n in range(1000):
        allowances.take(n, 0.0)
    for n in range(1000, 2000):
        allowances.take(n, 60.0)
    assert len(allowances) == 1000


def test_the_table_is_bounded_and_forgets_who_tried_longest_ago() -> None:
    allowances = Allowances(1, most=3)
    for key in "abcd":
        assert allowances.take(key, 0.0)
    assert len(allowances) == 3
    assert not allowances.take("b", 0.0)
    assert allowances.take("a", 0.0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 20)), max_size=100), st.integers(1, 10))
def test_never_more_than_twice_the_tries_in_any_minute(steps: list[tuple[str, float]], per_minute: int) -> None:
    allowances, now = Allowances(per_minute, most=2), 0.0
    taken: list[tuple[str, float]] = []
    for key, pause in steps:
        now += pause
        if allowances.take(key, now):
            taken.append((key, now))
        recent = [1 for other, when in taken if other == key and now - when < 60]
        assert len(recent) <= 2 * per_minute
