from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.domain.storm import StormGuard, StormSettings, StormVerdict


def test_a_first_report_marks_its_service_for_a_minute() -> None:
    guard = StormGuard()
    assert guard.report("asr@1", 1_000) is StormVerdict.MARKED
    assert guard.cooling("asr@1", 60_999)
    assert not guard.cooling("asr@1", 61_000)


def test_a_mark_says_nothing_about_another_service_or_version() -> None:
    guard = StormGuard()
    guard.report("asr@1", 1_000)
    assert not guard.cooling("asr@2", 1_000)
    assert not guard.cooling("nmt@1", 1_000)


def test_repeated_reports_within_the_window_count_once() -> None:
    guard = StormGuard()
    assert guard.report("asr@1", 0) is StormVerdict.MARKED
    assert guard.report("asr@1", 4_999) is StormVerdict.DEBOUNCED
    assert not guard.cooling("asr@1", 60_000), "a debounced report does not lengthen the cool-down"


def test_a_report_after_the_window_marks_anew_even_if_reports_went_on_in_between() -> None:
    guard = StormGuard()
    assert [guard.report("asr@1", ms) for ms in (0, 2_000, 4_000, 5_000)] == [
        StormVerdict.MARKED,
        StormVerdict.DEBOUNCED,
        StormVerdict.DEBOUNCED,
        StormVerdict.MARKED,
    ]
    assert guard.cooling("asr@1", 64_999)


def test_more_than_thirty_reports_in_ten_seconds_cool_the_whole_node() -> None:
    guard = StormGuard()
    verdicts = [guard.report("asr@1", ms) for ms in range(0, 31 * 300, 300)]
    assert StormVerdict.RATE_LIMITED not in verdicts[:30]
    assert verdicts[30] is StormVerdict.RATE_LIMITED
    assert guard.cooling("anything@9", 30 * 300 + 59_999)
    assert not guard.cooling("anything@9", 30 * 300 + 60_000)


def test_thirty_reports_in_ten_seconds_are_borne() -> None:
    guard = StormGuard()
    assert all(guard.report("asr@1", ms) is not StormVerdict.RATE_LIMITED for ms in range(0, 100_000, 334))
    assert not guard.cooling("nmt@1", 0)


def test_a_node_that_never_stops_stays_cool() -> None:
    guard = StormGuard()
    for ms in range(0, 120_000, 100):
        guard.report("asr@1", ms)
    assert guard.cooling("nmt@1", 179_000)


def test_what_a_node_can_make_us_remember_is_bounded() -> None:
    guard = StormGuard()
    for ms in range(0, 200_000, 50):
        guard.report(f"service-{ms}@1", ms)
    assert len(guard.recent) <= 30
    assert len(guard.marks) <= 30 * 6


class Ledger:
    """The oracle: keeps every report ever made and reads the rules off the whole history."""

    def __init__(self, rules: StormSettings) -> None:
        self.rules = rules
        self.times: list[int] = []
        self.marked: dict[str, list[int]] = defaultdict(list)
        self.limited: list[int] = []

    def report(self, service: str, now: int) -> StormVerdict:
        self.times.append(now)
        if sum(1 for t in self.times if t > now - self.rules.rate_window_s * 1000) > self.rules.rate_limit:
            self.limited.append(now)
            return StormVerdict.RATE_LIMITED
        if any(t > now - self.rules.debounce_window_s * 1000 for t in self.marked[service]):
            return StormVerdict.DEBOUNCED
        self.marked[service].append(now)
        return StormVerdict.MARKED

    def cooling(self, service: str, now: int) -> bool:
        began = self.marked[service] + self.limited
        return any(t <= now < t + self.rules.unavailable_ttl_s * 1000 for t in began)


@settings(max_examples=200, deadline=None)
@given(
    rules=st.builds(
        StormSettings,
        debounce_window_s=st.integers(1, 5),
        unavailable_ttl_s=st.integers(5, 20),
        rate_limit=st.integers(1, 6),
        rate_window_s=st.integers(1, 10),
    ),
    reports=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1, 250, 999, 1000, 3000, 20_000])), max_size=60
    ),
)
def test_the_guard_agrees_with_the_whole_history(rules: StormSettings, reports: list[tuple[str, int]]) -> None:
    guard, ledger, now = StormGuard(rules), Ledger(rules), 0
    for service, passed in reports:
        now += passed
        assert guard.report(service, now) is ledger.report(service, now)
        for asked in "abcd":
            for later in (now, now + 4_999, now + 5_000, now + 12_345):
                assert guard.cooling(asked, later) == ledger.cooling(asked, later)


# -- pauses


def test_pauses_double_up_to_the_longest() -> None:
    guard, now, pauses = StormGuard(), 0, []
    for _ in range(7):
        now = guard.paused_until_ms
        pauses.append(guard.pause(now))
    assert pauses == [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_a_node_that_is_paused_is_not_paused_for_longer() -> None:
    guard = StormGuard()
    assert guard.pause(1_000) == 2_000
    assert guard.pause(2_999) == 0
    assert guard.pause(3_000) == 4_000


def test_pauses_begin_anew_after_a_success_or_a_minute_without_one() -> None:
    guard = StormGuard()
    guard.pause(1_000)
    guard.recovered()
    assert guard.pause(1_001) == 2_000
    assert guard.pause(3_001 + 60_000) == 2_000
