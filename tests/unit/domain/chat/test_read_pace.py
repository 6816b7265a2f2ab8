import pytest

from dragoman.domain.chat.shards import FREE_READS_PER_S, READ_BURST, READ_INTERVAL_S, ReadPace


def pauses(every_s: float, reads: int, pace: ReadPace | None = None, start: float = 100.0) -> list[float]:
    """Of reads that begin so often and take no time."""
    pace = pace or ReadPace()
    return [pace.pause(start + number * every_s, start + number * every_s) for number in range(reads)]


def test_few_messages_wait_for_nothing() -> None:
    assert set(pauses(1 / FREE_READS_PER_S, 1000)) == {0.0}


def test_a_handful_at_once_waits_for_nothing() -> None:
    assert set(pauses(0.0, int(READ_BURST))) == {0.0}


def test_many_share_their_reads() -> None:
    told = pauses(0.5 / FREE_READS_PER_S, 1000)
    assert told[0] == 0.0
    assert told[100:] == pytest.approx([READ_INTERVAL_S] * 900)


def test_the_time_a_read_took_is_part_of_the_pause() -> None:
    pace = ReadPace()
    pauses(0.0, 100, pace)
    assert pace.pause(began=100.0, now=100.0 + READ_INTERVAL_S / 4) == pytest.approx(READ_INTERVAL_S * 3 / 4)
    assert pace.pause(began=100.0, now=100.0 + 2 * READ_INTERVAL_S) == 0.0


def test_after_a_rush_it_is_forgotten_at_once_however_long_it_was() -> None:
    pace = ReadPace()
    pauses(0.0, 100_000, pace)
    assert set(pauses(1 / FREE_READS_PER_S, 100, pace, start=100.0 + 2 * READ_BURST / FREE_READS_PER_S)) == {0.0}
