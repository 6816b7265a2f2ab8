"""Chat messages that could not be saved, as dead letters: list, look, send again, throw away.

They stand among the others under the name of their shard, `chat-0`, `chat-1`, …. A replay is accepted anew, under a
new id: the shard may have given higher ones since. What a letter carries is shown without the message's text.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec

from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.switches import Path, Switches
from dragoman.services.chat.one_phase import digest_of
from dragoman.store.chat.shards import Accepted, Entry, Shards, Unreadable
from dragoman.store.dead_letters import CannotReplay, Letter
from dragoman.store.inbox import Push

PREFIX = "chat-"
KIND = "chat_message"


class ChatLetters:
    def __init__(self, shards: Shards, ids: IdMaker, instance: str, switches: Callable[[], Switches]) -> None:
        self._shards, self._ids, self._instance, self._switches = shards, ids, instance, switches

    def holds(self, name: str) -> bool:
        number = name.removeprefix(PREFIX)
        return name.startswith(PREFIX) and number.isdecimal() and int(number) < self._shards.count

    async def instances(self) -> list[str]:
        return list(await self.counts())

    async def counts(self) -> dict[str, int]:
        shards = range(self._shards.count)
        found = await asyncio.gather(*(self._shards.redis.call("XLEN", self._shards.dead(shard)) for shard in shards))
        return {f"{PREFIX}{shard}": int(count) for shard, count in zip(shards, found, strict=True) if count}

    async def list(self, instance: str, count: int = 100, after: str = "") -> list[Letter]:
        start = f"({after}" if after else "-"
        rows = await self._shards.redis.call("XRANGE", self._stream(instance), start, "+", "COUNT", count)
        return [replace(_letter(instance, id, fields), data=b"") for id, fields in rows]

    async def get(self, instance: str, id: str) -> Letter | None:
        rows = await self._shards.redis.call("XRANGE", self._stream(instance), id, id)
        return _letter(instance, *rows[0]) if rows else None

    async def replay(self, letter: Letter, otherwise: str) -> Push:
        """Accept it again; the letter goes when that is done."""
        rows = await self._shards.redis.call("XRANGE", self._stream(letter.instance), letter.id, letter.id)
        entry = Entry.parse(*rows[0]) if rows else Unreadable(letter.id, "it is gone", {})
        if isinstance(entry, Unreadable):
            raise CannotReplay(entry.why)
        verdict = await self._accept(entry)
        if verdict is Accepted.BUSY:
            return Push.FULL
        if verdict in (Accepted.MISMATCH, Accepted.DUPLICATE_OTHER, Accepted.SAVED_OTHER):
            raise CannotReplay("its sender has used the clientMsgId for another message since")
        await self.drop(letter.instance, letter.id)
        return Push.OK

    async def _accept(self, entry: Entry) -> Accepted:
        """DUPLICATE and SAVED are as good as OK: its sender was faster."""
        shards, above = self._shards, 0
        share = max(self._switches().max_backlog // shards.count, 1)
        while True:
            again = msgspec.structs.replace(
                entry, id=self._ids.draw(above), mode=Path.SAVE_FIRST, producer=self._instance
            )
            verdict, number = await shards.accept(again, digest_of(entry.body), share, free=True)
            if verdict is not Accepted.STALE_ID:
                return verdict
            above = number

    async def drop(self, instance: str, id: str) -> bool:
        return bool(await self._shards.redis.call("XDEL", self._stream(instance), id))

    def _stream(self, name: str) -> str:
        return self._shards.dead(int(name.removeprefix(PREFIX)))


def _letter(name: str, id: bytes, fields: list[bytes]) -> Letter:
    texts = {k.decode(): v.decode(errors="replace") for k, v in zip(fields[::2], fields[1::2], strict=False)}
    size = len(texts.get("body", "").encode())
    told = {**{key: text for key, text in texts.items() if key != "body"}, "bodyBytes": size}
    return Letter(
        id.decode(), name, KIND, texts.get("deadReason", ""), _number(texts.get("tries")), "",
        _number(texts.get("createdAtMs")), _number(texts.get("deadMs")), size, msgspec.json.encode(told),
    )  # fmt: skip


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
