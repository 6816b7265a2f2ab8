"""Which chat frames the server accepts.

`check` looks at one message, in the order clients rely on: if several fields are missing, it names the first. How many
frames a connection may send is in `domain/limits/frames.py`.
"""

from typing import Final

from dragoman.protocol.chat import MAX_BODY_UNITS, MAX_CLIENT_MSG_ID, Frame, Reason

VIOLATIONS: Final = frozenset({Reason.BAD_JSON, Reason.MISSING_TYPE, Reason.NOT_IMPLEMENTED})

_LATER: Final = ("GROUP_", "CALL_")


def check(frame: Frame, me: int) -> Reason | None:
    """Why this SINGLE_CHAT of `me` is not taken; None: it is.

    A clientMsgId that is too long counts as none: it could not be kept, and cutting it would make two messages one.
    """
    if not frame.clientMsgId or len(frame.clientMsgId) > MAX_CLIENT_MSG_ID:
        return Reason.MISSING_MSG_ID
    if frame.to is None:
        return Reason.MISSING_TO
    if not frame.body:
        return Reason.MISSING_BODY
    if utf16_units(frame.body) > MAX_BODY_UNITS:
        return Reason.BODY_TOO_LONG
    if frame.to == me:
        return Reason.CANNOT_SEND_TO_SELF
    return None


def utf16_units(text: str) -> int:
    """The length of a text as browsers and JVMs count it: characters beyond the first plane are two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def is_planned(type_: str) -> bool:
    """Whether clients may know this type already: it is `not_implemented`, but no violation."""
    return type_.startswith(_LATER) or type_ == "FRIEND_REQUEST"
