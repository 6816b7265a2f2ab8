"""The building blocks of message types: base classes and field types.

A field that only passes through is a `Raw`: the bytes of its JSON value, never parsed. An optional Raw that is not
there is the object ABSENT, found by identity when encoding: a Raw made from b"" would encode to broken JSON.
A Raw points into the whole message it came with; `keep(raw)` makes a copy that may outlive the message.

Every text, list and Raw that a client or a node sends is bounded here, so that no peer can fill the memory of the
server; a test checks this. Text for a log line or a record is cut further where it is written.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw

ABSENT: Final = Raw()


def keep(raw: Raw) -> Raw:
    """A copy that does not keep the rest of the message in memory."""
    return raw.copy() if raw else ABSENT


class Message(msgspec.Struct, tag_field="type", omit_defaults=True, gc=False):
    """One JSON object with a `type`."""


class Numbered(Message, omit_defaults=True, gc=False, kw_only=True):
    """A numbered server message: `seq` is set only in sessions that can be resumed."""

    seq: "Count | None" = None


class Part(msgspec.Struct, omit_defaults=True, gc=False):
    """An object inside a message."""


# 2**53: beyond it a JavaScript peer cannot tell two integers apart.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Index = Annotated[int, Meta(ge=0, le=2**53)]
UnixMs = Annotated[int, Meta(ge=0, le=2**53)]
SampleRate = Annotated[int, Meta(ge=8000, le=192_000)]

Id = Annotated[str, Meta(max_length=256)]
Lang = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,35}\Z")]
OptionalLang = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,35}\Z")] | None
ClaimedNodeId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]

Word = Annotated[str, Meta(max_length=64)]  # one of a few words: a platform, a mode, a code
Name = Annotated[str, Meta(max_length=200)]  # of a model, a service, a person
Sentence = Annotated[str, Meta(max_length=4096)]  # a reason
Text = Annotated[str, Meta(max_length=65_536)]  # speech as text; the message of a failure, which may be a traceback
Token = Annotated[str, Meta(max_length=4096)]

MAX_ENTRIES = 256  # of a list
Langs = Annotated[list[Lang], Meta(max_length=MAX_ENTRIES)]
LangPair = tuple[Lang, Lang]
MAX_PAIRS = 4096
Names = Annotated[list[Name], Meta(max_length=MAX_ENTRIES)]

# `opens` is the first byte the value must have, `max_bytes` its length as JSON; the codec checks both, since Raw itself
# takes any JSON. Audio is bounded by the length of a message.
Base64 = Annotated[Raw, Meta(extra={"opens": '"', "max_bytes": 0})]
JsonObject = Annotated[Raw, Meta(extra={"opens": "{", "max_bytes": 65_536})]
SmallJsonObject = Annotated[Raw, Meta(extra={"opens": "{", "max_bytes": 4096})]
JsonArray = Annotated[Raw, Meta(extra={"opens": "[", "max_bytes": 65_536})]
JsonAny = Annotated[Raw, Meta(extra={"opens": "", "max_bytes": 65_536})]
