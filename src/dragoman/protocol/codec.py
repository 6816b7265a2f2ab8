"""Decodes bytes into messages and encodes messages into bytes.

Whatever the peer sent, decode_* raise only ProtocolError(INVALID_MESSAGE), with a sentence that names the field. They
take `bytes` or `str`, never a view of a buffer that is used again: Raw fields point into it. msgspec does not check a
Raw, so this module checks its UTF-8, its first character and its length.
"""

import re
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw

from dragoman.protocol.codes import FINAL_CODES, ErrorCode, ProtocolError
from dragoman.protocol.fields import ABSENT, Message, Name, Part, Sentence
from dragoman.protocol.node import JobError, NodeMessage, ToNode
from dragoman.protocol.session import ClientMessage, ServerMessage

T = TypeVar("T")

_AT_FIELD = " - at `$"
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*(?:` or `[^`]*)?)`$")
_SENTENCE_LENGTH, _QUOTED_LENGTH = 200, 120
_QUOTE, _BRACE, _BRACKET, _NULL = b'"{[n'


class _RawField(NamedTuple):
    name: str
    opens: int  # the byte it must open with; 0: any
    max_bytes: int  # 0: any number
    optional: bool
    part: str = ""  # the field whose object holds it; empty: the message itself

    @property
    def path(self) -> str:
        return f"{self.part}.{self.name}" if self.part else self.name


def _raw_fields(message_type: type[msgspec.Struct]) -> Iterator[_RawField]:
    hints = get_type_hints(message_type, include_extras=True)
    for field in msgspec.structs.fields(message_type):
        hint = hints[field.name]
        for part in get_args(hint):
            if isinstance(part, type) and issubclass(part, Part):
                yield from (inner._replace(part=field.name) for inner in _raw_fields(part))
        if get_origin(hint) is not None and get_args(hint)[0] is Raw:
            bounds = get_args(hint)[1].extra
            opens = ord(bounds["opens"]) if bounds["opens"] else 0
            yield _RawField(field.name, opens, bounds["max_bytes"], not field.required)


class _Decoder(Generic[T]):
    """Decodes the messages of one direction of one endpoint."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(union)
        self._raw_fields = {kind: tuple(_raw_fields(kind)) for kind in get_args(union)}

    def __call__(self, data: bytes | str) -> T:
        try:
            if isinstance(data, str):
                data = data.encode()
            elif not data.isascii():
                data.decode()
            message = self._decoder.decode(data)
        except RecursionError:
            raise _invalid("The message is nested too deeply.") from None
        except UnicodeError:
            raise _invalid("The message is not valid UTF-8.") from None
        except (ValueError, OverflowError) as error:
            raise _invalid(sentence_of(error)) from None
        for field in self._raw_fields[type(message)]:
            holder = getattr(message, field.part) if field.part else message
            if holder is not None:
                _check_raw(holder, field)
        return message


def _check_raw(message: object, field: _RawField) -> None:
    raw = getattr(message, field.name)
    if raw is ABSENT:
        return
    first = memoryview(raw)[0]
    if first == _NULL and field.optional:
        setattr(message, field.name, ABSENT)
    elif field.opens and first != field.opens:
        wanted = {_QUOTE: "str", _BRACE: "object", _BRACKET: "array"}[field.opens]
        raise _invalid(f"Field `{field.path}`: expected `{wanted}`.")
    elif field.max_bytes and len(raw) > field.max_bytes:
        raise _invalid(f"Field `{field.path}`: expected at most {field.max_bytes} bytes of JSON.")


def _invalid(sentence: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_MESSAGE, sentence)


def sentence_of(error: Exception) -> str:
    """Turn the text of msgspec into a sentence for the author of the message. It is cut: it quotes an unknown type."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"The message is not valid JSON: {text}."[:_SENTENCE_LENGTH]
    what, _, field = text.rpartition(_AT_FIELD) if text.endswith("`") and _AT_FIELD in text else (text, "", "")
    what, field = what[:_QUOTED_LENGTH], field.rstrip("`").lstrip(".")
    if field == "type":
        return f"Unknown message type: {what[0].lower()}{what[1:]}."
    if missing := _MISSING.match(what):
        path = f"{field}.{missing['name']}" if field else missing["name"]
        return f"Required field `{path}` is missing."[:_SENTENCE_LENGTH]
    if not field:
        return f"The message is not a JSON object with a `type`: {what}."[:_SENTENCE_LENGTH]
    return f"Field `{field}`: {what[0].lower()}{what[1:]}."[:_SENTENCE_LENGTH]


decode_client: _Decoder[ClientMessage] = _Decoder(ClientMessage)
decode_server: _Decoder[ServerMessage] = _Decoder(ServerMessage)
decode_node: _Decoder[NodeMessage] = _Decoder(NodeMessage)
decode_to_node: _Decoder[ToNode] = _Decoder(ToNode)

_encoder = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """Compact JSON; optional fields that are not set are left out."""
    return _encoder.encode(message)


def raw(value: Any) -> Raw:
    """A Python value as the Raw of a message field."""
    return Raw(_encoder.encode(value))


# ---------------------------------------------------------------- single values of raw fields


class _Extra(msgspec.Struct):
    reason: Any = None


class ModelDetails(msgspec.Struct, frozen=True):
    """`error.details` of MODEL_NOT_AVAILABLE."""

    service_id: Name
    service_version: Name | None = None
    reason: Sentence | None = None


class _FailureDetails(msgspec.Struct):
    final: Any = None


_extra_decoder = msgspec.json.Decoder(_Extra)
_failure_details_decoder = msgspec.json.Decoder(_FailureDetails)
_model_details_decoder = msgspec.json.Decoder(ModelDetails)


def reason_of(extra: Raw) -> str | None:
    """`extra.reason` of a job_result, without building the rest of it."""
    if not extra:
        return None
    try:
        reason = _extra_decoder.decode(extra).reason
    except (ValueError, RecursionError):
        return None
    return reason if isinstance(reason, str) else None


def unavailable_model(error: JobError) -> ModelDetails | None:
    """The missing model of a MODEL_NOT_AVAILABLE; None: the node does not name it."""
    if not error.details:
        return None
    try:
        return _model_details_decoder.decode(error.details)
    except (ValueError, RecursionError):
        return None


def is_final(error: JobError) -> bool:
    """Whether any node would fail: by the code, or because the node sets `details.final`."""
    if error.code in FINAL_CODES:
        return True
    try:
        return bool(error.details) and _failure_details_decoder.decode(error.details).final is True
    except (ValueError, RecursionError):
        return False
