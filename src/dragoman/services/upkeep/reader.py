"""Reads this instance's inbox and works it in order.

A batch is read, each entry handed to `handle`, and what succeeded is done in one call, which the next batch does not
wait for. What fails stays pending: the reclaimer tries it again, and moves it to the dead letters when it has failed
too often. What is in hand here is nobody else's, however long it takes: a slow handler makes those behind it look
forgotten. And what was handled is not handled again: when Redis goes away before it has heard that an entry is done,
the entry comes back, and is only done once more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import structlog

from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.peer import InboxMessage, decode_inbox
from dragoman.services.loops import unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.presence import PresenceKeeper
from dragoman.store.errors import Refused, StoreError
from dragoman.store.inbox import Entry, Inboxes
from dragoman.store.redis import Dedicated

log = structlog.get_logger(__name__)

Handle = Callable[[InboxMessage], Awaitable[None]]
MAX_REASONS = 10_000
MAX_UNHEARD = 10_000
NO_STREAM = ("NOGROUP", "UNBLOCKED")  # the second is what 7.0 says to a reader that waits when the stream goes


class Reader:
    def __init__(
        self, inboxes: Inboxes, presence: PresenceKeeper, metrics: Metrics, handle: Handle, *, count: int, block_ms: int
    ) -> None:
        self.inboxes, self.presence, self.metrics = inboxes, presence, metrics
        self.count, self.block_ms = count, block_ms
        self.reasons: OrderedDict[str, str] = OrderedDict()  # entry id → why it failed last
        self.in_hand: set[str] = set()
        self._unheard: OrderedDict[str, None] = OrderedDict()  # handled, and Redis may not know that it is done
        self._handle = handle
        self._connection: Dedicated | None = None

    async def run_once(self) -> None:
        await self.presence.wait_may_act()
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

    async def work(self, entries: list[Entry]) -> None:
        """Handle a batch in order; also what the reclaimer brings back."""
        mine = [entry for entry in entries if entry.id not in self.in_hand]
        self.in_hand.update(entry.id for entry in mine)
        incarnation, done = self.presence.incarnation, list[Entry]()
        try:
            for entry in mine:
                await self.presence.wait_may_act()
                if self.presence.incarnation != incarnation:
                    return  # we were buried, and the rest was handed on
                if entry.id in self._unheard or await self._one(entry):
                    done.append(entry)
        finally:
            self._finish(mine, done)

    def _finish(self, mine: list[Entry], done: list[Entry]) -> None:
        """What is done stays in hand until Redis knows: it must not be tried again meanwhile."""
        if not done:
            self._put_down(mine)
            return
        written = self.inboxes.finishing(self.presence.instance, done)
        written.add_done_callback(lambda answer: self._heard(done, answer))
        written.add_done_callback(lambda _: self._put_down(mine))
        unawaited(written)

    def _heard(self, done: list[Entry], answer: "asyncio.Future[int]") -> None:
        """Whether Redis knows of these; the oldest are forgotten, as it has forgotten them itself by then."""
        if not answer.cancelled() and answer.exception() is None:
            for entry in done:
                self._unheard.pop(entry.id, None)
            return
        self._unheard.update((entry.id, None) for entry in done)
        while len(self._unheard) > MAX_UNHEARD:
            self._unheard.popitem(last=False)

    def has(self, id: str) -> bool:
        """Whether it is in hand, or was handled and only Redis does not know."""
        return id in self.in_hand or id in self._unheard

    def _put_down(self, mine: list[Entry]) -> None:
        self.in_hand.difference_update(entry.id for entry in mine)

    async def _one(self, entry: Entry) -> bool:
        if entry.newer:
            self._failed(entry, "written by a later release; left for an instance that knows it")
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
                log.exception("an inbox entry failed", kind=entry.kind, entry=entry.id, trace_id=entry.trace_id)
            self._failed(entry, f"{type(error).__name__}: {error}")
            return False
        self.reasons.pop(entry.id, None)
        self.metrics.inbox_done.labels(entry.kind).inc()
        return True

    def _failed(self, entry: Entry, reason: str) -> None:
        self.reasons[entry.id] = reason
        while len(self.reasons) > MAX_REASONS:
            self.reasons.popitem(last=False)

    async def _unreadable(self, entry: Entry, why: str) -> None:
        """No second look can help: a dead letter at first sight."""
        log.warning("an inbox entry cannot be read", entry=entry.id, why=why, limited=True)
        await bury_entry(self.inboxes, self.metrics, self.presence.instance, entry.id, why, 1)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


async def bury_entry(inboxes: Inboxes, metrics: Metrics, instance: str, id: str, reason: str, deliveries: int) -> str:
    """Move one entry to the dead letters, and count it: 'OK', 'NONE', or 'STAYS', and it is where it was."""
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
