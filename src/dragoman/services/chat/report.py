"""What operators see of chat: switches, shards and their backlog, and the state of one message."""

import asyncio
from typing import Any

import msgspec

from dragoman.archive import Archive, ArchiveError, Stored
from dragoman.domain.history import QUANTILES
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.metrics import Metrics
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.shards import DAY_MS, Shards
from dragoman.store.instances import Instances


class ChatReport:
    def __init__(
        self,
        instance: str,
        shards: Shards,
        archive: Archive,
        dead_letters: ChatDeadLetters,
        switches: FeatureSwitches,
        instances: Instances,
        metrics: Metrics,
    ) -> None:
        self._instance, self._shards, self._archive, self._dead_letters = instance, shards, archive, dead_letters
        self._switches, self._instances, self._metrics = switches, instances, metrics

    # -- the whole -------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """The same from every instance."""
        statuses = await asyncio.gather(*(self._shards.status(shard) for shard in range(self._shards.count)))
        limits = self._shards.dead_letter_limits
        return {
            "switches": msgspec.to_builtins(self._switches.current),
            "backlog": sum(status.backlog for status in statuses),
            "save_lag_ms": await self._save_lag(),
            "dead_letters": {
                "kept": sum(status.dead_len for status in statuses),
                "dropped": sum(status.dropped for status in statuses),
                "max_per_shard": limits.max_letters,
                "days": limits.max_age_ms / DAY_MS,
            },
            "shards": [{"shard": shard, **msgspec.to_builtins(status)} for shard, status in enumerate(statuses)],
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
        shard = self._shards.shard_of(sender)
        found: dict[str, Any] = {"from": str(sender), "clientMsgId": client_msg_id, "shard": shard}
        claim = await self._shards.claim(sender, client_msg_id)
        try:
            row = await self._archive.find(sender, client_msg_id)
        except ArchiveError as error:
            row, found["archive"] = None, f"cannot be asked: {error}"
        if row is not None:
            return {**found, "state": "saved", **_row(row)}
        if claim:
            status = await self._shards.status(shard)
            state = "saved" if claim.get("saved") else "accepted"
            return {
                **found, "state": state, "serverMsgId": claim.get("id"), "holder": status.holder,
                "backlog": status.backlog,
            }  # fmt: skip
        dead = await self._dead_letters.find(sender, client_msg_id)
        if dead is None:
            return {**found, "state": "unknown"}
        letter, id = dead
        name = f"{letter.instance}/{letter.id}"
        return {**found, "state": "dead", "serverMsgId": str(id), "letter": name, "reason": letter.reason}


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
