"""The small decisions of the domain."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.history import POINT_MS, SAMPLE_MS, Sample, merge, quantile_ms
from dragoman.domain.lease import SelfLease
from dragoman.domain.pool import Pool, languages
from dragoman.domain.reorder import IndexRefused, Reorder
from dragoman.domain.revocation import Revocation, RevocationList, SigningKeys, name_of, token_name
from dragoman.domain.storm import MAX_NODES, RECENT, StormGuard, StormSettings, StormVerdict, TrackRecord
from support.tables import for_each

BOUNDS = (0.1, 1.0)
LATER_MS = 10 * POINT_MS


def sample(instance: str, seconds: float = 5.0, **fields: Any) -> Sample:
    given = {"counters": {}, "histograms": {}, "gauges": {}} | fields
    return Sample(instance, seconds, **given)


def merged(*samples: tuple[int, Sample], now_ms: int = LATER_MS) -> list[dict[str, float | None]]:
    return merge(samples, BOUNDS, now_ms)


def test_rates_are_added_over_the_instances() -> None:
    first = (0, sample("a", 5, counters={"ended": 10}))
    second = (SAMPLE_MS, sample("a", 5, counters={"ended": 20}))
    (point,) = merged(first, second, (3, sample("b", 4, counters={"ended": 8})))
    assert (point["at"], point["instances"], point["ended"]) == (0, 2, 30 / 10 + 8 / 4)


def test_percentiles_are_of_the_histograms_of_all_instances_together() -> None:
    fast, slow = [99, 0, 0], [0, 1, 0]
    (point,) = merged((0, sample("a", histograms={"job_ms": fast})), (1, sample("b", histograms={"job_ms": slow})))
    assert (point["job_ms_p50"], point["job_ms_p95"], point["job_ms_p99"]) == (100, 100, 100)
    (point,) = merged((0, sample("a", histograms={"job_ms": fast})), (1, sample("b", histograms={"job_ms": [0, 9, 0]})))
    assert (point["job_ms_p50"], point["job_ms_p95"], point["job_ms_p99"]) == (100, 1000, 1000)


def test_a_percentile_of_nothing_is_nothing() -> None:
    (point,) = merged((0, sample("a", histograms={"job_ms": [0, 0, 0]})))
    assert point["job_ms_p50"] is None


def test_a_gauge_is_the_last_value_of_each_instance_added() -> None:
    earlier, last = sample("a", gauges={"sessions": 7}), sample("a", gauges={"sessions": 2})
    (point,) = merged((0, earlier), (SAMPLE_MS, last), (0, sample("b", gauges={"sessions": 5})))
    assert point["sessions"] == 7


def test_points_begin_at_whole_times_and_come_in_order() -> None:
    found = merged((POINT_MS + 1, sample("a")), (2 * POINT_MS - 1, sample("a")), (1, sample("a")))
    assert [point["at"] for point in found] == [0, POINT_MS]


@pytest.mark.parametrize(("after_ms", "shown"), [(POINT_MS + SAMPLE_MS - 1, 0), (POINT_MS + SAMPLE_MS, 1)])
def test_a_point_for_which_samples_may_still_come_is_not_shown(after_ms: int, shown: int) -> None:
    assert len(merged((0, sample("a")), now_ms=after_ms)) == shown


def test_a_histogram_with_other_buckets_is_left_out() -> None:
    (point,) = merged((0, sample("a", histograms={"job_ms": [1, 0, 0]})), (0, sample("b", histograms={"job_ms": [5]})))
    assert point["job_ms_p50"] == 100


def test_a_percentile_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile_ms([0, 0, 3], BOUNDS, 0.5) == 1000


ONE, TWO = "the-first-secret", "the-second-secret"


def test_first_secret_signs_and_all_are_listed() -> None:
    keys = SigningKeys(("", ONE, "", TWO))
    assert keys.signing == ONE
    assert list(keys) == [ONE, TWO]
    assert len(keys) == 2


def test_empty_keys_are_false() -> None:
    assert not SigningKeys()
    assert not SigningKeys(("", ""))


def test_change_is_true_only_if_secrets_or_order_differ() -> None:
    keys = SigningKeys((ONE,))
    assert not keys.change((ONE, ""))
    assert keys.change((ONE, TWO))
    assert keys.change((TWO, ONE))
    assert keys.signing == TWO


def test_change_keeps_the_secrets_when_there_are_no_new_ones() -> None:
    keys = SigningKeys((ONE,))
    assert not keys.change(("",))
    assert list(keys) == [ONE]


def test_names_do_not_reveal_secrets() -> None:
    keys = SigningKeys((ONE, TWO))
    assert keys.names() == [name_of(ONE), name_of(TWO)]
    assert len(set(keys.names())) == 2
    assert all(len(name) == 8 and name not in ONE + TWO for name in keys.names())


def test_an_instance_that_never_renewed_holds_no_lease() -> None:
    assert not SelfLease(ttl_s=6).valid(now=0.0)


def test_a_lease_lasts_its_ttl_from_when_the_renewal_was_sent() -> None:
    lease = SelfLease(ttl_s=6)
    lease.renewed(sent_at=100.0)
    assert lease.expires_at == 106.0
    assert lease.valid(now=105.999)
    assert not lease.valid(now=106.0)


def test_an_answer_that_was_overtaken_does_not_shorten_the_lease() -> None:
    lease = SelfLease(ttl_s=6)
    lease.renewed(sent_at=102.0)
    lease.renewed(sent_at=100.0)
    assert lease.expires_at == 108.0


def test_a_lapsed_lease_is_valid_again_once_renewed() -> None:
    lease = SelfLease(ttl_s=6)
    lease.renewed(sent_at=0.0)
    assert not lease.valid(now=50.0)
    lease.renewed(sent_at=50.0)
    assert lease.valid(now=50.0)


DE_EN = frozenset({"de", "en"})


def test_language_pair_needs_one_source_and_one_target() -> None:
    assert languages("de", "en", lang_a="fr", lang_b="zh") == (frozenset({"de"}), frozenset({"en"}))


def test_auto_between_two_languages_asks_for_both_directions() -> None:
    assert languages("auto", "en", lang_a="de", lang_b="en") == (DE_EN, DE_EN)


def test_auto_alone_asks_only_for_what_is_written() -> None:
    assert languages("auto", "en") == (frozenset[str](), frozenset({"en"}))
    assert languages("auto", "en", lang_a="de") == (frozenset[str](), frozenset({"en"}))


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard", "mark_full", "mark_free"]), st.sampled_from("abcdefg")),
        max_size=60,
    )
)
def test_open_nodes_come_first_and_every_node_is_listed_once(steps: list[tuple[str, str]]) -> None:
    pool = Pool(frozenset(), frozenset(), "ab")
    members, shut = {"a", "b"}, set[str]()
    for step, node_id in steps:
        getattr(pool, step)(node_id)
        if step == "add" and node_id not in members:
            members.add(node_id)
            shut.discard(node_id)
        elif step == "discard":
            members.discard(node_id)
            shut.discard(node_id)
        elif step == "mark_full" and node_id in members:
            shut.add(node_id)
        elif step == "mark_free":
            shut.discard(node_id)
        assert sorted(pool.ids) == sorted(members)
        assert len(pool) == len(members)
        assert set(pool.ids[: pool.free]) == members - shut
        assert all((node_id in pool) == (node_id in members) for node_id in "abcdefg")


NOW = 1_700_000_000.0
FOREVER = Revocation(1)


def until(seconds: float) -> Revocation:
    return Revocation(1, "olga", int((NOW + seconds) * 1000))


def test_token_is_named_by_its_jti() -> None:
    assert token_name("head.body.signature", "abc-1") == "token:abc-1"


@for_each([None, "", 7, "x" * 65, "a b", "a\n", "ä", ["a"]])
def test_token_without_a_usable_jti_is_named_by_a_digest_of_what_is_signed(jti: object) -> None:
    name = token_name("head.body.signature", jti)
    assert name.startswith("token:sha256-")
    assert len(name) == len("token:sha256-") + 64
    assert name == token_name("head.body.another-way-to-write-it", jti)
    assert name != token_name("head.other.signature", jti)


def test_name_is_revoked_until_the_end_of_its_entry() -> None:
    revoked = RevocationList()
    assert not revoked.is_revoked("token:a", "client:default/ann", now=NOW)
    revoked.replace(1, [("token:a", until(10)), ("client:default/ann", FOREVER)])
    assert revoked.is_revoked("token:a", now=NOW + 9.9)
    assert not revoked.is_revoked("token:a", now=NOW + 10)
    assert revoked.is_revoked("token:b", "client:default/ann", now=NOW + 10**9)
    assert [name for name, _ in revoked.entries(NOW)] == ["client:default/ann", "token:a"]
    assert [name for name, _ in revoked.entries(NOW + 10)] == ["client:default/ann"]


def test_change_that_follows_is_applied_and_one_that_is_known_changes_nothing() -> None:
    revoked = RevocationList()
    assert revoked.change(1, "token:a", FOREVER)
    assert revoked.change(2, "token:a", None)
    assert not revoked.is_revoked("token:a", now=NOW)
    assert revoked.change(1, "token:a", FOREVER)
    assert (revoked.version, len(revoked)) == (2, 0)


def test_change_is_refused_if_one_before_it_is_missing() -> None:
    revoked = RevocationList()
    assert not revoked.change(2, "token:b", FOREVER)
    assert (revoked.version, len(revoked)) == (0, 0)


def test_owners_of_sessions_are_clients_and_chat_users() -> None:
    revoked = RevocationList()
    names = ["client:acme/ann", "user:42", "node:default/n1", "operator:default/olga", "token:client:x"]
    revoked.replace(1, [(name, FOREVER) for name in names])
    assert revoked.owners() == {"acme/ann", "~chat/42"}


def test_failures_in_a_row_are_counted_and_a_success_ends_the_run() -> None:
    record = TrackRecord()
    assert [record.failed("a"), record.failed("a"), record.failed("b")] == [1, 2, 1]
    record.succeeded("a")
    assert record.failed("a") == 1


def test_the_slowness_of_a_node_is_the_90th_percentile_of_its_recent_jobs() -> None:
    record = TrackRecord()
    assert record.slowness("a") is None
    for seconds in range(1, 11):
        record.add_work_time("a", seconds, 1.0)
    assert record.slowness("a") == 9.0
    record.add_work_time("a", 100.0, 10.0)
    assert record.slowness("a") == 10.0


def test_old_jobs_do_not_count_for_the_slowness_of_a_node() -> None:
    record = TrackRecord()
    for seconds in [100.0] * RECENT + [1.0] * RECENT:
        record.add_work_time("a", seconds, 1.0)
    assert record.slowness("a") == 1.0


def test_a_job_without_audio_says_nothing_about_the_slowness_of_its_node() -> None:
    record = TrackRecord()
    record.add_work_time("a", 1.0, 0.0)
    assert record.slowness("a") is None


def test_the_node_used_longest_ago_is_forgotten_when_there_are_too_many() -> None:
    record = TrackRecord()
    for number in range(MAX_NODES):
        record.failed(f"n{number}")
    record.failed("n0")
    record.failed("one more")
    assert len(record) == MAX_NODES
    assert record.failed("n0") == 3
    assert record.failed("n1") == 1


def test_the_loss_of_a_connection_is_news_once() -> None:
    record = TrackRecord()
    assert [record.is_new_loss("a", epoch) for epoch in (5, 5, 4, 6)] == [True, False, False, True]
    assert record.is_new_loss("b", 5)


def test_an_early_one_waits_for_the_one_before() -> None:
    reorder: Reorder[str] = Reorder()
    assert reorder.offer(1, "b", 0.0) == []
    assert reorder.deadline() == 0.3
    assert reorder.offer(0, "a", 0.2) == ["a", "b"]
    assert reorder.deadline() is None


def test_with_it_goes_all_that_is_before_it() -> None:
    reorder: Reorder[str] = Reorder()
    reorder.offer(4, "e", 0.0)
    reorder.offer(2, "c", 0.25)
    reorder.offer(5, "f", 0.25)
    assert reorder.poll(0.3) == ["c", "e", "f"]


def test_an_index_whose_place_is_settled_is_used() -> None:
    reorder: Reorder[str] = Reorder()
    reorder.offer(1, "b", 0.0)
    reorder.poll(0.3)
    assert reorder.offer(0, "a", 9.0, expected=2) is IndexRefused.USED


def test_an_index_too_far_ahead_is_refused() -> None:
    reorder: Reorder[str] = Reorder(span=10)
    assert reorder.offer(11, "x", 0.0) is IndexRefused.AHEAD
    assert reorder.offer(10, "x", 0.0) == []


def test_places_that_were_passed_are_not_remembered_for_ever() -> None:
    reorder: Reorder[int] = Reorder(span=10)
    now = 0.0
    for index in range(9, 10_000, 10):
        now += 1.0
        reorder.offer(index, index, now, expected=max(0, index - 10))
        reorder.poll(now + 0.3)
    assert len(reorder._missing) <= 3 * 10


@given(
    steps=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.125, 0.25, 0.5])), max_size=40),
    polls=st.booleans(),
)
def test_every_index_is_sent_at_most_once_and_within_its_timeout(steps: list[tuple[int, float]], polls: bool) -> None:
    reorder: Reorder[int] = Reorder(reorder_ms=250)
    now, gone, waiting = 0.0, list[int](), dict[int, float]()
    for index, passed in steps:
        now += passed
        if polls:
            gone += (polled := reorder.poll(now))
            assert polled == sorted(polled)
            waiting = {i: at for i, at in waiting.items() if i not in polled}
        known = index in gone or index in waiting
        answer = reorder.offer(index, index, now)
        assert (answer is IndexRefused.USED) == known
        if not isinstance(answer, IndexRefused):
            waiting[index] = now
            gone += answer
            assert answer == sorted(answer)
            waiting = {i: at for i, at in waiting.items() if i not in answer}
            assert all(now < at + 0.25 for at in waiting.values())
            assert reorder.deadline() == min((at + 0.25 for at in waiting.values()), default=None)
    gone += reorder.poll(now + 1.0)
    assert sorted(gone) == sorted({index for index, _ in steps})


def test_a_first_report_marks_its_service_for_a_minute() -> None:
    guard = StormGuard()
    assert guard.report("asr@1", 1_000) is StormVerdict.MARKED
    assert guard.cooling("asr@1", 60_999)
    assert not guard.cooling("asr@1", 61_000)


def test_more_than_thirty_reports_in_ten_seconds_cool_the_whole_node() -> None:
    guard = StormGuard()
    verdicts = [guard.report("asr@1", ms) for ms in range(0, 31 * 300, 300)]
    assert StormVerdict.RATE_LIMITED not in verdicts[:30]
    assert verdicts[30] is StormVerdict.RATE_LIMITED
    assert guard.cooling("anything@9", 30 * 300 + 59_999)
    assert not guard.cooling("anything@9", 30 * 300 + 60_000)


def test_state_kept_for_a_node_is_bounded() -> None:
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
