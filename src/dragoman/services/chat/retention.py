"""Deletes messages that are older than `chat.retention_days`.

The instance that has shard 0 does it, in batches. Between two batches it waits nine times as long as the last one took,
so that the database has at most a tenth of its time for this, whatever it is.
"""

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from dragoman.archive import Archive, ArchiveError
from dragoman.domain.chat.message_ids import first_id_of
from dragoman.services.chat.inbound import now_ms
from dragoman.services.metrics import Metrics

log = structlog.get_logger(__name__)

RETENTION_S = 60.0
BATCH = 50
REST = 9
DAY_MS = 86_400_000


class Retention:
    def __init__(self, archive: Archive, is_ours: Callable[[], bool], metrics: Metrics, days: float) -> None:
        self._archive, self._is_ours, self._metrics = archive, is_ours, metrics
        self._age_ms = int(days * DAY_MS)

    async def run_once(self) -> None:
        """Until nothing is too old, or another instance does it."""
        if not self._age_ms:
            return
        before_ms = now_ms() - self._age_ms
        deleted = undelivered = 0
        while self._is_ours():
            began = monotonic()
            try:
                removed = await self._archive.expire(first_id_of(before_ms), before_ms, BATCH)
            except ArchiveError as error:
                log.warning("old messages are not deleted", error=str(error), limited=True)
                break
            self._metrics.chat_expired.inc(removed.messages)
            self._metrics.chat_expired_undelivered.inc(removed.undelivered)
            deleted, undelivered = deleted + removed.messages, undelivered + removed.undelivered
            if removed.messages < BATCH:
                break
            await asyncio.sleep(REST * (monotonic() - began))
        if deleted:
            log.info("old messages were deleted", messages=deleted, undelivered=undelivered)
