"""Chat messages that could not be saved, as dead letters of their shard: `chat-0`, `chat-1`, …

A replay is accepted anew under a new id, because the shard may have drawn higher ids since. Letters are shown without
the text of the message.
"""

import asyncio
import builtins
from collections.abc import Callable
from dataclasses import replace

import msgspec

from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.switches import Path, Switches
from dragoman.store.chat.entries import AcceptReply, ChatEntry, Unreadable, digest_of, sender_of
from dragoman.store.chat.shards import Shards
from dragoman.store.dead_letters import CannotReplay, DeadLetter
from dragoman.store.inbox import PushReply

PREFIX = "chat-"
KIND = "chat_message"
MAX_SEARCHED = 1000


class ChatDeadLetters:
    def __init__(self, shards: Shards, ids: IdMaker, instance: str, switches: Callable[[], Switches]) -> None:
        self._shards, self._ids, self._instance, self._switches = shards, ids, instance, switches
        self._redis = shards.redis

    def holds(self, name: str) -> bool:
        number = name.removeprefix(PREFIX)
        return name.startswith(PREFIX) and number.isdecimal() and int(number) < self._shards.count

    async def instances(self) -> list[str]:
        return list(await self.counts())

    async def counts(self) -> dict[str, int]:
        shards = range(self._shards.count)
        found = await asyncio.gather(*(self._redis.call("XLEN", self._shards.dead(shard)) for shard in shards))
        return {f"{PREFIX}{shard}": int(count) for shard, count in zip(shards, found, strict=True) if count}

    async def list(self, instance: str, count: int = 100, after: str = "") -> list[DeadLetter]:
        start = f"({after}" if after else "-"
        rows = await self._redis.call("XRANGE", self._stream(instance), start, "+", "COUNT", count)
        return [replace(_letter(instance, id, fields), data=b"") for id, fields in rows]

    async def get(self, instance: str, id: str) -> DeadLetter | None:
        rows = await self._redis.call("XRANGE", self._stream(instance), id, id)
        return _letter(instance, *rows[0]) if rows else None

    async def find(self, sender: int, client_msg_id: str) -> tuple[DeadLetter, int] | None:
        """The newest letter of this message among the last MAX_SEARCHED of its shard, and the serverMsgId."""
        name = f"{PREFIX}{self._shards.shard_of(sender)}"
        rows = await self._redis.call("XREVRANGE", self._stream(name), "+", "-", "COUNT", MAX_SEARCHED)
        for id, fields in rows:
            entry = ChatEntry.parse(id, fields)
            if isinstance(entry, ChatEntry) and (entry.sender, entry.client_msg_id) == (sender, client_msg_id):
                return _letter(name, id, fields), entry.id
        return None

    async def replay(self, letter: DeadLetter, otherwise: str) -> PushReply:
        """Accept it again; then the letter is deleted. Raises CannotReplay."""
        rows = await self._redis.call("XRANGE", self._stream(letter.instance), letter.id, letter.id)
        entry = ChatEntry.parse(*rows[0]) if rows else Unreadable(letter.id, "it does not exist any more", {})
        if isinstance(entry, Unreadable):
            raise CannotReplay(entry.why)
        reply = await self._accept(entry)
        if reply is AcceptReply.BUSY:
            return PushReply.FULL
        if reply in (AcceptReply.MISMATCH, AcceptReply.DUPLICATE_OTHER, AcceptReply.SAVED_OTHER):
            raise CannotReplay("its sender has used the clientMsgId for another message since")
        await self.drop(letter.instance, letter.id)
        return PushReply.OK

    async def _accept(self, entry: ChatEntry) -> AcceptReply:
        """DUPLICATE and SAVED are as good as OK: the sender has sent the message again."""
        shards, above = self._shards, 0
        share = max(self._switches().max_backlog // shards.count, 1)
        while True:
            again = msgspec.structs.replace(
                entry, id=self._ids.draw(above), mode=Path.SAVE_FIRST, producer=self._instance
            )
            reply, number = await shards.accept(again, digest_of(entry.body), share, without_quota=True)
            if reply is not AcceptReply.STALE_ID:
                return reply
            above = number

    async def drop(self, instance: str, id: str) -> bool:
        return bool(await self._redis.call("XDEL", self._stream(instance), id))

    async def erase(self, sender: int) -> tuple[int, builtins.list[str]]:
        """Delete the letters of one sender; how many there were, and their clientMsgIds."""
        shard = self._shards.shard_of(sender)
        stream, start, dropped = self._shards.dead(shard), "-", 0
        keys: builtins.list[str] = []
        while rows := await self._redis.call("XRANGE", stream, start, "+", "COUNT", MAX_SEARCHED):
            for id, fields in rows:
                if sender_of(fields) == sender:
                    dropped += int(await self._redis.call("XDEL", stream, id))
                    entry = ChatEntry.parse(id, fields)
                    keys += [entry.client_msg_id] if isinstance(entry, ChatEntry) else []
            start = f"({rows[-1][0].decode()}"
        return dropped, keys

    def _stream(self, name: str) -> str:
        return self._shards.dead(int(name.removeprefix(PREFIX)))


def _letter(name: str, id: bytes, fields: list[bytes]) -> DeadLetter:
    texts = {k.decode(): v.decode(errors="replace") for k, v in zip(fields[::2], fields[1::2], strict=False)}
    size = len(texts.get("body", "").encode())
    shown = {**{key: text for key, text in texts.items() if key != "body"}, "bodyBytes": size}
    return DeadLetter(
        id.decode(), name, KIND, texts.get("deadReason", ""), _number(texts.get("tries")), "",
        _number(texts.get("createdAtMs")), _number(texts.get("deadMs")), size, msgspec.json.encode(shown),
    )  # fmt: skip


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
