"""The deliver stage of a shard: accepted ─▶ push what may go out before it is saved ─▶ to_save.

It runs under a `ShardLease` and begins with what the last holder left pending. A push cannot be fenced, so a former
holder may push a message once more, never a new one out of order: receivers drop it by its id.
"""

import asyncio
from time import monotonic

from dragoman.domain.chat.shards import ReadThrottle
from dragoman.domain.chat.switches import Path
from dragoman.protocol import chat as wire
from dragoman.services.chat.delivery import Delivery, MessagePush
from dragoman.services.chat.failed_messages import FailedMessages
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.shard_lease import ShardLease, wait_for_redis
from dragoman.services.metrics import Metrics
from dragoman.store.chat.entries import ChatEntry, Unreadable
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import StoreError
from dragoman.store.redis import Dedicated


class DeliverStage:
    """Reads what was accepted, pushes what may go out before it is saved, and moves everything to the save stage."""

    def __init__(self, shards: Shards, delivery: Delivery, switches: FeatureSwitches, metrics: Metrics) -> None:
        self._shards, self._delivery, self._switches, self._metrics = shards, delivery, switches, metrics
        self._failed = FailedMessages(shards, delivery, metrics)
        self._pace = ReadThrottle()

    async def run(self, lease: ShardLease) -> None:
        """Until the shard is released or lost."""
        reader, after = self._shards.reader(lease.shard), "0"
        interrupting = asyncio.create_task(_close_when_stopped(reader, lease))
        try:
            while not lease.stopping:
                lease.check()
                began = monotonic()
                switches = self._switches.current
                try:
                    entries = await self._shards.next_accepted(
                        reader, lease.shard, lease.holder, after, switches.batch_size, switches.block_ms
                    )
                    await self.handle(lease, lease.checked(entries))
                except StoreError as error:
                    # A read that failed may have assigned entries to us that we have not seen: read what is pending.
                    after = "0"
                    if not lease.stopping:
                        await wait_for_redis(self._shards, lease, error)
                    continue
                if after != ">":
                    after = entries[-1].entry if entries else ">"
                elif entries and len(entries) < switches.batch_size:
                    await asyncio.sleep(self._pace.pause(began, monotonic()))
        finally:
            interrupting.cancel()
            await reader.close()

    async def handle(self, lease: ShardLease, entries: list[ChatEntry | Unreadable]) -> None:
        """One batch, in order."""
        known = [entry for entry in entries if isinstance(entry, ChatEntry)]
        if len(known) < len(entries):
            await self._failed.unreadable(lease, entries, from_accepted=True)
        if not known:
            return
        began = monotonic()
        with lease.moving():
            pushed_to, tried = await self._push(lease, known)
            for entry in known:
                lease.early.moved(entry.sender, entry.to, entry.id, pushed_to.get(entry.id, ""))
            moves = [(entry.entry, pushed_to.get(entry.id, "")) for entry in known]
            await lease.retry(lambda: self._shards.move_to_save(lease.shard, lease.holder, moves, tried))
            lease.more_to_save.set()
        self._metrics.chat_deliver.observe(monotonic() - began)

    async def _push(self, lease: ShardLease, entries: list[ChatEntry]) -> tuple[dict[int, str], set[str]]:
        """The connection each was pushed to, by id, and the entries whose push was tried.

        The others go out when they are saved.
        """
        early = {entry.to for entry in entries if entry.mode == Path.DELIVER_FIRST}
        if not early:
            return {}, set()
        owners = await self._delivery.owners(early)
        ready, waiting = list[ChatEntry](), set[tuple[int, int]]()
        for entry in entries:
            pair, owner = (entry.sender, entry.to), owners.get(entry.to, "")
            if entry.mode == Path.DELIVER_FIRST and pair not in waiting and lease.early.may_push(*pair, owner):
                ready.append(entry)
            else:
                waiting.add(pair)
        lease.check()
        unreached = await self._delivery.push([_message_push(entry) for entry in ready], owners)
        reached = {entry.id: owners[entry.to] for entry in ready if entry.id not in unreached}
        return reached, {entry.entry for entry in ready if entry.to in owners}


async def _close_when_stopped(reader: Dedicated, lease: ShardLease) -> None:
    """Ends the wait for new messages."""
    await lease.stopped.wait()
    await reader.close()


def _message_push(entry: ChatEntry) -> MessagePush:
    frame = wire.chat(
        entry.sender, entry.to, entry.client_msg_id, entry.id, entry.msg_type, entry.body, entry.created_ms,
        lang=entry.lang,
    )  # fmt: skip
    return MessagePush(entry.to, entry.id, entry.sender, frame)
