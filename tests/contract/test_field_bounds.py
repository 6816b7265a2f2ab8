"""Every text, list and piece of JSON that a client or a node may send has a bound."""

import json
import tracemalloc
from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from msgspec import inspect

from contract.test_messages import DECODERS, UNIONS, sample_of
from dragoman.protocol.codec import decode_client
from dragoman.protocol.codes import ProtocolError
from dragoman.protocol.fields import Message, keep
from dragoman.protocol.session import SessionInit
from support.tables import for_each

SIDES = ("client", "node")
AUDIO = {"payload", "audio", "tts_audio"}  # bounded by the length of a message
SESSION_BYTES = 32 * 1024  # what a session keeps of its session_init, at most: docs/guides/secure.md names it


class Field(NamedTuple):
    side: str
    kind: type[Message]
    path: tuple[str | int, ...]
    type: inspect.Type
    extra: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.side} {self.kind.__name__} {'.'.join(map(str, self.path))}"


def fields(side: str, kind: type[Message], struct: inspect.StructType, path: tuple[str | int, ...]) -> Iterator[Field]:
    for field in struct.fields:
        for type_, extra in leaves(field.type, {}):
            yield from nested(side, kind, type_, extra, (*path, field.encode_name))


def nested(
    side: str, kind: type[Message], type_: inspect.Type, extra: dict[str, Any], path: tuple[str | int, ...]
) -> Iterator[Field]:
    if isinstance(type_, inspect.StructType):
        yield from fields(side, kind, type_, path)
        return
    yield Field(side, kind, path, type_, extra)
    if isinstance(type_, inspect.ListType | inspect.TupleType):
        items = type_.item_types if isinstance(type_, inspect.TupleType) else (type_.item_type,)
        for at, each in enumerate(items):
            for item, said in leaves(each, {}):
                yield from nested(side, kind, item, said, (*path, at))


def leaves(type_: inspect.Type, extra: dict[str, Any]) -> Iterator[tuple[inspect.Type, dict[str, Any]]]:
    if isinstance(type_, inspect.Metadata):
        yield from leaves(type_.type, type_.extra or {})
    elif isinstance(type_, inspect.UnionType):
        for one in type_.types:
            yield from leaves(one, extra)
    else:
        yield type_, extra


def every_field() -> Iterator[Field]:
    for side in SIDES:
        for kind in get_args(UNIONS[side]):
            struct = inspect.type_info(kind)
            assert isinstance(struct, inspect.StructType)
            yield from fields(side, kind, struct, ())


def limit(field: Field) -> int | None:
    """Characters, entries or bytes; None where the type alone bounds it, or nothing does."""
    match field.type:
        case inspect.StrType(max_length=int(most)):
            return most
        case inspect.StrType(pattern=str(pattern)):
            return int(pattern.rpartition(",")[2].partition("}")[0])
        case inspect.ListType(max_length=int(most)):
            return most
        case inspect.RawType():
            return int(field.extra["max_bytes"]) or None
    return None


SIZED = [
    field
    for field in every_field()
    if isinstance(field.type, inspect.StrType | inspect.ListType | inspect.RawType) and field.path[-1] not in AUDIO
]


# The least that an object on the way to a field must hold.
LEAST: dict[str, Any] = {
    "installed_models": {"model_id": "m"},
    "installed_services": {"service_id": "s", "type": "asr"},
    "capability_by_type": {"type": "asr", "ready": True},
    "gpus": {"name": "g"},
    "error": {"code": "c", "message": "m"},
    "language_capabilities": {},
    "text_pairs": ["en", "es"],
}


def message_with(field: Field, size: int) -> bytes:
    """The sample of this type, with one field of that size."""
    message = json.loads(json.dumps(sample_of(field.side, field.kind)))
    at: Any = message
    for step, after in zip(field.path, field.path[1:], strict=False):
        if isinstance(step, str) and not at.get(step):
            at[step] = [copy(LEAST.get(step, {}))] if isinstance(after, int) else copy(LEAST[step])
        at = at[step]
    at[field.path[-1]] = value_of(field, size)
    return json.dumps(message, separators=(",", ":")).encode()


def value_of(field: Field, size: int) -> Any:
    match field.type:
        case inspect.StrType():
            return "x" * size
        case inspect.ListType():
            return [LEAST.get(str(field.path[-1]), "en")] * size
    opens = field.extra["opens"]
    inner = "x" * (size - len({"{": '{"":1}', "[": '[""]', "": '""'}[opens]))
    return {"{": {inner: 1}, "[": [inner], "": inner}[opens]


@for_each(((field,) for field in SIZED), name=lambda row: row[0])
def test_field_is_accepted_at_its_bound_and_refused_above_it(field: Field) -> None:
    most = limit(field)
    assert most, f"{field} has no bound"
    decode = DECODERS[field.side]
    decode(message_with(field, most))
    name = [step for step in field.path if isinstance(step, str)][-1]
    with pytest.raises(ProtocolError, match=name):
        decode(message_with(field, most + 1))


def test_a_session_keeps_little_of_the_longest_session_init() -> None:
    longest: dict[str, Any] = dict(sample_of("client", SessionInit))
    for field in SIZED:
        if field.kind is SessionInit and len(field.path) == 1 and field.path[0] != "auto_langs":
            most = limit(field)
            assert most
            longest[str(field.path[0])] = value_of(field, most)
    longest |= {"auto_langs": ["x" * 35] * 256, "unknown": "x" * 500_000}
    data = json.dumps(longest, separators=(",", ":")).encode()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [_kept(bytes(data)) for _ in range(20)]
        each = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    finally:
        tracemalloc.stop()
    assert each < SESSION_BYTES


def _kept(data: bytes) -> SessionInit:
    """As the endpoint hands it to the session."""
    init = decode_client(data)
    assert isinstance(init, SessionInit)
    return msgspec.structs.replace(init, token=None, features=keep(init.features))
