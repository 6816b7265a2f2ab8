"""Where a message is: on its way, saved, dead, or nowhere. For the person who asks "did it arrive?"."""

from typing import Any

from dragoman.archive import Archive, ArchiveError, Stored
from dragoman.store.chat.shards import Entry, Shards

DEAD_LOOKED_AT = 1000


class Whereabouts:
    def __init__(self, shards: Shards, archive: Archive) -> None:
        self._shards, self._archive = shards, archive

    async def of(self, sender: int, client_msg_id: str) -> dict[str, Any]:
        """`state` is saved, accepted, dead or unknown; with what is known beside it."""
        shard = self._shards.of(sender)
        told: dict[str, Any] = {"from": str(sender), "clientMsgId": client_msg_id, "shard": shard}
        claim = await self._shards.claim(sender, client_msg_id)
        try:
            row = await self._archive.find(sender, client_msg_id)
        except ArchiveError as error:
            row, told["archive"] = None, f"cannot be asked: {error}"
        if row is not None:
            return {**told, "state": "saved", **_row(row)}
        if claim:
            tally = await self._shards.tally(shard)
            state = "saved" if claim.get("saved") else "accepted"
            return {
                **told, "state": state, "serverMsgId": claim.get("id"), "holder": tally.holder,
                "backlog": tally.backlog,
            }  # fmt: skip
        dead = await self._dead(shard, sender, client_msg_id)
        return {**told, **(dead or {"state": "unknown"})}

    async def _dead(self, shard: int, sender: int, client_msg_id: str) -> dict[str, Any] | None:
        rows = await self._shards.redis.call("XREVRANGE", self._shards.dead(shard), "+", "-", "COUNT", DEAD_LOOKED_AT)
        for id, fields in rows:
            entry = Entry.parse(id, fields)
            if isinstance(entry, Entry) and (entry.sender, entry.client_msg_id) == (sender, client_msg_id):
                texts = dict(zip(fields[::2], fields[1::2], strict=False))
                reason = texts.get(b"deadReason", b"").decode(errors="replace")
                letter = f"chat-{shard}/{id.decode()}"
                return {"state": "dead", "serverMsgId": str(entry.id), "letter": letter, "reason": reason}
        return None


def _row(row: Stored) -> dict[str, Any]:
    return {
        "serverMsgId": str(row.id),
        "to": str(row.to_user),
        "msgSeq": row.seq,
        "status": row.status.name.lower(),
        "createdMs": row.created_ms,
        "savedMs": row.saved_ms,
        "saveLagMs": max(row.saved_ms - row.created_ms, 0),
    }
