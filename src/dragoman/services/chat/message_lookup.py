"""The state of one message: accepted, saved, dead or unknown. For an operator who is asked "did it arrive?"."""

from typing import Any

from dragoman.archive import Archive, ArchiveError, Stored
from dragoman.store.chat.shards import Entry, Shards

MAX_DEAD_READ = 1000


class MessageLookup:
    def __init__(self, shards: Shards, archive: Archive) -> None:
        self._shards, self._archive = shards, archive

    async def find(self, sender: int, client_msg_id: str) -> dict[str, Any]:
        """`state`, and what is known of the message."""
        shard = self._shards.of(sender)
        found: dict[str, Any] = {"from": str(sender), "clientMsgId": client_msg_id, "shard": shard}
        claim = await self._shards.claim(sender, client_msg_id)
        try:
            row = await self._archive.find(sender, client_msg_id)
        except ArchiveError as error:
            row, found["archive"] = None, f"cannot be asked: {error}"
        if row is not None:
            return {**found, "state": "saved", **_row(row)}
        if claim:
            tally = await self._shards.tally(shard)
            state = "saved" if claim.get("saved") else "accepted"
            return {
                **found, "state": state, "serverMsgId": claim.get("id"), "holder": tally.holder,
                "backlog": tally.backlog,
            }  # fmt: skip
        dead = await self._dead(shard, sender, client_msg_id)
        return {**found, **(dead or {"state": "unknown"})}

    async def _dead(self, shard: int, sender: int, client_msg_id: str) -> dict[str, Any] | None:
        rows = await self._shards.redis.call("XREVRANGE", self._shards.dead(shard), "+", "-", "COUNT", MAX_DEAD_READ)
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
