"""Accepted messages that will never be a row: their senders get an ERROR, and they become dead letters.

The sender is notified before the entry is moved: a duplicate notice is harmless, a missing one is not.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Reason
from dragoman.services.chat.delivery import Delivery, SenderNotice
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.shard_lease import ShardLease
from dragoman.services.metrics import Metrics
from dragoman.store.chat.entries import ChatEntry, Unreadable
from dragoman.store.chat.shards import Shards

log = structlog.get_logger(__name__)


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
