"""Limits on connections, rates and sessions."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.limits.connections import ConnectionLimits, PerAddressLimit, is_loopback, share_of_address
from dragoman.domain.limits.fair_queue import FairQueue
from dragoman.domain.limits.frames import (
    MAX_ACK_CREDIT,
    TOLERATED_VIOLATIONS,
    VIOLATION_WINDOW_S,
    AckCredit,
    ChatFrameLimit,
    FrameBucket,
)
from dragoman.domain.limits.rates import DAY_S, ROW_BYTES, BytesPerDay, RatePerKey, WorkPerKey, cost
from dragoman.domain.limits.sessions import (
    Headroom,
    Holder,
    SessionGrant,
    SessionLimit,
    SessionLimits,
    SessionQuota,
    WorkQuota,
    headroom_for_job,
)
from support.tables import for_each

REMOTE, OTHER = "203.0.113.7", "198.51.100.1"


def test_address_is_counted_while_it_has_a_connection() -> None:
    addresses = PerAddressLimit()
    addresses.add(REMOTE)
    addresses.add(REMOTE)
    assert (addresses.of(REMOTE), addresses.of(OTHER)) == (2, 0)
    addresses.drop(REMOTE)
    addresses.drop(REMOTE)
    assert len(addresses) == 0


def test_nothing_is_kept_for_addresses_that_left_or_were_only_asked_about() -> None:
    addresses = PerAddressLimit(5)
    for number in range(1000):
        addresses.add(str(number))
        addresses.drop(str(number))
        addresses.of(f"asked {number}")
        addresses.is_full(f"asked {number}")
    assert len(addresses) == 0


def test_full_address_gets_no_more_connections_until_one_is_gone_and_others_do() -> None:
    addresses = PerAddressLimit(2)
    addresses.add(REMOTE)
    assert not addresses.is_full(REMOTE)
    addresses.add(REMOTE)
    assert addresses.is_full(REMOTE)
    assert not addresses.is_full(OTHER)
    addresses.drop(REMOTE)
    assert not addresses.is_full(REMOTE)


def test_zero_is_any_number() -> None:
    addresses = PerAddressLimit(0)
    for _ in range(1000):
        addresses.add(REMOTE)
    assert not addresses.is_full(REMOTE)


@for_each(["127.0.0.1", "::1", "::ffff:127.0.0.1", ""])
def test_loopback_is_never_full(address: str) -> None:
    addresses = PerAddressLimit(1)
    addresses.add(address)
    assert is_loopback(address)
    assert not addresses.is_full(address)


@for_each([REMOTE, "::ffff:203.0.113.7", "fe80::1%eth0", "10.0.0.1", "nonsense"])
def test_every_other_address_can_be_full(address: str) -> None:
    addresses = PerAddressLimit(1)
    addresses.add(address)
    assert not is_loopback(address)
    assert addresses.is_full(address)


def test_share_of_an_address_is_a_quarter_and_at_least_one() -> None:
    assert [share_of_address(total) for total in (1, 3, 4, 2000)] == [1, 1, 1, 500]


def test_shortest_time_limit_is_found() -> None:
    assert ConnectionLimits(head_timeout_s=0.5).shortest_s() == 0.5
    assert ConnectionLimits(out_queue_age_s=0.25, head_timeout_s=0.5).shortest_s() == 0.25


KEYS = st.sampled_from("abc")


def drained(queue: FairQueue[str]) -> list[str]:
    found = []
    while (item := queue.pop()) is not None:
        found.append(item)
    return found


def test_keys_take_turns_and_each_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.push(item[0], item) is None
    assert drained(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_key_that_is_alone_may_use_the_whole_queue() -> None:
    queue: FairQueue[str] = FairQueue(3)
    assert [queue.push("a", item) for item in ("a1", "a2", "a3")] == [None] * 3
    assert queue.push("a", "a4") == "a4"
    assert len(queue) == 3


def test_a_newcomer_displaces_the_newest_of_the_key_that_has_most() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for item in ("a1", "a2", "a3"):
        queue.push("a", item)
    assert queue.push("b", "b1") == "a3"
    assert queue.push("b", "b2") == "b2"
    assert drained(queue) == ["a1", "b1", "a2"]


def test_an_entry_can_be_taken_out_and_what_is_not_there_is_ignored() -> None:
    queue: FairQueue[str] = FairQueue(3)
    queue.push("a", "a1")
    queue.push("a", "a2")
    queue.remove("a", "a1")
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    assert len(queue) == 1
    assert drained(queue) == ["a2"]


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=60), st.integers(1, 6))
def test_no_key_has_more_than_its_share_beside_one_that_was_refused(steps: list[tuple[str, bool]], size: int) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(size)
    waiting: Counter[str] = Counter()
    for number, (key, popping) in enumerate(steps):
        if popping:
            popped = queue.pop()
            waiting.subtract([popped[0]] if popped else [])
            continue
        waiting[key] += 1
        left_out = queue.push(key, (key, number))
        if left_out is not None:
            waiting[left_out[0]] -= 1
            assert waiting[left_out[0]] >= max(waiting.values()) - 1
        assert len(queue) == sum(waiting.values()) <= size


class FrameSender:
    """Counts its portions down, as a connection does."""

    def __init__(self, per_s: float, burst: int, now: float) -> None:
        self._bucket, self._tokens = FrameBucket(per_s, burst, now), 0.0

    def admitted(self, frames: int, now: float) -> int:
        """How many of these frames are admitted before the first one too many."""
        for sent in range(frames):
            self._tokens -= 1
            if self._tokens < 0:
                self._tokens += self._bucket.portion(now)
                if self._tokens < 0:
                    return sent
        return frames


@for_each([1, 5, 8, 20, 400])
def test_a_new_connection_may_send_its_burst_at_once(burst: int) -> None:
    assert FrameSender(burst / 2, burst, 100.0).admitted(1000, 100.0) == burst


@for_each([0, 1, 30, 49, 50, 51, 399])
def test_a_connection_that_was_idle_may_send_its_burst_and_no_more(before: int) -> None:
    sender = FrameSender(200, 400, 100.0)
    assert sender.admitted(before, 100.0) == before
    assert 350 <= sender.admitted(1000, 200.0) <= 400


def test_frames_at_the_rate_are_never_too_many() -> None:
    sender = FrameSender(200, 400, 100.0)
    assert all(sender.admitted(1, 100.0 + number / 200) for number in range(10_000))


@given(st.integers(1, 60), st.lists(st.floats(0, 3), max_size=60))
def test_a_connection_sends_no_more_than_its_burst_and_its_rate(burst: int, pauses: list[float]) -> None:
    sender, now, frames = FrameSender(10, burst, 50.0), 50.0, 0
    for pause in pauses:
        now += pause
        frames += sender.admitted(7, now)
    assert frames <= burst + 10 * (now - 50.0) + 1e-6


def test_the_fourth_violation_within_ten_seconds_is_one_too_many() -> None:
    limit = ChatFrameLimit(1, 1)
    assert [limit.violate(now) for now in (0.0, 3.0, 6.0, 10.0)] == [False, False, False, True]


def test_violation_no_longer_counts_after_ten_seconds() -> None:
    limit = ChatFrameLimit(1, 1)
    assert not any(limit.violate(now) for now in (0.0, 5.0, 9.0, 10.1, 15.1, 19.1, 20.2))
    assert limit.violate(20.3)


@given(st.lists(st.floats(0, 8), max_size=40))
def test_violation_is_one_too_many_exactly_when_four_are_within_the_window(pauses: list[float]) -> None:
    limit, times, now = ChatFrameLimit(1, 1), [], 0.0
    for pause in pauses:
        now += pause
        times.append(now)
        recent = times[-TOLERATED_VIOLATIONS - 1 :]
        assert limit.violate(now) == (len(recent) > TOLERATED_VIOLATIONS and now - recent[0] <= VIOLATION_WINDOW_S)


def test_burst_is_admitted_and_then_the_rate_per_second() -> None:
    limit = ChatFrameLimit(per_s=10, burst=20)
    assert sum(limit.admit(100.0) for _ in range(50)) == 20
    assert sum(limit.admit(101.0) for _ in range(50)) == 10
    assert sum(limit.admit(200.0) for _ in range(50)) == 20


def test_steady_stream_at_the_rate_is_never_refused() -> None:
    limit = ChatFrameLimit(per_s=400, burst=1)
    assert all(limit.admit(5.0 + n / 400) for n in range(10_000))


@given(st.lists(st.floats(0, 1), max_size=100))
def test_no_more_than_burst_and_rate_together_are_admitted(pauses: list[float]) -> None:
    limit, now, taken = ChatFrameLimit(per_s=5, burst=10), 50.0, 0
    for pause in pauses:
        now += pause
        taken += limit.admit(now)
    assert taken <= 10 + 5 * (now - 50.0) + 1e-6


def test_frames_of_a_time_without_reading_come_on_top_of_the_burst() -> None:
    limit = ChatFrameLimit(per_s=10, burst=5)
    limit.add_unread(2.0)
    assert [limit.admit(100.0) for _ in range(26)] == [True] * 25 + [False]
    assert not limit.admit(100.0)
    assert limit.admit(100.1)


def test_two_receipts_are_free_for_each_pushed_message() -> None:
    credit = AckCredit()
    assert not credit.take()
    for _ in range(3):
        credit.pushed()
    assert [credit.take() for _ in range(7)] == [True] * 6 + [False]


def test_ack_credit_is_bounded() -> None:
    credit = AckCredit()
    for _ in range(MAX_ACK_CREDIT):
        credit.pushed()
    assert sum(credit.take() for _ in range(3 * MAX_ACK_CREDIT)) == MAX_ACK_CREDIT


def tries(rate: RatePerKey, key: str, now: float, count: int = 20) -> int:
    return sum(rate.take(key, now) for _ in range(count))


def test_a_key_may_try_five_times_at_once_and_five_times_a_minute() -> None:
    rate = RatePerKey(5)
    assert tries(rate, "a", 100.0) == 5
    assert tries(rate, "a", 112.0) == 1
    assert tries(rate, "a", 172.0) == 5


def test_keys_do_not_share() -> None:
    rate = RatePerKey(5)
    assert tries(rate, "a", 0.0) == 5
    assert tries(rate, "b", 0.0) == 5


def test_keys_that_have_all_their_tries_again_are_forgotten() -> None:
    rate = RatePerKey(5)
    for n in range(1000):
        rate.take(n, 0.0)
    for n in range(1000, 2000):
        rate.take(n, 60.0)
    assert len(rate) == 1000


def test_table_is_bounded_and_drops_the_oldest_address() -> None:
    rate = RatePerKey(1, max_keys=3)
    for key in "abcd":
        assert rate.take(key, 0.0)
    assert len(rate) == 3
    assert not rate.take("b", 0.0)
    assert rate.take("a", 0.0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 20)), max_size=100), st.integers(1, 10))
def test_never_more_than_twice_the_tries_in_any_minute(steps: list[tuple[str, float]], per_minute: int) -> None:
    rate, now = RatePerKey(per_minute, max_keys=2), 0.0
    taken: list[tuple[str, float]] = []
    for key, pause in steps:
        now += pause
        if rate.take(key, now):
            taken.append((key, now))
        recent = [1 for other, when in taken if other == key and now - when < 60]
        assert len(recent) <= 2 * per_minute


def test_a_sender_has_room_until_its_bytes_of_the_day_are_used() -> None:
    day = BytesPerDay(1000)
    day.stored(600, 0.0)
    assert day.room_for(400, 1.0)
    assert not day.room_for(401, 1.0)


def test_a_day_begins_with_the_first_byte_and_then_all_of_it_is_back() -> None:
    day = BytesPerDay(1000)
    day.stored(1000, 5.0)
    assert not day.room_for(1, 5.0 + DAY_S - 1)
    assert day.room_for(1000, 5.0 + DAY_S)
    day.stored(1000, 5.0 + DAY_S)
    assert not day.room_for(1, 6.0 + DAY_S)


def test_cluster_count_replaces_the_count_of_one_connection() -> None:
    day = BytesPerDay(1000)
    day.stored(1, 0.0)
    day.learned(1000, 60.0, 10.0)
    assert not day.room_for(1, 69.0)
    assert day.room_for(1, 70.0)


def test_a_quota_of_zero_is_any_number() -> None:
    day = BytesPerDay(0)
    day.stored(10**12, 0.0)
    assert day.room_for(10**12, 1.0)


def test_a_message_costs_its_bytes_and_those_of_its_row() -> None:
    assert cost("né") == 3 + ROW_BYTES


ANN, BOB = Holder("default/ann", "192.0.2.1"), Holder("default/bob", "192.0.2.1")
GATEWAY = Holder("default/gw", "192.0.2.9", gateway=True)
STRANGER = Holder("default/local", "192.0.2.1", anonymous=True)
LAPTOP = Holder("default/local", anonymous=True, gateway=True)

_names = count()


def quota(**limits: float) -> SessionQuota:
    unbounded = {"per_principal": 0, "per_gateway": 0, "per_address": 0, "instance": 100}
    return SessionQuota(SessionLimits(**unbounded | limits))  # type: ignore[arg-type]


def taken(of: SessionQuota, *holders: Holder) -> list[SessionGrant]:
    return [of.admit(f"s-{next(_names)}", holder) for holder in holders]


def test_principal_has_so_many_sessions_and_one_more_when_one_is_released() -> None:
    some = quota(per_principal=2)
    first, _ = taken(some, ANN, ANN)
    assert some.full(ANN) is SessionLimit.PRINCIPAL
    assert some.full(BOB) is None
    some.release(first)
    assert some.full(ANN) is None


def test_address_has_so_many_sessions_whatever_names_it_gives() -> None:
    some = quota(per_address=2)
    taken(some, ANN, BOB)
    assert some.full(STRANGER) is SessionLimit.ADDRESS
    assert some.full(Holder("default/ann", "192.0.2.2")) is None


def test_anonymous_clients_are_counted_by_address_alone() -> None:
    some = quota(per_principal=1, per_address=2)
    taken(some, STRANGER)
    assert some.full(STRANGER) is None
    taken(some, STRANGER)
    assert some.full(STRANGER) is SessionLimit.ADDRESS
    taken(some, *[LAPTOP] * 5)
    assert some.full(LAPTOP) is None


def test_gateway_has_a_limit_of_its_own_instead_of_those_of_a_client() -> None:
    some = quota(per_principal=1, per_address=1, per_gateway=3)
    taken(some, GATEWAY, GATEWAY)
    assert some.full(GATEWAY) is None
    taken(some, GATEWAY)
    assert some.full(GATEWAY) is SessionLimit.GATEWAY
    assert some.full(Holder("default/ann", GATEWAY.address)) is None


def test_session_that_was_left_counts_against_its_holder_and_not_against_the_instance() -> None:
    some = quota(per_principal=1, instance=1)
    (place,) = taken(some, ANN)
    assert some.full(BOB) is SessionLimit.INSTANCE
    some.close(place)
    assert (len(some), some.full(ANN), some.full(BOB)) == (0, SessionLimit.PRINCIPAL, None)
    some.release(place)
    assert some.full(ANN) is None


def test_oldest_detached_session_ends_when_they_take_more_than_their_share_of_a_full_instance() -> None:
    some = quota(instance=4, detached_share=0.5)
    a, b, c = taken(some, LAPTOP, LAPTOP, LAPTOP)
    for place in (b, a, c):
        some.detach(place)
    assert some.evictable() is None, "there is room"
    taken(some, ANN)
    assert some.full(ANN) is None
    assert some.evictable() is b
    some.release(b)
    taken(some, ANN)
    assert (some.evictable(), some.full(ANN)) == (None, SessionLimit.INSTANCE)


def test_session_whose_socket_is_back_is_not_ended_for_others() -> None:
    some = quota(instance=2, detached_share=0.4)
    a, b = taken(some, LAPTOP, LAPTOP)
    some.detach(a)
    some.detach(b)
    some.attach(a)
    assert (some.evictable(), some.detached) == (b, 1)


def test_clients_without_a_session_leave_no_state() -> None:
    some = quota()
    held = taken(some, ANN, BOB, GATEWAY, STRANGER, LAPTOP)
    for place in held:
        some.detach(place)
    for place in held * 2:
        some.release(place)
    some.detach(held[0])
    assert (len(some), some.detached, some.holders) == (0, 0, 0)


def test_session_with_many_open_jobs_is_paused_first_and_refused_at_twice_as_many() -> None:
    headroom = [headroom_for_job(open_jobs, 2) for open_jobs in range(1, 7)]
    assert headroom == [Headroom.ENOUGH] * 2 + [Headroom.LITTLE] * 2 + [Headroom.NONE] * 2
    assert headroom_for_job(10_000, 0) is Headroom.ENOUGH


# -- work ----------------------------------------------------------------------------------------


def test_work_is_done_at_once_up_to_the_burst_and_then_at_the_rate() -> None:
    work = WorkPerKey(per_s=10, burst=3, max_wait_s=5)
    assert [work.done("eve", 1, 100.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    assert work.done("ann", 1, 100.0) == 0
    assert work.done("eve", 1, 100.2) == pytest.approx(0.1)
    assert [work.done("eve", 1, 200.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_key_that_works_on_instead_of_waiting_waits_no_longer_than_the_maximum() -> None:
    work = WorkPerKey(per_s=10, burst=3, max_wait_s=5)
    waits = [work.done("eve", 1, 100.0) for _ in range(100)]
    assert waits[52] == pytest.approx(5.0)
    assert waits[53:] == pytest.approx([5.1] * 47)
    assert work.done("eve", 0, 105.0) == pytest.approx(0.0)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 3)), max_size=50))
def test_client_that_waits_does_no_more_than_its_rate_and_one_piece_beyond_the_burst(
    steps: list[tuple[float, float]],
) -> None:
    work, now, total, largest = WorkPerKey(per_s=5, burst=4, max_wait_s=5), 50.0, 0.0, 0.0
    for pause, size in steps:
        now += pause
        total, largest = total + size, max(largest, size)
        assert total <= 4 + largest + 5 * (now - 50.0) + 1e-6
        now += work.done("eve", size, now)


def test_keys_that_have_all_their_work_again_are_forgotten() -> None:
    work = WorkPerKey(per_s=10, burst=3, max_wait_s=5)
    for number in range(100):
        work.done(number, 1, 100.0)
    for number in range(100):
        work.done("eve", 1, 200.0 + number)
    assert len(work) <= 2


def test_work_of_a_client_is_counted_over_all_its_connections_and_addresses() -> None:
    work = WorkQuota(SessionLimits(utterances_per_s=10, gateway_utterances_per_s=100))
    for address in ("192.0.2.1", "192.0.2.2"):
        for _ in range(8):
            assert work.done(Holder("default/ann", address), 1, 100.0) == 0
    assert work.done(ANN, 1, 100.0) == pytest.approx(0.1)
    assert work.done(BOB, 1, 100.0) == 0


def test_clients_without_a_token_share_the_work_of_their_address() -> None:
    work = WorkQuota(SessionLimits(utterances_per_s=10))
    assert work.done(STRANGER, 17, 100.0) == pytest.approx(0.1)
    assert work.done(Holder("default/local", "192.0.2.2", anonymous=True), 1, 100.0) == 0


def test_gateway_may_do_more_and_this_machine_without_a_secret_anything() -> None:
    work = WorkQuota(SessionLimits(utterances_per_s=10, gateway_utterances_per_s=100))
    assert work.done(GATEWAY, 17, 100.0) == pytest.approx(0.01)
    assert work.done(LAPTOP, 10_000, 100.0) == 0
    unlimited = WorkQuota(SessionLimits(utterances_per_s=0, gateway_utterances_per_s=0))
    assert [unlimited.done(holder, 10_000, 100.0) for holder in (ANN, GATEWAY)] == [0, 0]


def test_open_jobs_are_limited_by_principal_and_by_gateway_and_not_on_this_machine() -> None:
    limits = SessionLimits(open_jobs_per_principal=5, open_jobs_per_gateway=50)
    assert [limits.open_jobs_of(holder) for holder in (ANN, STRANGER, GATEWAY, LAPTOP)] == [5, 5, 50, 0]
