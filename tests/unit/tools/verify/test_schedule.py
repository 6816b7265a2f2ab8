"""When faults strike is drawn from the seed, and from nothing else."""

from itertools import pairwise

from dragoman.tools.verify.schedule import AFTER_S, BEFORE_S, phase, phases


def test_the_same_seed_strikes_at_the_same_moments() -> None:
    assert phase(7, "node-kill", 30, 2) == phase(7, "node-kill", 30, 2)


def test_another_seed_strikes_at_others() -> None:
    assert phase(7, "node-kill", 30, 2) != phase(8, "node-kill", 30, 2)


def test_what_happens_to_one_fault_does_not_depend_on_the_others() -> None:
    alone = phases(3, [("link-cut", 2.5)], 0)
    among = phases(3, [("none", 0), ("node-kill", 2), ("link-cut", 2.5)], 0)
    assert among[2] == alone[0]


def test_a_fault_strikes_once_at_least_however_short_the_time() -> None:
    short = phase(1, "instance-kill", 0.1, 6.5)
    assert len(short.strikes) == 1
    assert short.load_s >= BEFORE_S + 6.5 + AFTER_S


def test_more_time_means_more_strikes_which_leave_each_other_room() -> None:
    for seed in range(50):
        long = phase(seed, "node-kill", 30, 2)
        moments = [strike.at_s for strike in long.strikes]
        assert len(moments) == 14
        assert all(later - earlier >= 0 for earlier, later in pairwise(moments))
        assert moments[0] >= BEFORE_S
        assert moments[-1] + 2 + AFTER_S <= long.load_s + 1e-9


def test_every_strike_draws_for_itself() -> None:
    seeds = {strike.seed for strike in phase(1, "node-kill", 30, 2).strikes}
    assert len(seeds) == 14


def test_the_healthy_case_has_load_and_no_strikes() -> None:
    healthy = phase(1, "none", 0, 0)
    assert healthy.strikes == ()
    assert healthy.load_s == BEFORE_S + AFTER_S


def test_seconds_beyond_what_each_needs_are_shared_evenly() -> None:
    made = phases(1, [("none", 0), ("node-kill", 2)], 2 * (BEFORE_S + AFTER_S) + 2 + 10)
    assert [one.load_s for one in made] == [BEFORE_S + AFTER_S + 5, BEFORE_S + AFTER_S + 7]
