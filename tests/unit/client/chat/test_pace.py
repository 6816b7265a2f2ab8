import pytest

from dragoman.client.chat.pace import Pace


def test_so_many_may_go_at_once_then_so_many_a_second() -> None:
    pace = Pace(per_s=10, burst=3)
    for _ in range(3):
        assert pace.wait_s(0.0) == 0
        pace.sent(0.0)
    assert pace.wait_s(0.0) == pytest.approx(0.1)
    assert pace.wait_s(0.11) == 0


def test_silence_saves_up_no_more_than_a_burst() -> None:
    pace = Pace(per_s=10, burst=2)
    now, sent = 1000.0, 0
    while pace.wait_s(now) == 0:
        pace.sent(now)
        sent += 1
    assert sent == 2
