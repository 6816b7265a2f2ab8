import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.message_ids import EPOCH_MS, WORKERS, MessageIds, made_by_us, time_of

NOW_MS = EPOCH_MS + 90_000_000_000
LAST_MS = EPOCH_MS + (1 << 41) - 1

workers = st.integers(0, WORKERS - 1)
clocks = st.integers(EPOCH_MS - 10_000, LAST_MS - 10_000)


@given(workers, st.lists(st.tuples(clocks, st.none() | st.integers(0, LAST_MS - 10_000 - EPOCH_MS)), min_size=1))
def test_each_id_is_above_the_last_one_and_above_what_was_asked_whatever_the_clock_does(
    worker: int, draws: list[tuple[int, int | None]]
) -> None:
    ids, last = MessageIds(worker), 0
    for now_ms, above_time in draws:
        above = 0 if above_time is None else above_time << 22 | 5 << 12 | 7
        id = ids.draw(now_ms, above)
        assert id > max(last, above)
        assert id < 1 << 63
        last = id


@given(st.lists(st.tuples(st.integers(0, 3), clocks, st.booleans()), max_size=200))
def test_makers_that_pass_each_other_never_make_the_same(draws: list[tuple[int, int, bool]]) -> None:
    makers, made, highest = [MessageIds(worker) for worker in range(4)], set(), 0
    for worker, now_ms, passing in draws:
        id = makers[worker].draw(now_ms, highest if passing else 0)
        assert id not in made
        assert id >> 12 & 1023 == worker
        made.add(id)
        highest = max(highest, id)


def test_more_than_4096_in_a_millisecond_are_taken_from_the_next() -> None:
    ids = MessageIds(1023)
    drawn = [ids.draw(NOW_MS) for _ in range(10_000)]
    assert drawn == sorted(set(drawn))
    assert [time_of(drawn[at]) - NOW_MS for at in (0, 4095, 4096, 8191, 8192)] == [0, 0, 1, 1, 2]


def test_what_was_borrowed_is_given_back_when_the_clock_gets_there() -> None:
    ids = MessageIds(3)
    for _ in range(4097):
        ids.draw(NOW_MS)
    assert time_of(ids.draw(NOW_MS + 2)) == NOW_MS + 2


def test_a_clock_that_steps_back_makes_no_id_twice() -> None:
    ids = MessageIds(0)
    first = ids.draw(NOW_MS)
    assert ids.draw(NOW_MS - 3_600_000) == first + 1


def test_passing_an_id_of_a_lower_worker_takes_no_time() -> None:
    theirs = MessageIds(3).draw(NOW_MS + 50)
    assert time_of(MessageIds(9).draw(NOW_MS, theirs)) == NOW_MS + 50
    assert time_of(MessageIds(1).draw(NOW_MS, theirs)) == NOW_MS + 51


def test_an_id_tells_when_it_was_made() -> None:
    assert time_of(MessageIds(77).draw(NOW_MS)) == NOW_MS


@pytest.mark.parametrize("worker", [-1, 1024])
def test_a_worker_that_does_not_fit_is_refused(worker: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 1023"):
        MessageIds(worker)


def test_ids_end_in_the_year_2093() -> None:
    ids = MessageIds(1023)
    assert ids.draw(LAST_MS) < 1 << 63
    with pytest.raises(OverflowError, match="2093"):
        ids.draw(LAST_MS + 1)


@given(workers, clocks.filter(lambda ms: ms > EPOCH_MS))
def test_what_we_made_counts_as_made_by_us(worker: int, now_ms: int) -> None:
    assert made_by_us(MessageIds(worker).draw(now_ms))


@pytest.mark.parametrize("id", [-1, 0, 1, 999_999, (1 << 22) - 1, 1 << 63, 1 << 70])
def test_numbers_that_nobody_can_have_made(id: int) -> None:
    assert not made_by_us(id)
