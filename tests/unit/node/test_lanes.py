import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.node.lanes import Lanes


def started(lanes: Lanes[str]) -> list[str]:
    jobs = []
    while (job := lanes.start()) is not None:
        jobs.append(job)
    return jobs


def test_at_most_as_many_run_as_there_are_slots() -> None:
    lanes: Lanes[str] = Lanes(2)
    for number in range(4):
        lanes.add(f"j{number}", lane=number, index=0)
    assert started(lanes) == ["j0", "j1"]
    assert (lanes.running, lanes.waiting) == (2, 2)
    lanes.end("j0")
    assert started(lanes) == ["j2"]


def test_jobs_of_one_lane_run_one_after_another_whatever_the_slots() -> None:
    lanes: Lanes[str] = Lanes(8)
    lanes.add("first", "lane", 0)
    lanes.add("second", "lane", 1)
    assert started(lanes) == ["first"]
    lanes.end("first")
    assert started(lanes) == ["second"]


def test_the_lowest_index_of_a_lane_goes_first() -> None:
    lanes: Lanes[str] = Lanes(1)
    for index in (2, 0, 1):
        lanes.add(f"j{index}", "lane", index)
    order = []
    while job := lanes.start():
        order.append(job)
        lanes.end(job)
    assert order == ["j0", "j1", "j2"]


def test_lanes_take_turns() -> None:
    lanes: Lanes[str] = Lanes(1)
    for index in range(3):
        lanes.add(f"a{index}", "a", index)
    lanes.add("b0", "b", 0)
    order = []
    while job := lanes.start():
        order.append(job)
        lanes.end(job)
    assert order == ["a0", "b0", "a1", "a2"]


def test_a_dropped_job_never_starts() -> None:
    lanes: Lanes[str] = Lanes(1)
    lanes.add("runs", "a", 0)
    lanes.add("dropped", "a", 1)
    assert started(lanes) == ["runs"]
    assert lanes.drop("dropped")
    assert not lanes.drop("dropped")
    assert not lanes.drop("runs")
    lanes.end("runs")
    assert started(lanes) == []
    assert (lanes.running, lanes.waiting) == (0, 0)


def test_a_node_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Lanes(0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(st.integers(1, 4), steps)
def test_every_job_runs_once_never_two_of_a_lane_and_no_slot_stays_empty(
    slots: int, steps: list[tuple[str, int, int]]
) -> None:
    lanes: Lanes[int] = Lanes(slots)
    waiting: dict[int, tuple[int, int]] = {}
    running: dict[int, tuple[int, int]] = {}
    serial = 0

    def start_all() -> None:
        while (job := lanes.start()) is not None:
            lane, index = waiting.pop(job)
            assert lane not in {other for other, _ in running.values()}
            assert index == min([index, *(i for other, i in waiting.values() if other == lane)])
            running[job] = lane, index
        assert len(running) <= slots
        could = {lane for lane, _ in waiting.values()} - {lane for lane, _ in running.values()}
        assert len(running) == slots or not could

    for verb, number, index in steps:
        if verb == "add":
            serial += 1
            waiting[serial] = number, index
            lanes.add(serial, number, index)
        elif verb == "end" and running:
            job = sorted(running)[number % len(running)]
            del running[job]
            lanes.end(job)
        elif verb == "drop" and waiting:
            job = sorted(waiting)[number % len(waiting)]
            del waiting[job]
            assert lanes.drop(job)
        start_all()
        assert (lanes.running, lanes.waiting) == (len(running), len(waiting))
