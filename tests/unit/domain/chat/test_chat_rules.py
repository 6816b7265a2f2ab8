"""What chat accepts, how fast, and under which ids."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat import sent_messages
from dragoman.domain.chat.message_ids import EPOCH_MS, WORKERS, MessageIds, made_by_us, time_of
from dragoman.domain.chat.rules import MASK, VIOLATIONS, WordFilter, check, is_planned, utf16_units
from dragoman.domain.chat.sent_messages import Notice, OpenRequests
from dragoman.domain.chat.shards import (
    EARLY_READ_INTERVAL_S,
    FREE_READS_PER_S,
    READ_BURST,
    READ_INTERVAL_S,
    ReadThrottle,
    next_read,
)
from dragoman.domain.chat.switches import REST_S, Gate
from dragoman.protocol.chat import Frame, Reason
from support.tables import for_each

TIMES = st.floats(0, 1e9, allow_nan=False)


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


NOW_MS = EPOCH_MS + 90_000_000_000
LAST_MS = EPOCH_MS + (1 << 41) - 1

workers = st.integers(0, WORKERS - 1)
clocks = st.integers(EPOCH_MS - 10_000, LAST_MS - 10_000)


@given(workers, st.lists(st.tuples(clocks, st.none() | st.integers(0, LAST_MS - 10_000 - EPOCH_MS)), min_size=1))
def test_each_id_is_above_the_last_one_and_above_what_was_asked_whatever_the_clock_does(
    worker: int, draws: list[tuple[int, int | None]]
) -> None:
    ids, last = MessageIds(worker), 0
    for now_ms, above_time in draws:
        above = 0 if above_time is None else above_time << 22 | 5 << 12 | 7
        id = ids.draw(now_ms, above)
        assert id > max(last, above)
        assert id < 1 << 63
        last = id


@given(st.lists(st.tuples(st.integers(0, 3), clocks, st.booleans()), max_size=200))
def test_makers_that_pass_each_other_never_make_the_same(draws: list[tuple[int, int, bool]]) -> None:
    makers, made, highest = [MessageIds(worker) for worker in range(4)], set(), 0
    for worker, now_ms, passing in draws:
        id = makers[worker].draw(now_ms, highest if passing else 0)
        assert id not in made
        assert id >> 12 & 1023 == worker
        made.add(id)
        highest = max(highest, id)


def test_more_than_4096_in_a_millisecond_are_taken_from_the_next() -> None:
    ids = MessageIds(1023)
    drawn = [ids.draw(NOW_MS) for _ in range(10_000)]
    assert drawn == sorted(set(drawn))
    assert [time_of(drawn[at]) - NOW_MS for at in (0, 4095, 4096, 8191, 8192)] == [0, 0, 1, 1, 2]


def test_borrowed_ids_are_paid_back_when_the_clock_catches_up() -> None:
    ids = MessageIds(3)
    for _ in range(4097):
        ids.draw(NOW_MS)
    assert time_of(ids.draw(NOW_MS + 2)) == NOW_MS + 2


def test_a_clock_that_steps_back_makes_no_id_twice() -> None:
    ids = MessageIds(0)
    first = ids.draw(NOW_MS)
    assert ids.draw(NOW_MS - 3_600_000) == first + 1


def test_passing_an_id_of_a_lower_worker_takes_no_time() -> None:
    theirs = MessageIds(3).draw(NOW_MS + 50)
    assert time_of(MessageIds(9).draw(NOW_MS, theirs)) == NOW_MS + 50
    assert time_of(MessageIds(1).draw(NOW_MS, theirs)) == NOW_MS + 51


def test_an_id_tells_when_it_was_made() -> None:
    assert time_of(MessageIds(77).draw(NOW_MS)) == NOW_MS


@pytest.mark.parametrize("worker", [-1, 1024])
def test_a_worker_that_does_not_fit_is_refused(worker: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 1023"):
        MessageIds(worker)


def test_ids_end_in_the_year_2093() -> None:
    ids = MessageIds(1023)
    assert ids.draw(LAST_MS) < 1 << 63
    with pytest.raises(OverflowError, match="2093"):
        ids.draw(LAST_MS + 1)


@given(workers, clocks.filter(lambda ms: ms > EPOCH_MS))
def test_own_ids_are_recognised(worker: int, now_ms: int) -> None:
    assert made_by_us(MessageIds(worker).draw(now_ms))


@for_each([-1, 0, 1, 999_999, (1 << 22) - 1, 1 << 63, 1 << 70])
def test_impossible_ids_are_recognised(id: int) -> None:
    assert not made_by_us(id)


def pauses(every_s: float, reads: int, pace: ReadThrottle | None = None, start: float = 100.0) -> list[float]:
    """Of reads that begin so often and take no time."""
    pace = pace or ReadThrottle()
    return [pace.pause(start + number * every_s, start + number * every_s) for number in range(reads)]


def test_few_messages_wait_for_nothing() -> None:
    assert set(pauses(1 / FREE_READS_PER_S, 1000)) == {0.0}


def test_a_handful_at_once_waits_for_nothing() -> None:
    assert set(pauses(0.0, int(READ_BURST))) == {0.0}


def test_many_share_their_reads() -> None:
    told = pauses(0.5 / FREE_READS_PER_S, 1000)
    assert told[0] == 0.0
    ends = [(100.0 + number * 0.5 / FREE_READS_PER_S + told[number]) / READ_INTERVAL_S for number in range(100, 1000)]
    assert ends == pytest.approx([round(end) for end in ends]), "all shards are read at the same moments"
    assert all(READ_INTERVAL_S / 2 <= pause <= 1.51 * READ_INTERVAL_S for pause in told[100:])


def test_the_time_a_read_took_is_part_of_the_pause() -> None:
    pace = ReadThrottle()
    pauses(0.0, 100, pace)
    assert pace.pause(began=100.0, now=100.0 + READ_INTERVAL_S / 4) == pytest.approx(READ_INTERVAL_S * 3 / 4)
    assert pace.pause(began=100.0, now=100.0 + 2 * READ_INTERVAL_S) == 0.0


def test_messages_that_were_pushed_early_are_read_less_often() -> None:
    pace = ReadThrottle()
    pauses(0.0, 100, pace)
    assert pace.pause(100.0, 100.0, EARLY_READ_INTERVAL_S) == pytest.approx(EARLY_READ_INTERVAL_S)


def test_all_shards_and_all_processes_know_the_moments_of_the_reads() -> None:
    pace = ReadThrottle()
    pauses(0.0, 100, pace)
    now = 100.0 + 1.4 * EARLY_READ_INTERVAL_S
    assert now + pace.pause(now, now, EARLY_READ_INTERVAL_S) == pytest.approx(
        next_read(now + EARLY_READ_INTERVAL_S / 2)
    )


def test_after_a_rush_it_is_forgotten_at_once_however_long_it_was() -> None:
    pace = ReadThrottle()
    pauses(0.0, 100_000, pace)
    assert set(pauses(1 / FREE_READS_PER_S, 100, pace, start=100.0 + 2 * READ_BURST / FREE_READS_PER_S)) == {0.0}


ME = 7


def message(
    client_msg_id: str | None = "c-1", to: int | None = 8, body: str | None = "hello", msg_type: str | None = None
) -> Frame:
    return Frame("SINGLE_CHAT", clientMsgId=client_msg_id, to=to, body=body, msgType=msg_type)


def test_complete_message_is_accepted() -> None:
    assert check(message(), ME) is None


@for_each(
    [
        (message(None, None, None), Reason.MISSING_MSG_ID),
        (message("", None, None), Reason.MISSING_MSG_ID),
        (message("x" * 65), Reason.MISSING_MSG_ID),
        (message(to=None, body=None), Reason.MISSING_TO),
        (message(to=ME, body=None), Reason.MISSING_BODY),
        (message(to=ME, body=""), Reason.MISSING_BODY),
        (message(to=ME, body="x" * 4097), Reason.BODY_TOO_LONG),
        (message(to=ME), Reason.CANNOT_SEND_TO_SELF),
    ]
)
def test_check_names_the_first_problem_of_several(frame: Frame, reason: Reason) -> None:
    assert check(frame, ME) is reason


@for_each([("x", 1), ("é", 1), ("世", 1), ("😀", 2), ("\x01", 1)])
def test_a_body_has_up_to_4096_units_of_utf16(letter: str, units: int) -> None:
    assert check(message(body=letter * (4096 // units)), ME) is None
    assert check(message(body=letter * (4096 // units) + "x"), ME) is Reason.BODY_TOO_LONG


@given(st.text())
def test_units_are_counted_as_in_utf16(text: str) -> None:
    assert utf16_units(text) == sum(2 if ord(letter) > 0xFFFF else 1 for letter in text)


def test_a_client_msg_id_has_up_to_64_characters() -> None:
    assert check(message("é" * 64), ME) is None


@for_each(["FRIEND_REQUEST", "GROUP_CHAT", "GROUP_X", "CALL_OFFER"])
def test_types_that_come_later_are_no_violation(type_: str) -> None:
    assert is_planned(type_)


@for_each(["NONSENSE", "group_chat", "GROUP", "AUTH_OK", "", "FRIEND_REQUESTS"])
def test_other_unknown_types_are_violations(type_: str) -> None:
    assert not is_planned(type_)


def test_violations_are_what_clients_know_them_as() -> None:
    assert {"bad_json", "missing_type", "not_implemented"} == VIOLATIONS


letters = st.text(st.sampled_from("abAB. *([世界é"), max_size=6)


@for_each(
    [
        ("a darn day", "a *** day"),
        ("a DaRn day", "a *** day"),
        ("darnation darned darn", "*** *** ***"),
        ("你好傻瓜世界", "你好***世界"),
        ("c++ and c+", "*** and c+"),
        ("ÉCLAIR", "***"),
        ("nothing of it", "nothing of it"),
        ("", ""),
    ]
)
def test_listed_words_become_three_stars(body: str, cleaned: str) -> None:
    words = WordFilter(["darn", "darned", "darnation", "傻瓜", "C++", "éclair", ""])
    assert words.clean(body) == cleaned


def test_the_longest_of_several_words_at_one_place_wins() -> None:
    assert WordFilter(["ab", "abcd", "a"]).clean("abcd abc ax") == "*** ***c ***x"


def test_places_are_kept_where_lower_case_is_longer() -> None:
    assert WordFilter(["bad"]).clean("İİ BAD İ") == "İİ *** İ"


def test_a_body_without_listed_words_is_the_same_object() -> None:
    body = "quite harmless"
    assert WordFilter(["bad"]).clean(body) is body
    assert WordFilter().clean(body) is body


def test_blanks_around_a_word_do_not_count() -> None:
    assert WordFilter([" bad\r", "  "]).clean("bad  x") == "***  x"


@given(st.lists(letters, max_size=6), st.lists(letters, max_size=6).map("".join))
def test_it_does_what_an_alternation_of_all_words_longest_first_would_do(words: list[str], body: str) -> None:
    listed = sorted({word.strip().lower() for word in words if word.strip()}, key=len, reverse=True)
    plain = re.sub("|".join(map(re.escape, listed)), MASK, body, flags=re.IGNORECASE) if listed else body
    assert WordFilter(words).clean(body) == plain


def test_a_word_as_long_as_a_line_compiles() -> None:
    word = "x" * 64
    nested = WordFilter([word[:length] for length in range(1, 65)])
    assert nested.clean(f"a{word}b") == "a***b"


SAVED = b"saved"


def accepted(requests: OpenRequests, name: str = "a") -> bytes | None:
    requests.received(name)
    held = requests.accepted(name)
    requests.answered(name)
    return held


def refused(requests: OpenRequests, name: str = "a") -> None:
    """By server_busy, after Redis gave no answer."""
    requests.received(name)
    requests.answered(name, unknown=True)


def test_saved_is_written_once_after_accepted() -> None:
    requests = OpenRequests()
    assert accepted(requests) is None
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_that_comes_before_accepted_follows_it() -> None:
    requests = OpenRequests()
    requests.received("a")
    assert requests.notified("a", 5, SAVED) is Notice.HOLD
    assert requests.accepted("a") == SAVED
    requests.answered("a")
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_of_a_request_that_was_refused_is_dropped() -> None:
    requests = OpenRequests()
    refused(requests)
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_that_was_held_is_dropped_when_the_request_is_refused() -> None:
    requests = OpenRequests()
    requests.received("a")
    assert requests.notified("a", 5, SAVED) is Notice.HOLD
    requests.answered("a", unknown=True)
    requests.received("a")
    assert requests.accepted("a") is None


def test_repetition_of_a_refused_request_gets_its_own_saved() -> None:
    requests = OpenRequests()
    refused(requests)
    assert accepted(requests) is None
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_repetition_that_is_refused_does_not_cost_the_first_request_its_saved() -> None:
    requests = OpenRequests()
    accepted(requests)
    refused(requests)
    assert requests.notified("a", 5, SAVED) is Notice.WRITE


def test_repetition_in_progress_gets_saved_although_the_first_request_got_it_too() -> None:
    requests = OpenRequests()
    accepted(requests)
    requests.received("a")
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.accepted("a") == SAVED


def test_saved_is_marked_for_a_request_that_had_another_body() -> None:
    requests = OpenRequests()
    requests.received("a")
    requests.accepted("a", duplicate=True)
    requests.answered("a")
    assert requests.notified("a", 5, SAVED) is Notice.WRITE_DUPLICATE


def test_saved_of_an_earlier_connection_passes_once() -> None:
    requests = OpenRequests()
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_is_not_repeated_for_a_request_that_was_answered_by_it() -> None:
    requests = OpenRequests()
    requests.received("a")
    requests.saved("a", 5)
    requests.answered("a")
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_is_not_repeated_when_another_id_was_accepted_unnoticed() -> None:
    """The row was written past Redis under the id of the row; Redis has the message under a later one."""
    requests = OpenRequests()
    requests.received("a")
    requests.saved("a", 5)
    requests.answered("a", unknown=True)
    assert requests.notified("a", 6, SAVED) is Notice.DROP


def test_memory_of_open_requests_is_bounded() -> None:
    requests = OpenRequests()
    for number in range(sent_messages.MAX_REMEMBERED + 10):
        accepted(requests, str(number))
        refused(requests, f"refused {number}")
    assert len(requests._accepted) == len(requests._failed) == sent_messages.MAX_REMEMBERED
    assert not requests._received
    assert not requests._saved


STEPS = st.lists(st.sampled_from(["receive", "accept", "refuse", "answer saved", "notify"]), max_size=30)


@given(STEPS)
def test_saved_is_written_at_most_once_a_request_and_after_accepted_and_never_missing(steps: list[str]) -> None:
    """One message, sent again and again; the save stage notifies after each acceptance."""
    requests, frames, counts, open_count = OpenRequests(), list[str](), Counter[str](), 0
    for step in [*steps, *["accept"] * 30, "notify"]:
        if step == "receive":
            requests.received("a")
            open_count += 1
        elif step == "notify":
            if requests.notified("a", 5, SAVED) is Notice.WRITE:
                frames.append("saved")
        elif open_count:
            open_count -= 1
            counts[step] += 1
            if step == "accept":
                frames.append("accepted")
                if requests.accepted("a"):
                    frames.append("saved")
            elif step == "answer saved":
                frames.append("saved")
                requests.saved("a", 5)
            requests.answered("a", unknown=step == "refuse")
    # A `saved` before any request of this connection is that of an earlier one.
    earlier = 1 if "notify" in steps and "receive" not in steps[: steps.index("notify")] else 0
    assert frames.count("saved") <= counts["accept"] + counts["answer saved"] + max(earlier, not counts)
    if frames and frames[-1] == "accepted":
        raise AssertionError(f"no saved after accepted: {frames}")
