"""Messages as entries of the streams of a shard, and what the scripts of a shard answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

import msgspec

VERSION = 1


class AcceptReply(StrEnum):
    """What accept_message.lua answers."""

    OK = "OK"
    DUPLICATE = "DUPLICATE"  # accepted before, not saved yet
    SAVED = "SAVED"  # accepted before, and saved
    DUPLICATE_OTHER = "DUPLICATE_OTHER"  # the same, and this body is another one or the first is not known
    SAVED_OTHER = "SAVED_OTHER"
    MISMATCH = "MISMATCH"  # the same clientMsgId to another receiver
    OVER = "OVER"  # its sender has stored as much as it may in a day
    BUSY = "BUSY"
    STALE_ID = "STALE_ID"  # the shard has seen a higher serverMsgId


class ChatEntry(msgspec.Struct, frozen=True):
    """One message in a stream, where all its fields are texts."""

    entry: str
    id: int
    client_msg_id: str
    sender: int
    to: int
    msg_type: str
    body: str
    sent_ms: int
    created_ms: int
    producer: str
    mode: str
    pushed_to: str = ""
    lang: str = ""

    @classmethod
    def parse(cls, entry: bytes, fields: Sequence[bytes] | None) -> "ChatEntry | Unreadable":
        """Unreadable if a field is missing or malformed, or if a later release wrote it (`newer`)."""
        texts: dict[str, str] = {}
        try:
            pairs = fields or ()
            texts = {k.decode(): v.decode() for k, v in zip(pairs[::2], pairs[1::2], strict=True)}
            if int(texts["v"]) > VERSION:
                return Unreadable(entry.decode(), "written by a later release", texts, newer=True)
            return cls(
                entry.decode(), int(texts["serverMsgId"]), texts["clientMsgId"], int(texts["fromUserId"]),
                int(texts["toUserId"]), texts["msgType"], texts["body"], int(texts["sendTs"]),
                int(texts["createdAtMs"]), texts["producerServerId"], texts["mode"], texts.get("pushedTo", ""),
                texts.get("lang", ""),
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            return Unreadable(entry.decode(), f"it cannot be read: {error!r}", texts)

    def fields(self) -> list[str | int]:
        lang = ["lang", self.lang] if self.lang else []
        return [
            "serverMsgId", self.id, "clientMsgId", self.client_msg_id, "fromUserId", self.sender, "toUserId", self.to,
            "msgType", self.msg_type, "body", self.body, "sendTs", self.sent_ms, "createdAtMs", self.created_ms,
            "producerServerId", self.producer, "mode", self.mode, *lang, "v", VERSION,
        ]  # fmt: skip


def sender_of(fields: Sequence[bytes]) -> int | None:
    """Also of an entry that cannot be read, or that is a dead letter."""
    text = dict(zip(fields[::2], fields[1::2], strict=False)).get(b"fromUserId", b"")
    return int(text) if text.isdigit() else None


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """An entry that is a row. `row`: its serverMsgId. `repeats`: those of the sender that it was notified of.

    `duplicate`: the row is that of an earlier message with another body, which `entry` has now.
    """

    entry: ChatEntry
    row: int
    repeats: int = 0
    duplicate: bool = False

    def parts(self) -> tuple[str | int, ...]:
        return self.entry.entry, self.entry.sender, self.entry.id, self.row, self.repeats


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that is no message of this release."""

    entry: str
    why: str
    fields: dict[str, str]
    newer: bool = False


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Totals, holder and streams of one shard."""

    backlog: int = 0
    accepted: int = 0
    saved: int = 0
    dead: int = 0  # total of messages that will never be a row
    fence: int = 0
    holder: str = ""
    accepted_len: int = 0
    to_save_len: int = 0
    dead_len: int = 0
    dropped: int = 0  # total of dead letters that were too many or too old
    # When the oldest entry was added; 0: there is none. It changes by itself, so it is not compared.
    oldest_ms: int = field(default=0, compare=False)


def digest_of(body: str) -> str:
    """Tells the body of a repeated clientMsgId from that of the first message."""
    return blake2b(body.encode(), digest_size=8).hexdigest()
