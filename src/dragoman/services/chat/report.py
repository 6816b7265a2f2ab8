"""What operators see of chat: switches, shards and their backlog, and the state of one message."""

import asyncio
from typing import Any

import msgspec

from dragoman.archive import Archive, ArchiveError, Stored
from dragoman.domain.history import QUANTILES
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import DAY_MS, Entry, Shards
from dragoman.store.instances import Instances

MAX_DEAD_READ = 1000


class ChatReport:
    def __init__(
        self,
        instance: str,
        shards: Shards,
        archive: Archive,
        switches: FeatureSwitches,
        instances: Instances,
        metrics: Metrics,
    ) -> None:
        self._instance, self._shards, self._archive = instance, shards, archive
        self._switches, self._instances, self._metrics = switches, instances, metrics

    # -- the whole -------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """The same from every instance."""
        tallies = await asyncio.gather(*(self._shards.tally(shard) for shard in range(self._shards.count)))
        keep = self._shards.keep_dead
        return {
            "switches": msgspec.to_builtins(self._switches.current),
            "backlog": sum(tally.backlog for tally in tallies),
            "save_lag_ms": await self._save_lag(),
            "dead_letters": {
                "kept": sum(tally.dead_len for tally in tallies),
                "dropped": sum(tally.dropped for tally in tallies),
                "max_per_shard": keep.letters,
                "days": keep.ms / DAY_MS,
            },
            "shards": [{"shard": shard, **msgspec.to_builtins(tally)} for shard, tally in enumerate(tallies)],
        }

    async def _save_lag(self) -> dict[str, float | None]:
        """Quantiles over all running instances: each has its buckets in its presence."""
        present = await self._instances.all()
        others = [one.save_lag for name, one in present.items() if one is not None and name != self._instance]
        lag = self._metrics.chat_save_lag.merged(others)
        return {name: lag.quantile(share) for name, share in QUANTILES.items()}

    # -- one message -----------------------------------------------------------------------------

    async def find(self, sender: int, client_msg_id: str) -> dict[str, Any]:
        """`state` is accepted, saved, dead or unknown; the rest is what is known of the message."""
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
