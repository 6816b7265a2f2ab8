from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.outlet import Backlog


def test_bytes_that_never_leave_grow_old() -> None:
    backlog = Backlog(100, now=5.0)
    assert backlog.age(100, now=5.0) == 0.0
    backlog.grew(50)
    assert backlog.age(150, now=8.0) == 3.0
    assert backlog.age(51, now=9.0) == 4.0  # one byte of the first hundred is still here


def test_a_reader_that_keeps_up_is_never_old_though_something_always_waits() -> None:
    backlog = Backlog(100, now=0.0)
    for second in range(1, 60):
        backlog.grew(100)
        assert backlog.age(100, now=float(second)) <= 1.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=60))
def test_the_age_is_never_overstated_and_at_most_halved(steps: list[tuple[int, int]]) -> None:
    waiting = deque([(10, 0)])  # (bytes, queued at)
    backlog, oldest_mark = Backlog(10, now=0.0), 0.0
    for now, (grown, sent) in enumerate(steps, start=1):
        if grown:
            waiting.append((grown, now))
            backlog.grew(grown)
        while sent and waiting:
            size, since = waiting.popleft()
            if size > sent:
                waiting.appendleft((size - sent, since))
            sent = max(sent - size, 0)
        if not waiting:
            return
        true_age = now - waiting[0][1]
        age = backlog.age(sum(size for size, _ in waiting), now=float(now))
        assert age <= true_age <= age + oldest_mark + 1
        oldest_mark = max(oldest_mark, age)
