"""The save stage of a shard: accepted ─▶ one transaction ─▶ push ─▶ ACK saved ─▶ deleted from Redis.

    the database is unavailable      try again, with back-off; Redis keeps the entries
    a row that cannot be written     found by halving the batch, retried, then a dead letter
    a higher fence in the database   stop: another instance works the shard

It runs under a `ShardLease` and begins with what the last holder left. The order of the steps makes whatever is
interrupted be done again: an entry is deleted from Redis only if it is in SQL or among the dead letters, and *saved* is
sent only of rows. It is sent after the push: the sender's next message may be pushed before it is saved, by its own
instance, and must not overtake this one.

An accepted message that will never be a row becomes a dead letter, and its sender gets an ERROR. The sender is notified
before the entry is moved: a duplicate notice is harmless, a missing one is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TypeVar

import msgspec
import structlog

from dragoman.archive import Archive, ArchiveAway, BadRow, Fenced, NewMessage, SaveOutcome, SaveVerdict, Status
from dragoman.domain.chat.sent_messages import RECENT_S
from dragoman.domain.chat.shards import EARLY_READ_INTERVAL_S, ReadThrottle
from dragoman.domain.chat.switches import Path
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Reason
from dragoman.services.chat.acceptance import PushedMessages
from dragoman.services.chat.delivery import Delivery, MessagePush, SenderNotice
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.one_phase import Refusals
from dragoman.services.chat.receipts import Receipts
from dragoman.services.loops import retry
from dragoman.services.metrics import Metrics
from dragoman.store.chat.entries import ChatEntry, SavedEntry, Unreadable
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import StoreError
from dragoman.store.redis import Dedicated

T = TypeVar("T")

RETRY_S = 0.2

log = structlog.get_logger(__name__)

BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
RESEND_TIMEOUT_S = 5.0


class LostShard(Exception):
    """Another instance has the shard, or may have it by now: stop at once, and change nothing more."""


class ShardLease:
    def __init__(self, shard: int, instance: str, fence: int, valid_until: float, stream: str) -> None:
        """`valid_until` is monotonic: from then on another instance may take the shard. `stream` is read first."""
        self.shard, self.fence = shard, fence
        self.holder = f"{instance}|{fence}"  # the value of the lease in Redis
        self.stream, self.in_hand = stream, 0  # entries that were read and are not finished
        self.stopped = asyncio.Event()
        self._valid_until, self._taken_at = valid_until, monotonic()

    def renew(self, valid_until: float) -> None:
        self._valid_until = valid_until

    def lose(self) -> None:
        self._valid_until = 0.0

    def check(self) -> None:
        if monotonic() >= self._valid_until:
            raise LostShard(f"the lease of shard {self.shard} has expired")

    def checked(self, reply: T | None) -> T:
        """The reply of a script that compares the lease first; None: another instance has it. Raises LostShard."""
        if reply is None:
            raise LostShard(f"shard {self.shard} has another holder")
        return reply

    async def retry(self, step: Callable[[], Awaitable[T | None]]) -> T:
        """Repeat an idempotent script that compares the lease first until Redis has run it; raises LostShard."""

        async def checked() -> T:
            self.check()
            return self.checked(await step())

        def warn(error: Exception) -> None:
            log.warning("a chat shard waits for Redis", shard=self.shard, error=str(error), limited=True)

        return await retry(checked, pause_s=RETRY_S, on_error=warn)

    @property
    def in_line(self) -> bool:
        """Whether messages that the former holder pushed may be in an inbox still."""
        return monotonic() < self._taken_at + RECENT_S

    @property
    def stopping(self) -> bool:
        return self.stopped.is_set()

    def stop(self) -> None:
        """The stage finishes its batch, and waits for nothing more."""
        self.stopped.set()

    def read_from(self, stream: str) -> None:
        self.stream = stream

    def has_in_hand(self, entries: int) -> None:
        self.in_hand = entries


async def wait_for_redis(lease: ShardLease, error: StoreError) -> None:
    log.warning("a chat shard waits for Redis", shard=lease.shard, error=str(error), limited=True)
    await asyncio.sleep(RETRY_S)


class FailedMessages:
    def __init__(self, shards: Shards, delivery: Delivery, metrics: Metrics) -> None:
        self._shards, self._delivery, self._metrics = shards, delivery, metrics

    async def unreadable(self, lease: ShardLease, entries: Sequence[ChatEntry | Unreadable]) -> None:
        """Those of a batch that cannot be read. An entry of a later release stays for an instance of that release."""
        for entry in entries:
            if isinstance(entry, ChatEntry) or entry.newer:
                continue
            log.error("a message cannot be read", shard=lease.shard, entry=entry.entry, why=entry.why)
            notify = partial(self._notify_unreadable, entry)
            await self._fail(notify, self._shards.move_to_dead, lease, entry, entry.why, 1)
            self._metrics.chat_dead.inc()

    async def not_saved(self, lease: ShardLease, entry: ChatEntry, why: str, tries: int) -> None:
        """The database refused its row."""
        log.error("a message cannot be saved", shard=lease.shard, serverMsgId=entry.id, why=why, tries=tries)
        notify = partial(self._notify, entry, Reason.SAVE_FAILED)
        await self._fail(notify, self._shards.move_to_dead, lease, entry, why, tries)
        self._metrics.chat_dead.inc()

    async def mismatched(self, lease: ShardLease, entry: ChatEntry, stored: int) -> None:
        """Its sender used the clientMsgId for another receiver before: it is dropped, not a dead letter."""
        why = f"clientMsgId is that of message {stored}, which has another receiver"
        about = {"user": entry.sender, "serverMsgId": entry.id, "why": why}
        log.warning("a message is refused", shard=lease.shard, **about, limited=True, each="user")
        notify = partial(self._notify, entry, Reason.DUPLICATE_MSG_ID_MISMATCH)
        await self._fail(notify, partial(self._shards.move_to_dead, keep=False), lease, entry, why, 1)

    async def _fail(
        self,
        notify: Callable[[], Awaitable[None]],
        move_to_dead: Callable[..., Awaitable[int | None]],
        lease: ShardLease,
        entry: ChatEntry | Unreadable,
        why: str,
        tries: int,
    ) -> None:
        """A sender that sends the message again between the two steps is notified again before the entry is moved."""
        await notify()
        repeats = 0
        while repeats := await lease.retry(
            partial(move_to_dead, lease.shard, lease.holder, lease.stream, entry, why, tries, notified=repeats)
        ):
            await notify()

    async def _notify(self, entry: ChatEntry, reason: Reason) -> None:
        frame = wire.error(reason, now_ms(), entry.client_msg_id, entry.id)
        await self._delivery.notify([SenderNotice(entry.sender, frame, entry.id, keep=True)])

    async def _notify_unreadable(self, entry: Unreadable) -> None:
        """If the entry names its sender."""
        sender, client, id = (entry.fields.get(name, "") for name in ("fromUserId", "clientMsgId", "serverMsgId"))
        if sender.isdecimal() and client:
            known = int(id) if id.isdecimal() else 0
            frame = wire.error(Reason.SAVE_FAILED, now_ms(), client, known or None)
            await self._delivery.notify([SenderNotice(int(sender), frame, known, keep=True)])


class SaveStage:
    def __init__(
        self,
        shards: Shards,
        archive: Archive,
        delivery: Delivery,
        receipts: Receipts,
        switches: FeatureSwitches,
        metrics: Metrics,
        refusals: Refusals,
        max_deliveries: int,
        pushed: PushedMessages,
    ) -> None:
        self._pushed, self._pace = pushed, ReadThrottle()
        self._shards, self._archive, self._delivery, self._receipts = shards, archive, delivery, receipts
        self._switches, self._metrics, self._refusals = switches, metrics, refusals
        self._max_deliveries = max_deliveries
        self._failed = FailedMessages(shards, delivery, metrics)

    async def run(self, lease: ShardLease) -> None:
        """Until the shard is released or lost."""
        reader, after = self._shards.reader(lease.shard), "0"
        interrupting = asyncio.create_task(_close_when_stopped(reader, lease))
        try:
            while not lease.stopping:
                try:
                    after = await self._next_batch(lease, reader, after)
                except StoreError as error:
                    after = "0"  # what was not finished is still there
                    if not lease.stopping:
                        await wait_for_redis(lease, error)
        finally:
            interrupting.cancel()
            await reader.close()

    async def _next_batch(self, lease: ShardLease, reader: Dedicated, after: str) -> str:
        """Wait for it and handle it; returns its last entry."""
        lease.check()
        began, switches = monotonic(), self._switches.current
        count, block_ms = switches.batch_size, switches.block_ms
        inherited = lease.stream != self._shards.accepted(lease.shard)
        entries = await self._shards.next_entries(reader, lease.stream, after, count, 0 if inherited else block_ms)
        lease.has_in_hand(len(entries))
        await self.handle(lease, entries)
        lease.has_in_hand(0)
        if inherited and not entries:
            lease.read_from(self._shards.accepted(lease.shard))
            return "0"
        if entries and len(entries) < count:
            interval_s = EARLY_READ_INTERVAL_S if _are_early(entries) else None
            await asyncio.sleep(self._pace.pause(began, monotonic(), interval_s))
        return entries[-1].entry if entries else after

    async def handle(self, lease: ShardLease, entries: list[ChatEntry | Unreadable]) -> None:
        """One batch, in order."""
        known = [entry for entry in entries if isinstance(entry, ChatEntry)]
        if len(known) < len(entries):
            await self._failed.unreadable(lease, entries)
        if known:
            await self._save(lease, known)

    async def _save(self, lease: ShardLease, entries: list[ChatEntry]) -> None:
        """Write them together, or find by halves what cannot be written."""
        try:
            outcomes = await self._commit(lease, entries)
        except BadRow as error:
            if len(entries) == 1:
                await self._retry_alone(lease, entries[0], str(error))
                return
            half = len(entries) // 2
            await self._save(lease, entries[:half])
            await self._save(lease, entries[half:])
            return
        await self._committed(lease, entries, outcomes)

    async def _commit(self, lease: ShardLease, entries: list[ChatEntry]) -> list[SaveOutcome]:
        rows = [_row(entry) for entry in entries]
        tries = 0
        while True:
            lease.check()
            try:
                return await self._archive.save(rows, shard=lease.shard, fence=lease.fence)
            except Fenced:
                raise LostShard(f"shard {lease.shard} was written with a higher fence") from None
            except ArchiveAway as error:
                self._metrics.chat_save_fail.inc()
                if tries in (0, 10):
                    log.warning(
                        "a chat shard waits for the database", shard=lease.shard, error=str(error), limited=True
                    )
                await asyncio.sleep(BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)])
                tries += 1
                if lease.stopping:
                    raise LostShard(f"shard {lease.shard} is released while the database is unavailable") from None

    async def _retry_alone(self, lease: ShardLease, entry: ChatEntry, why: str) -> None:
        """A row that was refused by itself gets a few more tries, and then becomes a dead letter."""
        for tries in range(1, self._max_deliveries):
            await asyncio.sleep(BACK_OFF_S[min(tries - 1, 2)])
            try:
                outcomes = await self._commit(lease, [entry])
            except BadRow as error:
                why = str(error)
            else:
                await self._committed(lease, [entry], outcomes)
                return
        self._metrics.chat_save_fail.inc()
        await self._failed.not_saved(lease, entry, why, self._max_deliveries)

    # After the commit: notify the senders, push to the receivers, acknowledge to Redis.

    async def _committed(self, lease: ShardLease, entries: list[ChatEntry], outcomes: list[SaveOutcome]) -> None:
        ts = now_ms()
        pairs = list(zip(entries, outcomes, strict=True))
        good = [(entry, outcome) for entry, outcome in pairs if outcome.verdict is not SaveVerdict.MISMATCH]
        for entry, outcome in good:
            self._metrics.chat_save_lag.observe(max(ts - entry.created_ms, 0) / 1000)
            if outcome.verdict is SaveVerdict.EXISTS:
                self._metrics.chat_dup_db.inc()
        rows = [self._saved_entry(entry, outcome) for entry, outcome in good]
        owners, found = await self._look_up(good)
        await self._push(lease, good, owners)
        await self._delivery.notify([_saved_notice(row, ts) for row in rows], found)
        await self._acknowledge(lease, rows)
        for entry, outcome in pairs:
            if outcome.verdict is SaveVerdict.MISMATCH:
                await self._failed.mismatched(lease, entry, outcome.message.id)

    def _saved_entry(self, entry: ChatEntry, outcome: SaveOutcome) -> SavedEntry:
        """With the body that is stored: a repeated clientMsgId does not change the first message."""
        stored = outcome.message
        if stored.body == entry.body:
            return SavedEntry(entry, stored.id)
        self._refusals.note_other_body(entry.sender, entry.client_msg_id, stored.id)
        return SavedEntry(msgspec.structs.replace(entry, body=stored.body), stored.id, duplicate=True)

    async def _look_up(
        self, saved: list[tuple[ChatEntry, SaveOutcome]]
    ) -> tuple[Mapping[int, str], Mapping[int, str] | None]:
        """Where the receivers are, and, if Redis knows, the senders: looked up after the commit, and once for both."""
        receivers = [entry.to for entry, _ in saved]
        try:
            found = await self._delivery.look_up(list(dict.fromkeys([*receivers, *(one.sender for one, _ in saved)])))
        except StoreError:
            return self._delivery.local_owners(receivers), None
        return found, found

    async def _push(
        self, lease: ShardLease, saved: list[tuple[ChatEntry, SaveOutcome]], owners: Mapping[int, str]
    ) -> None:
        """To receivers that have not got it, or got it on a connection that is not theirs any more.

        A former holder may have pushed it: the receiver's connection drops what it has.
        """
        delivered = await self._apply_early(saved)
        pushed_to = {entry.id: self._pushed.take(entry.id) or entry.pushed_to for entry, _ in saved}
        pushes = [
            MessagePush.of(outcome.message)
            for entry, outcome in saved
            if outcome.message.status is Status.SAVED
            and pushed_to[entry.id] != owners.get(entry.to, "")
            and entry.id not in delivered
        ]
        if pushes:
            began = monotonic()
            # Another holder may have pushed them long ago, and the receivers may have forgotten that they have them.
            lease.check()
            await self._delivery.push(pushes, owners, in_line=lease.in_line)
            self._metrics.chat_deliver.observe(monotonic() - began)
        await self._resend_first(lease, {entry.to for entry, _ in saved})

    async def _resend_first(self, lease: ShardLease, receivers: set[int]) -> None:
        """The resend of receivers that missed something begins before the sender learns that its message is saved.

        From then on other instances may push newer messages of that sender. Limited to RESEND_TIMEOUT_S: in a
        Cluster a part of Redis may stay unavailable, and the other messages of this shard do not depend on it.
        """
        delivery, until = self._delivery, monotonic() + RESEND_TIMEOUT_S
        while delivery.is_resend_due(receivers) and monotonic() < until and not lease.stopping:
            lease.check()
            try:
                await delivery.resend_first(receivers)
            except StoreError:
                await asyncio.sleep(BACK_OFF_S[1])

    async def _apply_early(self, saved: list[tuple[ChatEntry, SaveOutcome]]) -> set[int]:
        """Receipts that came before the row; only what was pushed before it was saved can have one.

        By its mode, not by the connection it was pushed to: an earlier holder may have pushed it and died.
        """
        by_user: dict[int, list[int]] = {}
        for entry, _ in saved:
            if entry.mode == Path.DELIVER_FIRST:
                by_user.setdefault(entry.to, []).append(entry.id)
        return await self._receipts.apply_early_of(by_user) if by_user else set()

    async def _acknowledge(self, lease: ShardLease, rows: list[SavedEntry]) -> None:
        """Redis deletes the entries. A sender that sent a message again since it was notified is notified again first:
        otherwise it would wait for ever."""
        while rows:
            finish = partial(self._shards.finish_saved, lease.shard, lease.holder, lease.stream, rows)
            rows = await lease.retry(finish)
            if rows:
                await self._delivery.notify([_saved_notice(row, now_ms()) for row in rows])


async def _close_when_stopped(reader: Dedicated, lease: ShardLease) -> None:
    """Ends the wait for new messages."""
    await lease.stopped.wait()
    await reader.close()


def _are_early(entries: list[ChatEntry | Unreadable]) -> bool:
    return all(isinstance(entry, ChatEntry) and entry.mode == Path.DELIVER_FIRST for entry in entries)


def _row(entry: ChatEntry) -> NewMessage:
    return NewMessage(
        entry.id, entry.client_msg_id, entry.sender, entry.to, entry.msg_type, entry.body, entry.created_ms,
        entry.lang,
    )  # fmt: skip


def _saved_notice(saved: SavedEntry, ts: int) -> SenderNotice:
    entry, duplicate = saved.entry, saved.duplicate
    frame = wire.ack(AckType.SAVED, entry.sender, entry.client_msg_id, saved.row, ts, entry.body, duplicate=duplicate)
    return SenderNotice(entry.sender, frame, entry.id, saved=entry.client_msg_id)
