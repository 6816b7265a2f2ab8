import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.rules import VIOLATIONS, check, comes_later, utf16_units
from dragoman.protocol.chat import Frame, Reason

ME = 7


def message(
    client_msg_id: str | None = "c-1", to: int | None = 8, body: str | None = "hello", msg_type: str | None = None
) -> Frame:
    return Frame("SINGLE_CHAT", clientMsgId=client_msg_id, to=to, body=body, msgType=msg_type)


def test_complete_message_is_accepted() -> None:
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
def test_check_names_the_first_problem_of_several(frame: Frame, reason: Reason) -> None:
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
def test_other_unknown_types_are_violations(type_: str) -> None:
    assert not comes_later(type_)


def test_violations_are_what_clients_know_them_as() -> None:
    assert {"bad_json", "missing_type", "not_implemented"} == VIOLATIONS
