import pytest

from dragoman.client.pacing import RateLimit, Throttle


def test_only_the_rate_delays_audio() -> None:
    throttle = Throttle(per_s=100)
    assert throttle.wait_s(5.0) == 0
    throttle.sent(5.0)
    assert throttle.wait_s(5.0) == pytest.approx(0.01)
    assert throttle.wait_s(5.01) == pytest.approx(0)


def test_pause_stops_audio_for_its_time() -> None:
    throttle = Throttle()
    throttle.press("PAUSE", 1500, 10.0)
    assert throttle.wait_s(10.0) == pytest.approx(1.5)
    assert throttle.wait_s(11.5) == 0


def test_a_pause_without_a_time_lasts_two_seconds() -> None:
    throttle = Throttle()
    throttle.press("PAUSE", None, 10.0)
    assert throttle.wait_s(10.0) == pytest.approx(2.0)


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    throttle = Throttle()
    throttle.press("PAUSE", 2000, 10.0)
    throttle.press("PAUSE", 100, 10.1)
    assert throttle.wait_s(10.5) == pytest.approx(1.5)


@pytest.mark.parametrize("action", ["BUSY", "SLOW_DOWN"])
def test_one_piece_goes_every_half_second_while_the_server_is_busy(action: str) -> None:
    throttle = Throttle()
    throttle.press(action, None, 10.0)
    assert throttle.wait_s(10.0) == 0
    throttle.sent(10.0)
    assert throttle.wait_s(10.1) == pytest.approx(0.4)
    throttle.sent(10.5)
    throttle.press(action, None, 11.0)
    assert throttle.wait_s(11.0) == 0
    throttle.sent(12.9)
    assert throttle.wait_s(12.9) == pytest.approx(0.1)  # it is over at 13
    assert throttle.wait_s(13.0) == 0


def test_an_action_nobody_knows_changes_nothing() -> None:
    throttle = Throttle()
    throttle.press("DANCE", 5000, 10.0)
    assert throttle.wait_s(10.0) == 0


def test_the_chunk_after_an_empty_final_waits_so_that_it_is_not_taken_for_a_part_of_it() -> None:
    throttle = Throttle(after_final_s=0.1)
    throttle.sent(10.0, empty_final=True)
    assert throttle.wait_s(10.0) == pytest.approx(0.1)
    assert throttle.wait_s(10.1) == 0


def test_rate_limit_allows_a_burst_and_then_the_rate() -> None:
    limit = RateLimit(per_s=10, burst=3)
    for _ in range(3):
        assert limit.wait_s(0.0) == 0
        limit.sent(0.0)
    assert limit.wait_s(0.0) == pytest.approx(0.1)
    assert limit.wait_s(0.11) == 0


def test_rate_limit_allows_no_more_than_a_burst_after_silence() -> None:
    limit = RateLimit(per_s=10, burst=2)
    now, sent = 1000.0, 0
    while limit.wait_s(now) == 0:
        limit.sent(now)
        sent += 1
    assert sent == 2
