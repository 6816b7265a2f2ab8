"""What operators see of chat: switches, shards and their backlog, the state of one message, and what one costs."""

import asyncio
from collections.abc import Callable
from random import random
from time import monotonic
from typing import Any

import msgspec
import structlog

from dragoman.archive import Archive, ArchiveError, NewMessage, Stored
from dragoman.domain.history import QUANTILES
from dragoman.domain.limits.rates import RatePerKey
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.shards import DAY_MS, Shards
from dragoman.store.errors import StoreError
from dragoman.store.instances import Instances

log = structlog.get_logger(__name__)

SLOW_S = 0.5
SAMPLED = 0.01
LOOKED_UP_PER_MINUTE = 60  # lines whose stream is asked for its length: when all are slow, Redis has enough to do


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


class Perf:
    """What taking a message costs: the stage metrics, and a `ws_perf` line for a sample of all messages and slow ones.

    single_chat_accept  acceptedWriteMs  the write to Redis     single_chat  queueMs    behind earlier ones of a sender
                        acceptedAckMs    frame to ACK accepted               dbQueueMs  until it had a connection
                        streamLen        XLEN of accepted                    saveMsgMs  the time of the database
                        pending          accepted and not saved              pushMs     to hand it to its receiver
    """

    def __init__(
        self,
        metrics: Metrics,
        shards: Shards,
        tasks: Tasks,
        is_sampled: Callable[[], bool] = lambda: random() < SAMPLED,
    ) -> None:
        self._metrics, self._shards, self._tasks, self._is_sampled = metrics, shards, tasks, is_sampled
        self._look_ups = RatePerKey(LOOKED_UP_PER_MINUTE)

    def accepted(self, row: NewMessage, *, came_at: float, wrote_s: float, queue: int) -> None:
        now = monotonic()
        acked_s = now - came_at
        self._metrics.chat_accept_write.observe(wrote_s)
        self._metrics.chat_accept_ack.observe(acked_s)
        if acked_s > SLOW_S or self._is_sampled():
            line = {**_ids_of(row), "queue": queue, "acceptedWriteMs": _ms(wrote_s), "acceptedAckMs": _ms(acked_s)}
            if self._look_ups.take("accept", now):
                self._tasks.spawn(self._with_stream(row.from_user, line), "chat-perf")
            else:
                _log_accept(line)

    async def _with_stream(self, sender: int, line: dict[str, Any]) -> None:
        try:
            tally = await self._shards.status(self._shards.shard_of(sender))
            line |= {"streamLen": tally.accepted_len, "pending": tally.backlog}
        except StoreError:
            pass
        _log_accept(line)

    def saved(self, row: NewMessage, *, came_at: float, asked: float, began: float, saved: float) -> None:
        """Without being accepted first: asked of the database, begun by it, and committed at these times."""
        now = monotonic()
        self._metrics.chat_db_queue.observe(began - asked)
        if now - came_at > SLOW_S or self._is_sampled():
            log.info(
                "ws_perf single_chat", **_ids_of(row), totalMs=_ms(now - came_at), queueMs=_ms(asked - came_at),
                dbQueueMs=_ms(began - asked), saveMsgMs=_ms(saved - began), pushMs=_ms(now - saved), limited="totalMs",
            )  # fmt: skip


def _log_accept(line: dict[str, Any]) -> None:
    log.info("ws_perf single_chat_accept", **line, limited="acceptedAckMs")


def _ids_of(row: NewMessage) -> dict[str, int]:
    return {"serverMsgId": row.id, "fromUserId": row.from_user}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
