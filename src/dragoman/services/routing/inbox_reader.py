"""Reads this instance's inbox and handles its entries in order; tries failed entries again.

`InboxReader` reads a batch, passes each entry to `handle` and acknowledges the handled ones in one call, which the
next batch does not wait for. An entry that failed stays pending. Two rules prevent double handling:

- An entry in hand is not taken by the reclaimer, however long it takes.
- An entry that was handled is not handled again: if Redis fails before it confirms the acknowledgement, the entry
  comes back and is only acknowledged once more.

`Reclaimer` looks at pending entries, in this order:

1. An entry that was delivered too often becomes a dead letter.
2. An entry that has been pending too long is tried again.

The order matters: every claim sets the entry's idle time back to zero, so retrying first would keep an entry that
always fails from ever being old enough for (1).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import structlog

from dragoman.protocol.codes import ProtocolError
from dragoman.protocol.peer import InboxMessage, decode_inbox
from dragoman.services.loops import unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.presence import InstancePresence
from dragoman.store.errors import Refused, StoreError
from dragoman.store.inbox import InboxEntry, Inboxes, Pending
from dragoman.store.redis import Dedicated

log = structlog.get_logger(__name__)

Handle = Callable[[InboxMessage], Awaitable[None]]
MAX_REASONS = 10_000
MAX_UNCONFIRMED = 10_000
NO_STREAM = ("NOGROUP", "UNBLOCKED")  # Redis 7.0 answers UNBLOCKED to a waiting reader when the stream is deleted


class InboxReader:
    def __init__(
        self,
        inboxes: Inboxes,
        presence: InstancePresence,
        metrics: Metrics,
        handle: Handle,
        *,
        count: int,
        block_ms: int,
    ) -> None:
        self.inboxes, self.presence, self.metrics = inboxes, presence, metrics
        self.count, self.block_ms = count, block_ms
        self.reasons: OrderedDict[str, str] = OrderedDict()  # entry id → why it failed last
        self.in_hand: set[str] = set()
        self._unconfirmed: OrderedDict[str, None] = OrderedDict()  # handled; Redis did not confirm the acknowledgement
        self._handle = handle
        self._connection: Dedicated | None = None

    async def run_once(self) -> None:
        await self.presence.wait_for_lease()
        if self._connection is None:
            self._connection = self.inboxes.reader(self.presence.instance)
        try:
            instance = self.presence.instance
            entries = await self.inboxes.read(self._connection, instance, self.count, self.block_ms)
        except Refused as error:
            if error.word in NO_STREAM:
                await self.inboxes.ensure_group(self.presence.instance)
                return
            raise
        await self.work(entries)

    async def work(self, entries: list[InboxEntry]) -> None:
        """Handle a batch in order; the reclaimer calls this as well."""
        mine = [entry for entry in entries if entry.id not in self.in_hand]
        self.in_hand.update(entry.id for entry in mine)
        incarnation, done = self.presence.incarnation, list[InboxEntry]()
        try:
            for entry in mine:
                await self.presence.wait_for_lease()
                if self.presence.incarnation != incarnation:
                    return  # we were declared dead, and another instance has the rest
                if entry.id in self._unconfirmed or await self._one(entry):
                    done.append(entry)
        finally:
            self._finish(mine, done)

    def _finish(self, mine: list[InboxEntry], done: list[InboxEntry]) -> None:
        """Handled entries stay in hand until Redis has answered, so that the reclaimer does not take them."""
        if not done:
            self._put_down(mine)
            return
        written = self.inboxes.finishing(self.presence.instance, done)
        written.add_done_callback(lambda answer: self._acknowledged(done, answer))
        written.add_done_callback(lambda _: self._put_down(mine))
        unawaited(written)

    def _acknowledged(self, done: list[InboxEntry], answer: "asyncio.Future[int]") -> None:
        if not answer.cancelled() and answer.exception() is None:
            for entry in done:
                self._unconfirmed.pop(entry.id, None)
            return
        self._unconfirmed.update((entry.id, None) for entry in done)
        while len(self._unconfirmed) > MAX_UNCONFIRMED:
            self._unconfirmed.popitem(last=False)

    def has(self, id: str) -> bool:
        """Whether the entry is in hand, or was handled and Redis did not confirm the acknowledgement."""
        return id in self.in_hand or id in self._unconfirmed

    def _put_down(self, mine: list[InboxEntry]) -> None:
        self.in_hand.difference_update(entry.id for entry in mine)

    async def _one(self, entry: InboxEntry) -> bool:
        if entry.newer:
            self._failed(entry, "written by a later release; it stays for an instance of that release")
            return False
        try:
            message = decode_inbox(entry.data) if entry.kind else None
        except ProtocolError as error:
            await self._unreadable(entry, error.message)
            return False
        if message is None:
            await self._unreadable(entry, "the entry has no type or no data")
            return False
        try:
            await self._handle(message)
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("inbox entry failed", kind=entry.kind, entry=entry.id, trace_id=entry.trace_id)
            self._failed(entry, f"{type(error).__name__}: {error}")
            return False
        self.reasons.pop(entry.id, None)
        self.metrics.inbox_done.labels(entry.kind).inc()
        return True

    def _failed(self, entry: InboxEntry, reason: str) -> None:
        self.reasons[entry.id] = reason
        while len(self.reasons) > MAX_REASONS:
            self.reasons.popitem(last=False)

    async def _unreadable(self, entry: InboxEntry, why: str) -> None:
        """A second attempt cannot help: the entry becomes a dead letter at once."""
        log.warning("inbox entry unreadable", entry=entry.id, why=why, limited=True)
        await move_to_dlq(self.inboxes, self.metrics, self.presence.instance, entry.id, why, 1)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class Reclaimer:
    def __init__(
        self,
        inboxes: Inboxes,
        presence: InstancePresence,
        reader: InboxReader,
        metrics: Metrics,
        *,
        min_idle_ms: int,
        max_deliveries: int,
        count: int,
    ) -> None:
        self.inboxes, self.presence, self.reader, self.metrics = inboxes, presence, reader, metrics
        self.min_idle_ms, self.max_deliveries, self.count = min_idle_ms, max_deliveries, count

    async def run_once(self) -> None:
        await self.presence.wait_for_lease()
        instance = self.presence.instance
        if self.inboxes.settings.dead_letters:
            await self._move_hopeless(instance)
        start = "-"
        while start != "0-0":
            start, entries = await self.inboxes.reclaim(instance, self.min_idle_ms, self.count, start)
            await self.reader.work(entries)
        self.metrics.inbox_pending.set((await self.inboxes.counts(instance)).waiting)

    async def _move_hopeless(self, instance: str) -> None:
        after = ""
        while found := await self.inboxes.pending(instance, self.min_idle_ms, self.count, after):
            for pending in found:
                if pending.deliveries > self.max_deliveries and not await self._move(instance, pending):
                    return  # there is no room for the others either
            after = found[-1].id

    async def _move(self, instance: str, pending: Pending) -> bool:
        """False if the dead letters are full."""
        entry = await self.inboxes.get(instance, pending.id)
        if self.reader.has(pending.id) or (entry is not None and entry.newer):
            return True
        if not await self.inboxes.claim(instance, pending.id, self.min_idle_ms):
            return True
        reason = self.reader.reasons.get(pending.id, "delivered too often without success")
        verdict = await move_to_dlq(self.inboxes, self.metrics, instance, pending.id, reason, pending.deliveries)
        if verdict == "STAYS":
            return False
        self.reader.reasons.pop(pending.id, None)
        return True


async def move_to_dlq(inboxes: Inboxes, metrics: Metrics, instance: str, id: str, reason: str, deliveries: int) -> str:
    """Move one entry to the dead letters and count it: 'OK', 'NONE', or 'STAYS' if it is still in the inbox."""
    if not inboxes.settings.dead_letters:
        log.warning("dead letters are off; the entry stays pending", instance=instance, reason=reason, limited=True)
        return "STAYS"
    verdict = await inboxes.dead_letter(instance, id, reason, deliveries)
    if verdict == "OK":
        metrics.dlq_moved.inc()
        log.warning("dead letter", instance=instance, entry=id, reason=reason, deliveries=deliveries)
    elif verdict == "FULL":
        metrics.dlq_full.inc()
        log.error("the dead letters are full; the entry stays pending", instance=instance, entry=id, limited=True)
        return "STAYS"
    return verdict
