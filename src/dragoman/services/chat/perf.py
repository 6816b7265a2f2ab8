"""What taking a message costs: the stage metrics, and a `ws_perf` line for a sample of all messages and for slow ones.

single_chat_accept  acceptedWriteMs  the write to Redis        single_chat  queueMs    behind earlier ones of its sender
                    acceptedAckMs    frame to ACK accepted                  dbQueueMs  until it had thread or connection
                    streamLen        XLEN of accepted                       saveMsgMs  the database's own time
                    pending          XPENDING of accepted                   pushMs     to hand it to its receiver
"""

from collections.abc import Callable
from random import random
from time import monotonic
from typing import Any

import structlog

from dragoman.archive import NewMessage
from dragoman.domain.limits.rates import RatePerKey
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

SLOW_S = 0.5
SAMPLED = 0.01
LOOKED_UP_PER_MINUTE = 60  # lines whose stream is asked for its length: when all are slow, Redis has enough to do


class Perf:
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
            line |= {"streamLen": tally.accepted_len, "pending": tally.accepted_pending}
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
