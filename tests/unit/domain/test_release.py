import random
from collections import Counter
from collections.abc import Container

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.release import Drop, ReleaseWindow, Send, Settled
from support.tables import for_each

IN_ORDER = Send(backfilled=False)
BACKFILLED = Send(backfilled=True)


def window_at(expected: int) -> ReleaseWindow:
    return ReleaseWindow(expected=expected)


def test_release_scenario_1() -> None:
    """11 without 10: 11 goes out at once; 10 has five seconds, and is then skipped without a placeholder."""
    never = window_at(10)
    assert never.receive(11, now=100.0) == IN_ORDER
    assert never.expected == 10
    assert never.deadline() == 105.0
    assert never.poll(104.999) == []
    assert never.poll(105.0) == [10]
    assert never.expected == 12
    assert never.deadline() is None
    assert never.counts == Counter({Settled.SENT: 1, Settled.SKIPPED: 1})

    in_time = window_at(10)
    in_time.receive(11, now=100.0)
    assert in_time.receive(10, now=104.9) == BACKFILLED
    assert in_time.deadline() is None

    too_late = window_at(10)
    too_late.receive(11, now=100.0)
    assert too_late.receive(10, now=105.1) is Drop.LATE, "even if the timer has not had its turn"
    assert too_late.expected == 12
    assert too_late.counts == Counter({Settled.SENT: 1, Settled.SKIPPED: 1, Drop.LATE: 1})


def test_release_scenario_2() -> None:
    """10, 12, 13 without 11: 12 and 13 go out at once, and 11 still may."""
    window = window_at(10)
    assert window.receive(10, now=0.0) == IN_ORDER
    assert window.receive(12, now=1.0) == IN_ORDER
    assert window.receive(13, now=2.0) == IN_ORDER
    assert window.deadline() == 6.0, "the patience for 11 began with 12; 13 does not lengthen it"
    assert window.receive(11, now=5.9) == BACKFILLED
    assert window.expected == 14

    without = window_at(10)
    for index in (10, 12, 13):
        without.receive(index, now=0.0)
    assert without.receive(11, now=5.1) is Drop.LATE
    assert without.expected == 14


def test_release_scenario_3() -> None:
    """10 and then nothing: there is no timer at all."""
    window = window_at(10)
    assert window.receive(10, now=0.0) == IN_ORDER
    assert window.deadline() is None
    assert window.poll(3600.0) == []
    assert window.receive(11, now=3600.0) == IN_ORDER


def test_release_scenario_4() -> None:
    """11 first, 10 three seconds later: out at once, after 11, backfilled."""
    window = window_at(10)
    assert window.receive(11, now=0.0) == IN_ORDER
    assert window.receive(10, now=3.0) == BACKFILLED
    assert window.expected == 12
    assert window.deadline() is None
    assert window.counts == Counter({Settled.SENT: 1, Settled.BACKFILLED: 1})


def test_an_index_is_settled_once_it_is_answered_failed_or_skipped() -> None:
    window = ReleaseWindow(5000)
    window.receive(0, 0.0)
    window.receive(2, 0.0)
    assert [window.is_settled(index) for index in range(4)] == [True, False, True, False]
    window.settle_failed(3, 1.0)
    window.poll(5.0)
    assert [window.is_settled(index) for index in range(5)] == [True, True, True, True, False]


def test_slow_speech_is_sent_when_the_silence_after_it_was_answered_as_empty_long_before() -> None:
    window = ReleaseWindow()
    for index in range(1, 8):
        window.settle_empty(index, now=index * 0.256)
    assert window.poll(6.9) == []
    assert window.receive(0, now=7.0) == IN_ORDER
    assert window.counts == Counter({Settled.EMPTY: 7, Settled.SENT: 1})


def test_a_sent_result_starts_the_timeout_of_indexes_that_an_empty_one_stepped_over() -> None:
    window = ReleaseWindow()
    window.settle_empty(1, now=0.0)
    window.receive(2, now=3.0)
    assert window.gaps() == {0: 8.0}


def test_a_gap_whose_job_is_alive_elsewhere_has_no_deadline() -> None:
    window = ReleaseWindow()
    window.receive(2, now=0.0, working={0})
    assert window.gaps() == {0: None, 1: 5.0}
    assert window.poll(5.0) == [1]
    assert window.deadline() is None
    assert window.receive(0, now=600.0) == BACKFILLED
    assert window.expected == 3


def test_a_gap_whose_job_fails_over_after_it_opened_is_sent_however_late() -> None:
    window = ReleaseWindow()
    window.receive(1, now=0.0)
    window.job_moved(0)
    assert window.deadline() is None
    assert window.receive(0, now=29.0) == BACKFILLED


def test_what_was_skipped_long_ago_is_not_remembered_for_ever() -> None:
    window = ReleaseWindow(span=10)
    for index in range(1, 2001, 2):
        window.receive(index, now=index * 6.0)
    assert len(window._lost) <= 20
    assert len(window._deadlines) <= 2
    assert window.receive(window.expected - 2, now=1e6) is Drop.LATE
    assert isinstance(window.receive(2, now=1e6), Drop)


def test_a_restored_window_goes_on_where_the_other_stopped() -> None:
    left = ReleaseWindow()
    left.receive(0, now=0.0)
    left.receive(3, now=0.0, working={1})
    expected, settled = left.snapshot()
    assert (expected, settled) == (1, {3: Settled.SENT})

    right = ReleaseWindow.restore(expected, settled, now=1000.0, working={1})
    assert right.gaps() == {1: None, 2: 1005.0}
    assert right.receive(3, now=1000.0) is Drop.DUPLICATE
    assert right.receive(2, now=1001.0) == BACKFILLED
    assert right.receive(4, now=1001.0) == IN_ORDER
    assert right.receive(1, now=1020.0) == BACKFILLED
    assert right.expected == 5


def test_an_empty_result_in_a_snapshot_starts_no_timeout() -> None:
    window = ReleaseWindow.restore(1, {2: Settled.EMPTY, 4: Settled.FAILED}, now=0.0)
    assert window.gaps() == {}
    assert window.receive(1, now=9.0) == IN_ORDER
    assert window.expected == 3


def test_a_window_restored_with_nothing_above_waits_for_nothing() -> None:
    window = ReleaseWindow.restore(7, {}, now=0.0)
    assert window.deadline() is None
    assert window.receive(7, now=0.0) == IN_ORDER
    assert window.receive(6, now=0.0) is Drop.DUPLICATE


class Book:
    """The oracle: no heap, no cursor, no memory limits. It writes everything down and looks it all through."""

    def __init__(self, patience: float, span: int) -> None:
        self.patience, self.span = patience, span
        self.fate: dict[int, Settled] = {}
        self.wait: dict[int, float | None] = {}
        self.went_out: list[int] = []
        self.dropped: Counter[Drop] = Counter()

    def expected(self) -> int:
        return min(set(range(len(self.fate) + 1)) - set(self.fate))

    def deadline(self) -> float | None:
        running = [at for i, at in self.wait.items() if i not in self.fate and at is not None]
        return min(running) if running else None

    def poll(self, now: float) -> set[int]:
        over = {i for i, at in self.wait.items() if i not in self.fate and at is not None and now >= at}
        self.fate.update(dict.fromkeys(over, Settled.SKIPPED))
        return over

    def arrive(self, index: int, now: float, kind: str, working: Container[int]) -> Send | Drop | None:
        self.poll(now)
        known = self.fate.get(index)
        if known in (Settled.SENT, Settled.BACKFILLED, Settled.EMPTY):
            return self._drop(Drop.DUPLICATE, kind)
        if known is not None:
            return self._drop(Drop.LATE, kind)
        if index - self.expected() > self.span:
            return self._drop(Drop.AHEAD, kind)
        if kind == "result":
            for lower in range(index):
                if lower not in self.fate and lower not in self.wait:
                    self.wait[lower] = None if lower in working else now + self.patience
        if kind != "result":
            self.fate[index] = Settled.EMPTY if kind == "empty" else Settled.FAILED
            return None
        overtaken = any(other > index for other in self.went_out)
        self.went_out.append(index)
        self.fate[index] = Settled.BACKFILLED if overtaken else Settled.SENT
        return Send(backfilled=overtaken)

    def _drop(self, drop: Drop, kind: str) -> Drop:
        if kind != "failed":
            self.dropped[drop] += 1
        return drop

    def moved(self, index: int) -> None:
        if index in self.wait and index not in self.fate:
            self.wait[index] = None


def feed(window: ReleaseWindow, kind: str, index: int, now: float, working: set[int]) -> Send | Drop | None:
    if kind == "result":
        return window.receive(index, now, working)
    if kind == "empty":
        return window.settle_empty(index, now)
    return window.settle_failed(index, now)


def play(steps: list[tuple[str, int, float, set[int]]], span: int) -> None:
    """Run window and oracle side by side; times are multiples of 1/8 s, so sums of them are exact."""
    window, book, now = ReleaseWindow(span=span), Book(5.0, span), 0.0
    for kind, index, passed, working in steps:
        now += passed
        if kind == "poll":
            assert set(window.poll(now)) == book.poll(now)
        elif kind == "moved":
            window.job_moved(index)
            book.moved(index)
        else:
            assert feed(window, kind, index, now, working) == book.arrive(index, now, kind, working)
        assert window.expected == book.expected()
        assert window.deadline() == book.deadline()
    by_fate = Counter(book.fate.values())
    assert {how: n for how, n in window.counts.items() if isinstance(how, Settled)} == by_fate
    assert {why: n for why, n in window.counts.items() if isinstance(why, Drop)} == book.dropped
    assert window.snapshot() == (book.expected(), {i: how for i, how in book.fate.items() if i > book.expected()})
    assert len(book.went_out) == len(set(book.went_out))


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["result"] * 4 + ["empty", "failed", "poll", "moved"]),
            st.integers(0, 14),
            st.sampled_from([0.0, 0.0, 0.125, 1.0, 2.5, 4.875, 5.0, 5.125]),
            st.sets(st.integers(0, 14), max_size=3),
        ),
        max_size=50,
    ),
    span=st.sampled_from([8, 1024]),
)
def test_the_window_agrees_with_the_book_on_anything_that_can_happen(
    steps: list[tuple[str, int, float, set[int]]], span: int
) -> None:
    play(steps, span)


@for_each(range(8))
def test_the_window_agrees_with_the_book_over_thousands_of_arrival_orders(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        arrivals = list(range(rng.randint(1, 14)))
        disorder = rng.choice([1, 3, 14])
        arrivals.sort(key=lambda index: index + rng.random() * disorder)
        steps = []
        for index in arrivals + rng.choices(arrivals, k=2):
            kind = rng.choice(["result"] * 8 + ["empty", "failed"])
            working = {i for i in range(index) if rng.random() < 0.15}
            steps.append((kind, index, rng.choice([0.0, 0.125, 0.5, 2.0, 5.0]), working))
            if rng.random() < 0.2:
                steps.append((rng.choice(["moved", "poll"]), rng.choice(arrivals), 0.25, set()))
        play(steps, 1024)


@given(order=st.permutations(range(10)), gaps=st.lists(st.sampled_from([0.0, 0.5, 2.0, 6.0]), min_size=10, max_size=10))
def test_every_index_ends_in_exactly_one_counted_state(order: list[int], gaps: list[float]) -> None:
    window, now, answers = ReleaseWindow(), 0.0, Counter[str]()
    for index, passed in zip(order, gaps, strict=True):
        now += passed
        answers[type(window.receive(index, now)).__name__] += 1
    window.poll(now + 5.0)
    settled = {how: n for how, n in window.counts.items() if isinstance(how, Settled)}
    assert sum(settled.values()) == window.expected == 10
    assert settled.get(Settled.SENT, 0) + settled.get(Settled.BACKFILLED, 0) == answers["Send"]
    assert window.counts[Drop.LATE] == answers["Drop"] == settled.get(Settled.SKIPPED, 0)
