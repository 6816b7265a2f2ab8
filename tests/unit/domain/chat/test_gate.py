import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.gate import REST_S, Gate

TIMES = st.floats(0, 1e9, allow_nan=False)


def test_everybody_may_ask_while_all_is_well() -> None:
    gate = Gate()
    assert gate.open
    assert all(gate.may_ask(now) for now in (0.0, 0.0, 1.0, 100.0))


def test_after_a_failure_nobody_asks_for_a_while_and_then_one_tries() -> None:
    gate = Gate()
    gate.failed(10.0)
    assert not gate.open
    assert not any(gate.may_ask(10.0 + REST_S * part) for part in (0, 0.5, 0.99))
    assert gate.may_ask(10.0 + REST_S)
    assert not gate.may_ask(10.0 + REST_S)


def test_the_one_that_tried_opens_it_for_all() -> None:
    gate = Gate()
    gate.failed(10.0)
    assert gate.may_ask(12.0)
    closed_while_it_asks = not gate.open
    gate.worked()
    assert closed_while_it_asks
    assert gate.open
    assert gate.may_ask(12.0)
    assert gate.may_ask(12.0)


def test_the_one_that_tried_in_vain_closes_it_for_another_while() -> None:
    gate = Gate()
    gate.failed(10.0)
    assert gate.may_ask(12.0)
    gate.failed(12.5)
    assert not gate.may_ask(12.5 + REST_S * 0.99)
    assert gate.may_ask(12.5 + REST_S)


def test_one_that_tries_and_is_never_heard_of_holds_up_nobody_for_ever() -> None:
    gate = Gate()
    gate.failed(10.0)
    assert gate.may_ask(12.0)
    assert not gate.may_ask(12.0 + REST_S * 0.99)
    assert gate.may_ask(12.0 + REST_S)


def test_it_closes_at_any_time_of_the_clock() -> None:
    gate = Gate()
    gate.failed(-REST_S)
    assert not gate.open


@given(st.lists(st.tuples(st.sampled_from(["ask", "failed", "worked"]), st.floats(0, 3)), max_size=60))
def test_a_closed_gate_lets_one_through_in_a_rest_and_no_more(steps: list[tuple[str, float]]) -> None:
    gate, now, quiet_since = Gate(), 100.0, None
    for what, later in steps:
        now += later
        if what == "failed":
            gate.failed(now)
            quiet_since = now
        elif what == "worked":
            gate.worked()
            quiet_since = None
        else:
            asked = gate.may_ask(now)
            assert asked == (quiet_since is None or now >= quiet_since + REST_S)
            quiet_since = now if asked and quiet_since is not None else quiet_since
        assert gate.open == (quiet_since is None)


@given(TIMES, st.integers(1, 50))
def test_of_many_that_come_at_once_after_the_rest_one_tries(now: float, many: int) -> None:
    gate = Gate()
    gate.failed(now)
    assert sum(gate.may_ask(now + 2 * REST_S) for _ in range(many)) == 1


@pytest.mark.parametrize("failures", [2, 10])
def test_many_that_fail_together_close_it_once(failures: int) -> None:
    gate = Gate()
    for number in range(failures):
        gate.failed(10.0 + number / 100)
    assert gate.may_ask(10.0 + failures / 100 + REST_S)
