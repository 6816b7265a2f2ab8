"""The deliver stage of a shard: reads what was accepted, pushes what may go out before it is saved, hands all on.

What the last holder left pending comes first. A push cannot be fenced, so an old holder may push something once
more, never something new out of order: receivers drop it by its id.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from dragoman.domain.chat.switches import Path
from dragoman.protocol import chat as wire
from dragoman.services.chat.courier import Courier, Delivery
from dragoman.services.chat.holding import Holding, LostShard
from dragoman.services.chat.switchboard import Switchboard
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Entry, Shards, Unreadable
from dragoman.store.errors import Refused, StoreError

log = structlog.get_logger(__name__)

# A busy shard is read this often at most: what comes meanwhile shares the pushes, the scripts and the transaction.
PACE_S = 0.01
RETRY_S = 0.2
NO_STREAM = ("NOGROUP", "UNBLOCKED")


class DeliverStage:
    def __init__(self, shards: Shards, courier: Courier, switchboard: Switchboard, metrics: Metrics) -> None:
        self._shards, self._courier, self._switchboard, self._metrics = shards, courier, switchboard, metrics

    async def run(self, holding: Holding) -> None:
        """Until the shard is given up or lost."""
        reader, after = self._shards.reader(holding.shard), "0"
        try:
            while not holding.stopping:
                holding.check()
                began = monotonic()
                switches = self._switchboard.current
                try:
                    entries = await self._shards.read_accepted(
                        reader, holding.shard, after, switches.batch_size, switches.block_ms
                    )
                    await self.work(holding, entries)
                except StoreError as error:
                    # A read that failed may have given us entries that we have not seen: look at what is pending.
                    after = await _paused(self._shards, holding, error)
                    continue
                if after != ">":
                    after = entries[-1].entry if entries else ">"
                elif entries and len(entries) < switches.batch_size:
                    await asyncio.sleep(max(began + PACE_S - monotonic(), 0))
        finally:
            await reader.close()

    async def work(self, holding: Holding, entries: list[Entry | Unreadable]) -> None:
        """One batch, in order."""
        known = list[Entry]()
        for entry in entries:
            if isinstance(entry, Entry):
                known.append(entry)
            elif not entry.newer:
                await self._set_aside(holding, entry)
        if not known:
            return
        began = monotonic()
        pushed_to = await self._push(holding, known)
        moves = [(entry.entry, owner) for entry, owner in zip(known, pushed_to, strict=True)]
        await persist(lambda: self._shards.moved(holding.shard, holding.holder, moves), holding)
        holding.more_to_save.set()
        self._metrics.chat_deliver.observe(monotonic() - began)

    async def _push(self, holding: Holding, entries: list[Entry]) -> list[str]:
        """Whom each was pushed to; '' for what goes out when it is saved."""
        early = [entry.to for entry in entries if entry.mode == Path.DELIVER_FIRST]
        owners = await self._courier.owners(early) if early else {}
        deliveries, pushed_to = list[Delivery](), list[str]()
        for entry in entries:
            owner = owners.get(entry.to, "") if entry.mode == Path.DELIVER_FIRST else ""
            if not holding.may_push_now(entry.sender, entry.to, owner):
                owner = ""
            else:
                deliveries.append(_delivery(entry))
            holding.went_on(entry.sender, entry.to, owner)
            pushed_to.append(owner)
        holding.check()
        if deliveries:
            await self._courier.push(deliveries, owners)
        return pushed_to

    async def _set_aside(self, holding: Holding, entry: Unreadable) -> None:
        log.error("an accepted message cannot be read", shard=holding.shard, entry=entry.entry, why=entry.why)
        bury = self._shards.bury
        await persist(lambda: bury(holding.shard, holding.holder, entry, entry.why, 1, from_accepted=True), holding)


async def persist(step: Callable[[], Awaitable[bool]], holding: Holding) -> None:
    """Repeat an idempotent step until Redis has done it; LostShard when the shard is not ours."""
    while True:
        holding.check()
        try:
            if not await step():
                raise LostShard(f"shard {holding.shard} has another holder")
            return
        except StoreError as error:
            await _paused(None, holding, error)


async def _paused(shards: Shards | None, holding: Holding, error: StoreError) -> str:
    """Redis is away, or came back without our groups; where to go on reading."""
    if shards is not None and isinstance(error, Refused) and error.word in NO_STREAM:
        await shards.ensure_groups(holding.shard)
    else:
        log.warning("a chat shard waits for Redis", shard=holding.shard, error=str(error))
    await asyncio.sleep(RETRY_S)
    return "0"


def _delivery(entry: Entry) -> Delivery:
    frame = wire.chat(
        entry.sender, entry.to, entry.client_msg_id, entry.id, entry.msg_type, entry.body, entry.created_ms
    )
    return Delivery(entry.to, entry.id, entry.sender, frame)
