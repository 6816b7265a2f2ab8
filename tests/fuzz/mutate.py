"""Inputs that are almost right: a real message with a few things wrong, each made from a random generator alone.

Structure first (fields dropped, doubled, retyped, swapped, nested), then, now and then, bytes. A `Case` says which
field was touched when nothing else was and the result is still JSON: then a refusal has to name it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

MARK: Final = "c4n4ry00"  # in every text nobody may see again; valid base64 as it is
SECRET: Final = frozenset(
    {"accessToken", "audio", "body", "context_text", "password", "payload", "refreshToken", "resume_token", "text"}
    | {"text_asr", "text_translated", "token", "tts_audio"}
)
ODD: Final = (
    "",
    "\x00",
    "a\x1b[31m\r\n\t\x7f\u2028\ufeff",
    "\U0001f600\U0010ffff",
    "\u0661\u0662\u0663",
    "\uff11",
    "${7*7}<b>'\"\\",
    "../../etc",
    "{node}",
    "x" * 300,
    "-1",
    "1e400",
    "null",
    "A" * 70_000,
    "9" * 5000,
    "%00%ff",
)


@dataclass(frozen=True, slots=True)
class Case:
    data: bytes
    field: str = ""


@dataclass(frozen=True, slots=True)
class Literal:
    """Written as it is, JSON or not."""

    text: str
    sound: bool = True  # JSON, and a value any parser takes


class Object(list[tuple[str, Any]]):
    """A JSON object as it was written: names may come twice."""


NUMBERS: Final = tuple(
    Literal(text)
    for text in (
        "-1", "0", "1.5", "-0", "-0.0", "1e3", "1E+2", "4294967296", "9007199254740992", "9007199254740993",
        "9223372036854775807", "9223372036854775808", "18446744073709551616", "1e308", "1e-400", "9" * 400,
    )
)  # fmt: skip
BROKEN: Final = tuple(
    Literal(text, sound=False)
    for text in (
        "NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "tru", "'x'", '"\\ud800"', '"\\udc00x"', '"\\q"',
        '"\\u12"', "1e400", "-1e999", "9" * 5000, "[" * 3000, '{"a":' * 3000, "[" * 900 + "]" * 900, "", '"', "\x00",
    )
)  # fmt: skip
# Parsed anew each time: what is put into a document may be changed there again.
VALUES: Final = b'null true false "" "x" 0 7 -7 [] [[]] [null] ["x"] {} {"a":1}'.split()


def parse(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=Object)


def write(value: Any, escape: bool = True) -> str:
    match value:
        case Literal():
            return value.text
        case Object():
            return "{" + ",".join(f"{json.dumps(name)}:{write(inner, escape)}" for name, inner in value) + "}"
        case list():
            return "[" + ",".join(write(inner, escape) for inner in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=escape)


def marked(value: Any) -> Any:
    """The same, with the mark in what must never be quoted."""
    if isinstance(value, dict):
        return {name: MARK if name in SECRET and isinstance(v, str) else marked(v) for name, v in value.items()}
    return [marked(inner) for inner in value] if isinstance(value, list) else value


def compact(value: object) -> bytes:
    return json.dumps(marked(value), ensure_ascii=False, separators=(",", ":")).encode()


# ---------------------------------------------------------------- structure


class JsonMutator:
    """Cases from JSON documents; `plain` share of them with a single field touched, for the naming of fields."""

    def __init__(self, seeds: Sequence[bytes], kind: str = "type") -> None:
        self._seeds, self._kind = tuple(seeds), kind
        assert self._seeds

    def __call__(self, rng: Random) -> Case:
        document = parse(rng.choice(self._seeds))
        if not isinstance(document, Object) or rng.random() < 0.1:
            return Case(bytes_mutated(rng, write(document).encode()))
        if rng.random() < 0.5:
            field, sound = self._touch(rng, document)
            text = write(document, rng.random() < 0.5).encode(errors="surrogatepass")
            return Case(text, field if sound else "")
        for _ in range(rng.randint(2, 8)):
            self._touch(rng, document)
        data = write(document, rng.random() < 0.5).encode(errors="surrogatepass")
        return Case(bytes_mutated(rng, data) if rng.random() < 0.3 else data)

    def _touch(self, rng: Random, document: Object) -> tuple[str, bool]:
        """Change one field, or something within it; its name, and whether the document is still sound JSON."""
        change = rng.choice(_CHANGES)
        if not document:
            document.append(("x_new", 1))
        at = rng.randrange(len(document))
        name, value = document[at]
        if name == self._kind:
            change = rng.choice((_drop, _retype, _text))  # it is quoted: nobody's words may get there
        inside: Object | list[Any] = document
        while isinstance(value, Object | list) and value and rng.random() < 0.7:
            inside, at = value, rng.randrange(len(value))
            value = value[at][1] if isinstance(value, Object) else value[at]
        return name, change(rng, inside, at, self._another(rng))

    def _another(self, rng: Random) -> Any:
        found = parse(rng.choice(self._seeds))
        return rng.choice(found)[1] if isinstance(found, Object) and found else 1


Change = Callable[[Random, Any, int, Any], bool]


def _put(inside: Any, at: int, value: Any) -> bool:
    inside[at] = (inside[at][0], value) if isinstance(inside, Object) else value
    return not (isinstance(value, Literal) and not value.sound)


def _drop(rng: Random, inside: Any, at: int, other: Any) -> bool:
    del inside[at]
    return True


def _double(rng: Random, inside: Any, at: int, other: Any) -> bool:
    inside.insert(rng.randint(0, len(inside)), inside[at])
    return True


def _retype(rng: Random, inside: Any, at: int, other: Any) -> bool:
    return _put(inside, at, parse(rng.choice(VALUES)))


def _number(rng: Random, inside: Any, at: int, other: Any) -> bool:
    return _put(inside, at, rng.choice(NUMBERS))


def _break(rng: Random, inside: Any, at: int, other: Any) -> bool:
    return _put(inside, at, rng.choice(BROKEN))


def _text(rng: Random, inside: Any, at: int, other: Any) -> bool:
    return _put(inside, at, rng.choice(ODD))


def _nest(rng: Random, inside: Any, at: int, other: Any) -> bool:
    deep = rng.choice((2, 50, 2000))
    value = inside[at][1] if isinstance(inside, Object) else inside[at]
    _put(inside, at, Literal("[" * deep + write(value) + "]" * deep))
    return deep < 2000


def _swap(rng: Random, inside: Any, at: int, other: Any) -> bool:
    return _put(inside, at, other)


def _unknown(rng: Random, inside: Any, at: int, other: Any) -> bool:
    inside.insert(at, (rng.choice(ODD[:9]), other) if isinstance(inside, Object) else other)
    return False  # the field is not the one that was there


def _rename(rng: Random, inside: Any, at: int, other: Any) -> bool:
    if isinstance(inside, Object):
        inside[at] = (inside[at][0] + rng.choice(("_", "\x00", "s")), inside[at][1])
    return True


_CHANGES: Final[tuple[Change, ...]] = (
    _drop, _double, _retype, _retype, _number, _break, _text, _text, _nest, _swap, _unknown, _rename,
)  # fmt: skip


# ---------------------------------------------------------------- bytes


def bytes_mutated(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0:
                del changed[at:]
            case 1 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 64)))
            case 3:
                changed[at:at] = rng.choice(
                    (b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\x80", b"\xef\xbb\xbf", b"\0")
                )
            case 4:
                del changed[at : at + rng.randrange(1, 9)]
            case 5:
                piece = changed[at : at + rng.randrange(1, 65)]
                changed[at:at] = piece * rng.choice((1, 2, 100))
            case _:
                changed[at:at] = rng.choice((b" ", b"\n", b"\t \r", b"\\", b'"', b"{", b"]", b",", b":", b"\\u0000"))
    return bytes(changed)


class BytesMutator:
    def __init__(self, seeds: Sequence[bytes]) -> None:
        self._seeds = tuple(seeds)

    def __call__(self, rng: Random) -> Case:
        if rng.random() < 0.1:
            return Case(rng.randbytes(rng.choice((0, 1, 2, 3, 9, 10, 11, 12, 13, 300))))
        return Case(bytes_mutated(rng, rng.choice(self._seeds)))
