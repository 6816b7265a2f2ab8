import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.rules import (
    FORGIVEN,
    MOST_ACKS,
    VIOLATIONS,
    WINDOW_S,
    AckCredit,
    Guard,
    check,
    comes_later,
    utf16_units,
)
from dragoman.protocol.chat import Frame, Reason

ME = 7


def message(
    client_msg_id: str | None = "c-1", to: int | None = 8, body: str | None = "hello", msg_type: str | None = None
) -> Frame:
    return Frame("SINGLE_CHAT", clientMsgId=client_msg_id, to=to, body=body, msgType=msg_type)


def test_a_whole_message_is_taken() -> None:
    assert check(message(), ME) is None


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (message(None, None, None), Reason.MISSING_MSG_ID),
        (message("", None, None), Reason.MISSING_MSG_ID),
        (message("x" * 65), Reason.MISSING_MSG_ID),
        (message(to=None, body=None), Reason.MISSING_TO),
        (message(to=ME, body=None), Reason.MISSING_BODY),
        (message(to=ME, body=""), Reason.MISSING_BODY),
        (message(to=ME, body="x" * 4097), Reason.BODY_TOO_LONG),
        (message(to=ME), Reason.CANNOT_SEND_TO_SELF),
    ],
)
def test_who_leaves_out_several_things_is_told_of_the_first(frame: Frame, reason: Reason) -> None:
    assert check(frame, ME) is reason


@pytest.mark.parametrize(("letter", "units"), [("x", 1), ("é", 1), ("世", 1), ("😀", 2), ("\x01", 1)])
def test_a_body_has_up_to_4096_units_of_utf16(letter: str, units: int) -> None:
    assert check(message(body=letter * (4096 // units)), ME) is None
    assert check(message(body=letter * (4096 // units) + "x"), ME) is Reason.BODY_TOO_LONG


@given(st.text())
def test_units_are_counted_as_in_utf16(text: str) -> None:
    assert utf16_units(text) == sum(2 if ord(letter) > 0xFFFF else 1 for letter in text)


def test_a_client_msg_id_has_up_to_64_characters() -> None:
    assert check(message("é" * 64), ME) is None


@pytest.mark.parametrize("type_", ["FRIEND_REQUEST", "GROUP_CHAT", "GROUP_X", "CALL_OFFER"])
def test_types_that_come_later_are_no_violation(type_: str) -> None:
    assert comes_later(type_)


@pytest.mark.parametrize("type_", ["NONSENSE", "group_chat", "GROUP", "AUTH_OK", "", "FRIEND_REQUESTS"])
def test_other_unknown_types_are(type_: str) -> None:
    assert not comes_later(type_)


def test_violations_are_what_clients_know_them_as() -> None:
    assert {"bad_json", "missing_type", "not_implemented"} == VIOLATIONS


def test_the_fourth_violation_within_ten_seconds_is_one_too_many() -> None:
    guard = Guard(1, 1)
    assert [guard.violate(now) for now in (0.0, 3.0, 6.0, 10.0)] == [False, False, False, True]


def test_violations_are_forgotten_after_ten_seconds() -> None:
    guard = Guard(1, 1)
    assert not any(guard.violate(now) for now in (0.0, 5.0, 9.0, 10.1, 15.1, 19.1, 20.2))
    assert guard.violate(20.3)


@given(st.lists(st.floats(0, 8), max_size=40))
def test_a_connection_goes_exactly_when_four_violations_are_within_the_window(pauses: list[float]) -> None:
    guard, times, now = Guard(1, 1), [], 0.0
    for pause in pauses:
        now += pause
        times.append(now)
        recent = times[-FORGIVEN - 1 :]
        assert guard.violate(now) == (len(recent) > FORGIVEN and now - recent[0] <= WINDOW_S)


def test_a_burst_is_taken_and_then_so_many_a_second() -> None:
    guard = Guard(per_s=10, burst=20)
    assert sum(guard.admit(100.0) for _ in range(50)) == 20
    assert sum(guard.admit(101.0) for _ in range(50)) == 10
    assert sum(guard.admit(200.0) for _ in range(50)) == 20


def test_a_steady_stream_at_the_rate_is_never_refused() -> None:
    guard = Guard(per_s=400, burst=1)
    assert all(guard.admit(5.0 + n / 400) for n in range(10_000))


@given(st.lists(st.floats(0, 1), max_size=100))
def test_never_more_than_burst_and_rate_together(pauses: list[float]) -> None:
    guard, now, taken = Guard(per_s=5, burst=10), 50.0, 0
    for pause in pauses:
        now += pause
        taken += guard.admit(now)
    assert taken <= 10 + 5 * (now - 50.0) + 1e-6


def test_what_was_said_while_nobody_read_comes_on_top_of_the_burst() -> None:
    guard = Guard(per_s=10, burst=5)
    guard.unread(2.0)
    assert [guard.admit(100.0) for _ in range(26)] == [True] * 25 + [False]
    assert not guard.admit(100.0)
    assert guard.admit(100.1)


def test_receipts_are_free_as_many_as_the_pushed_messages_allow() -> None:
    credit = AckCredit()
    assert not credit.take()
    for _ in range(3):
        credit.pushed()
    assert [credit.take() for _ in range(7)] == [True] * 6 + [False]


def test_free_receipts_cannot_be_saved_up_without_end() -> None:
    credit = AckCredit()
    for _ in range(MOST_ACKS):
        credit.pushed()
    assert sum(credit.take() for _ in range(3 * MOST_ACKS)) == MOST_ACKS
