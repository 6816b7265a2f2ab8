"""Second chances and last rites: one loop, in this order.

1. What was delivered too often becomes a dead letter.
2. What has been pending too long is tried again.

The order matters: every claim sets an entry's idle time back to zero, so a hastier retry would keep the
hopeless from ever being old enough for (1).
"""

from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.presence import PresenceKeeper
from dragoman.services.upkeep.reader import Reader, bury_entry
from dragoman.store.inbox import Inboxes, Pending


class Reclaimer:
    def __init__(
        self,
        inboxes: Inboxes,
        presence: PresenceKeeper,
        reader: Reader,
        metrics: Metrics,
        *,
        min_idle_ms: int,
        max_deliveries: int,
        count: int,
    ) -> None:
        self.inboxes, self.presence, self.reader, self.metrics = inboxes, presence, reader, metrics
        self.min_idle_ms, self.max_deliveries, self.count = min_idle_ms, max_deliveries, count

    async def run_once(self) -> None:
        await self.presence.wait_may_act()
        instance = self.presence.instance
        if self.inboxes.settings.dead_letters:
            await self._bury_hopeless(instance)
        start = "-"
        while start != "0-0":
            start, entries = await self.inboxes.reclaim(instance, self.min_idle_ms, self.count, start)
            await self.reader.work(entries)
        self.metrics.inbox_pending.set((await self.inboxes.tally(instance)).waiting)

    async def _bury_hopeless(self, instance: str) -> None:
        after = ""
        while found := await self.inboxes.pending(instance, self.min_idle_ms, self.count, after):
            for pending in found:
                if pending.deliveries > self.max_deliveries and not await self._last_rites(instance, pending):
                    return  # there is no room for the others either
            after = found[-1].id

    async def _last_rites(self, instance: str, pending: Pending) -> bool:
        """False if the dead letters are full."""
        entry = await self.inboxes.get(instance, pending.id)
        if self.reader.has(pending.id) or (entry is not None and entry.newer):
            return True
        if not await self.inboxes.claim(instance, pending.id, self.min_idle_ms):
            return True
        reason = self.reader.reasons.get(pending.id, "delivered again and again, and never done")
        verdict = await bury_entry(self.inboxes, self.metrics, instance, pending.id, reason, pending.deliveries)
        if verdict == "STAYS":
            return False
        self.reader.reasons.pop(pending.id, None)
        return True
