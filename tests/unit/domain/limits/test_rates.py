from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.limits.rates import DAY_S, ROW_BYTES, BytesPerDay, RatePerKey, cost


def tries(rate: RatePerKey, key: str, now: float, count: int = 20) -> int:
    return sum(rate.take(key, now) for _ in range(count))


def test_a_key_may_try_five_times_at_once_and_five_times_a_minute() -> None:
    rate = RatePerKey(5)
    assert tries(rate, "a", 100.0) == 5
    assert tries(rate, "a", 112.0) == 1
    assert tries(rate, "a", 172.0) == 5


def test_keys_do_not_share() -> None:
    rate = RatePerKey(5)
    assert tries(rate, "a", 0.0) == 5
    assert tries(rate, "b", 0.0) == 5


def test_keys_that_have_all_their_tries_again_are_forgotten() -> None:
    rate = RatePerKey(5)
    for n in range(1000):
        rate.take(n, 0.0)
    for n in range(1000, 2000):
        rate.take(n, 60.0)
    assert len(rate) == 1000


def test_the_table_is_bounded_and_forgets_who_tried_longest_ago() -> None:
    rate = RatePerKey(1, max_keys=3)
    for key in "abcd":
        assert rate.take(key, 0.0)
    assert len(rate) == 3
    assert not rate.take("b", 0.0)
    assert rate.take("a", 0.0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 20)), max_size=100), st.integers(1, 10))
def test_never_more_than_twice_the_tries_in_any_minute(steps: list[tuple[str, float]], per_minute: int) -> None:
    rate, now = RatePerKey(per_minute, max_keys=2), 0.0
    taken: list[tuple[str, float]] = []
    for key, pause in steps:
        now += pause
        if rate.take(key, now):
            taken.append((key, now))
        recent = [1 for other, when in taken if other == key and now - when < 60]
        assert len(recent) <= 2 * per_minute


def test_a_sender_has_room_until_its_bytes_of_the_day_are_used() -> None:
    day = BytesPerDay(1000)
    day.stored(600, 0.0)
    assert day.room_for(400, 1.0)
    assert not day.room_for(401, 1.0)


def test_a_day_begins_with_the_first_byte_and_then_all_of_it_is_back() -> None:
    day = BytesPerDay(1000)
    day.stored(1000, 5.0)
    assert not day.room_for(1, 5.0 + DAY_S - 1)
    assert day.room_for(1000, 5.0 + DAY_S)
    day.stored(1000, 5.0 + DAY_S)
    assert not day.room_for(1, 6.0 + DAY_S)


def test_what_the_cluster_counted_replaces_what_one_connection_knows() -> None:
    day = BytesPerDay(1000)
    day.stored(1, 0.0)
    day.learned(1000, 60.0, 10.0)
    assert not day.room_for(1, 69.0)
    assert day.room_for(1, 70.0)


def test_a_quota_of_zero_is_any_number() -> None:
    day = BytesPerDay(0)
    day.stored(10**12, 0.0)
    assert day.room_for(10**12, 1.0)


def test_a_message_costs_its_bytes_and_those_of_its_row() -> None:
    assert cost("né") == 3 + ROW_BYTES
