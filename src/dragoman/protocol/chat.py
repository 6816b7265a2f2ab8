"""Messages between chat clients and the server, on /ws: one flat JSON object a frame.

What we write is compact, `type` first, ids (`from`, `to`, `serverMsgId`) as strings, other numbers as numbers, nothing
that is null: existing clients match some of it by text. What we read is tolerant: unknown fields are ignored, null is
the same as nothing, ids come as strings or as numbers.

- A frame that cannot be read (no JSON, no object, text that is no Unicode or holds a NUL, which no database keeps, a
  field of another type) is refused as `bad_json`, one without a type as `missing_type`. Nothing else is raised.
- A malformed id (no positive decimal number of 63 bits: signs, blanks, fractions) reads as none, so that the answer is
  `missing_to` or `missing_server_msg_id` with the clientMsgId the client waits for, and costs it no violation.
- Field names of the structs are those of the wire.

What a frame must hold to be served is decided elsewhere (domain/chat/rules.py).
"""

import re
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

MAX_ID: Final = 2**63 - 1
MAX_BODY_UNITS: Final = 4096  # of UTF-16, as browsers and JVMs count
MAX_CLIENT_MSG_ID: Final = 64
MAX_MSG_TYPE: Final = 32
_LANG: Final = re.compile(r"[A-Za-z0-9_-]{1,35}")
TEXT: Final = "TEXT"


class FrameType(StrEnum):
    AUTH = "AUTH"
    REAUTH = "REAUTH"
    AUTH_OK = "AUTH_OK"
    AUTH_FAIL = "AUTH_FAIL"
    PING = "PING"
    PONG = "PONG"
    SINGLE_CHAT = "SINGLE_CHAT"
    ACK = "ACK"
    ERROR = "ERROR"
    TRANSLATE = "TRANSLATE"
    TRANSLATION = "TRANSLATION"


class AckType(StrEnum):
    ACCEPTED = "accepted"
    SAVED = "saved"
    DELIVERED = "delivered"
    READ = "read"


class Reason(StrEnum):
    """Words of `reason` in ERROR and AUTH_FAIL."""

    MISSING_TOKEN = "missing_token"
    INVALID_TOKEN = "invalid_token"
    SESSION_INVALID = "session_invalid"
    AUTH_TIMEOUT = "auth_timeout"
    UNAUTHORIZED = "unauthorized"
    TOKEN_EXPIRED = "token_expired"
    REAUTH_UID_MISMATCH = "reauth_uid_mismatch"
    KICKED = "kicked"

    BAD_JSON = "bad_json"
    MISSING_TYPE = "missing_type"
    NOT_IMPLEMENTED = "not_implemented"
    TOO_MANY_REQUESTS = "too_many_requests"

    MISSING_MSG_ID = "missing_msg_id"
    MISSING_TO = "missing_to"
    MISSING_BODY = "missing_body"
    BODY_TOO_LONG = "body_too_long"
    CANNOT_SEND_TO_SELF = "cannot_send_to_self"
    DUPLICATE_MSG_ID_MISMATCH = "duplicate_msg_id_mismatch"
    SERVER_BUSY = "server_busy"
    QUOTA_EXCEEDED = "quota_exceeded"
    INTERNAL_ERROR = "internal_error"
    SAVE_FAILED = "save_failed"

    MISSING_ACK_TYPE = "missing_ack_type"
    UNKNOWN_ACK_TYPE = "unknown_ack_type"
    MISSING_SERVER_MSG_ID = "missing_server_msg_id"
    MESSAGE_NOT_FOUND = "message_not_found"
    ACK_NOT_ALLOWED = "ack_not_allowed"
    MISSING_LANG = "missing_lang"


class Untranslated(StrEnum):
    """Words of `reason` in TRANSLATION: why there is none."""

    BUSY = "busy"
    NO_NODE = "no_node"
    FAILED = "failed"
    TOO_LONG = "too_long"


# After an ERROR of these the connection is over; every reason of AUTH_FAIL ends it as well.
CLOSING: Final = frozenset(
    {
        Reason.KICKED,
        Reason.SESSION_INVALID,
        Reason.TOKEN_EXPIRED,
        Reason.UNAUTHORIZED,
        Reason.AUTH_TIMEOUT,
        Reason.REAUTH_UID_MISMATCH,
        Reason.TOO_MANY_REQUESTS,
    }
)
# The message was not taken, and sending it again with the same clientMsgId is safe.
RETRY: Final = frozenset({Reason.SERVER_BUSY, Reason.INTERNAL_ERROR})

_RECEIPTS: Final = {
    "delivered": AckType.DELIVERED,
    "received": AckType.DELIVERED,
    "ack_receive": AckType.DELIVERED,
    "read": AckType.READ,
    "ack_read": AckType.READ,
}


def receipt_type(word: str) -> AckType | None:
    """What a receiver's `ackType` means, in any of its spellings; None for what a receiver cannot say."""
    return _RECEIPTS.get(word) or _RECEIPTS.get(word.lower())


# ---------------------------------------------------------------- reading


class Refused(Exception):
    """A frame that cannot be read: the reason for the client, and a sentence for the log that quotes no text."""

    reason = Reason.BAD_JSON

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadJson(Refused):
    pass


class BadField(BadJson):
    """JSON, but a field of it is of another type."""


class MissingType(Refused):
    reason = Reason.MISSING_TYPE


class Frame(msgspec.Struct, gc=False):
    """A frame of a client; every field but `type` may be missing."""

    type: str
    clientMsgId: str | None = None
    serverMsgId: int | None = None
    from_: int | None = None
    to: int | None = None
    token: str | None = None
    ackType: str | None = None
    msgType: str | None = None
    body: str | None = None
    ts: int | None = None
    lang: str | None = None  # '' for what is no language
    translate: str | None = None


class Translation(msgspec.Struct, frozen=True, gc=False):
    lang: str
    body: str


class ServerFrame(Frame, gc=False):
    """A frame of the server."""

    translation: Translation | None = None

    msgSeq: int | None = None
    reason: str | None = None
    duplicate: bool | None = None


_Id = int | float | str | None


class _Sent(msgspec.Struct, gc=False, rename={"from_": "from"}):
    """A frame as it stands in the JSON."""

    type: str | None = None
    clientMsgId: str | None = None
    serverMsgId: _Id = None
    from_: _Id = None
    to: _Id = None
    token: str | None = None
    ackType: str | None = None
    msgType: str | None = None
    body: str | None = None
    ts: object = None  # a client may write anything here: what is no number reads as none
    lang: object = None
    translate: object = None


class _SentByServer(_Sent, gc=False):
    translation: Translation | None = None
    msgSeq: _Id = None
    reason: str | None = None
    duplicate: bool | None = None


_S = TypeVar("_S", bound=_Sent)

_client_frames = msgspec.json.Decoder(_Sent)
_server_frames = msgspec.json.Decoder(_SentByServer)


def decode_frame(data: bytes) -> Frame:
    """What a client sent; raises Refused."""
    sent, type_ = _read(_client_frames, data)
    if sent.msgType is not None and len(sent.msgType) > MAX_MSG_TYPE:
        raise BadField(f"Field `msgType`: more than {MAX_MSG_TYPE} characters.")
    return Frame(
        type_,
        sent.clientMsgId,
        _id(sent.serverMsgId),
        _id(sent.from_),
        _id(sent.to),
        sent.token,
        sent.ackType,
        sent.msgType,
        sent.body,
        _id(sent.ts),
        _lang(sent.lang),
        _lang(sent.translate),
    )


def decode_server_frame(data: bytes) -> ServerFrame:
    """What a server sent; raises Refused."""
    sent, type_ = _read(_server_frames, data)
    return ServerFrame(
        type_,
        sent.clientMsgId,
        _id(sent.serverMsgId),
        _id(sent.from_),
        _id(sent.to),
        sent.token,
        sent.ackType,
        sent.msgType,
        sent.body,
        _id(sent.ts),
        _lang(sent.lang),
        _lang(sent.translate),
        sent.translation,
        _id(sent.msgSeq),
        sent.reason,
        sent.duplicate,
    )


def _read(decoder: msgspec.json.Decoder[_S], data: bytes) -> tuple[_S, str]:
    try:
        if not data.isascii():
            data.decode()  # the decoder does not check the fields that it skips
        sent = decoder.decode(data)
    except RecursionError:
        raise BadJson("The frame is nested too deeply.") from None
    except UnicodeError:
        raise BadJson("The frame is not valid UTF-8.") from None
    except msgspec.ValidationError as error:
        raise _mistyped(error) from None
    except (ValueError, OverflowError) as error:
        raise BadJson(f"The frame is not JSON: {error}"[:200]) from None
    if b"\\u0000" in data and (field := _with_nul(sent)):
        raise BadField(f"Field `{field}`: it holds a NUL character.")
    if not sent.type:
        raise MissingType("The frame has no type.")
    return sent, sent.type


def _mistyped(error: msgspec.ValidationError) -> BadJson:
    what, _, field = str(error).partition(" - at `$")
    field = field.strip("`.")
    return BadField(f"Field `{field}`: {what}."[:200]) if field else BadJson(f"The frame is not a JSON object: {what}.")


def _with_nul(sent: _Sent) -> str | None:
    """The field whose text holds one, as the wire calls it."""
    values: dict[str, Any] = msgspec.structs.asdict(sent)
    return next((n.rstrip("_") for n, value in values.items() if type(value) is str and "\0" in value), None)


def _lang(value: object) -> str | None:
    if value is None:
        return None
    return value if type(value) is str and is_lang(value) else ""


def is_lang(text: str) -> bool:
    return _LANG.fullmatch(text) is not None


def _id(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is str:
        # 19 digits hold 63 bits; isdecimal alone takes the digits of every script.
        if not (len(value) <= 19 and value.isascii() and value.isdecimal()):
            return None
        value = int(value)
    return value if type(value) is int and 0 < value <= MAX_ID else None


# ---------------------------------------------------------------- writing, as the server
#
# Put together as bytes: several are written for each message, and everything but ids and numbers is a constant or
# goes through the JSON encoder.

_json = msgspec.json.Encoder().encode
_DUPLICATE: Final = b',"duplicate":true'


def auth_ok(uid: int, ts: int, translate: str | None = None) -> bytes:
    """`translate`: the language into which messages to this connection are translated."""
    into = b',"translate":%b' % _json(translate) if translate else b""
    return b'{"type":"AUTH_OK","from":"%d"%b,"ts":%d}' % (uid, into, ts)


def auth_fail(reason: Reason, ts: int) -> bytes:
    return b'{"type":"AUTH_FAIL","reason":"%b","ts":%d}' % (reason.encode(), ts)


def error(reason: Reason, ts: int, client_msg_id: str | None = None, server_msg_id: int | None = None) -> bytes:
    about = b""
    if client_msg_id is not None:
        about = b',"clientMsgId":%b' % _json(client_msg_id)
    if server_msg_id is not None:
        about += b',"serverMsgId":"%d"' % server_msg_id
    return b'{"type":"ERROR","reason":"%b"%b,"ts":%d}' % (reason.encode(), about, ts)


def ack(
    ack_type: AckType,
    sender: int,
    client_msg_id: str,
    server_msg_id: int,
    ts: int,
    body: str | None = None,
    *,
    duplicate: bool = False,
) -> bytes:
    """To the sender of a message: how far it is. `from` is the sender's own id.

    `duplicate`: it repeated a clientMsgId with another body; `body` is that of the first message, which stands.
    """
    text = b"" if body is None else b',"body":%b' % _json(body)
    if duplicate:
        text += _DUPLICATE
    return b'{"type":"ACK","ackType":"%b","from":"%d","clientMsgId":%b,"serverMsgId":"%d"%b,"ts":%d}' % (
        ack_type.encode(),
        sender,
        _json(client_msg_id),
        server_msg_id,
        text,
        ts,
    )


def stamped(frame: bytes, ts: int, *, duplicate: bool = False) -> bytes:
    """A frame of ours, whose last field is `ts`, with another one; marked as `duplicate` on request."""
    before = frame[: frame.rindex(b',"ts":')]
    mark = _DUPLICATE if duplicate and not before.endswith(_DUPLICATE) else b""
    return before + mark + b',"ts":%d}' % ts


def relay_ack(ack_type: AckType, acker: int, sender: int, server_msg_id: int, ts: int) -> bytes:
    """To the sender of a message: the receipt of its receiver."""
    return b'{"type":"ACK","ackType":"%b","from":"%d","to":"%d","serverMsgId":"%d","ts":%d}' % (
        ack_type.encode(),
        acker,
        sender,
        server_msg_id,
        ts,
    )


def chat(
    from_: int,
    to: int,
    client_msg_id: str,
    server_msg_id: int,
    msg_type: str,
    body: str,
    ts: int,
    msg_seq: int | None = None,
    lang: str = "",
    translation: Translation | None = None,
) -> bytes:
    """To the receiver: a message. `lang`: its language, if its sender named it."""
    more = b',"lang":%b' % _json(lang) if lang else b""
    if translation is not None:
        more += b',"translation":%b' % _json(translation)
    return (
        b'{"type":"SINGLE_CHAT","from":"%d","to":"%d","clientMsgId":%b,"serverMsgId":"%d"%b,"msgType":%b,"body":%b%b,'
        b'"ts":%d}'
        % (
            from_,
            to,
            _json(client_msg_id),
            server_msg_id,
            b"" if msg_seq is None else b',"msgSeq":%d' % msg_seq,
            b'"TEXT"' if msg_type == TEXT else _json(msg_type),
            _json(body),
            more,
            ts,
        )
    )


def translation(
    server_msg_id: int, lang: str, ts: int, *, body: str | None = None, reason: Untranslated | None = None
) -> bytes:
    """To a user that asked for it: the translation of a message, or why there is none."""
    what, text = (b"body", body) if reason is None else (b"reason", reason)
    return b'{"type":"TRANSLATION","serverMsgId":"%d","lang":%b,"%b":%b,"ts":%d}' % (
        server_msg_id,
        _json(lang),
        what,
        _json(text),
        ts,
    )


def ping(ts: int | None = None) -> bytes:
    return b'{"type":"PING"}' if ts is None else b'{"type":"PING","ts":%d}' % ts


def pong(ts: int | None = None) -> bytes:
    return b'{"type":"PONG"}' if ts is None else b'{"type":"PONG","ts":%d}' % ts


# ---------------------------------------------------------------- writing, as a client (and ping, pong)


def auth(token: str, translate: str | None = None) -> bytes:
    into = b',"translate":%b' % _json(translate) if translate else b""
    return b'{"type":"AUTH","token":%b%b}' % (_json(token), into)


def reauth(token: str) -> bytes:
    return b'{"type":"REAUTH","token":%b}' % _json(token)


def translate(server_msg_id: int, lang: str) -> bytes:
    return b'{"type":"TRANSLATE","serverMsgId":"%d","lang":%b}' % (server_msg_id, _json(lang))


def say(client_msg_id: str, to: int, body: str, msg_type: str = TEXT, lang: str = "") -> bytes:
    """A message, to be sent again unchanged until it is acknowledged."""
    return b'{"type":"SINGLE_CHAT","clientMsgId":%b,"to":"%d","msgType":%b,"body":%b%b}' % (
        _json(client_msg_id),
        to,
        _json(msg_type),
        _json(body),
        b',"lang":%b' % _json(lang) if lang else b"",
    )


def receipt(ack_type: AckType, server_msg_id: int, to: int) -> bytes:
    """Delivered or read; `to` is the sender of the message."""
    return b'{"type":"ACK","ackType":"%b","serverMsgId":"%d","to":"%d"}' % (ack_type.encode(), server_msg_id, to)
