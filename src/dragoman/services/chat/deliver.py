"""The deliver stage of a shard: reads what was accepted, pushes what may go out before it is saved, hands all on.

What the last holder left pending comes first. A push cannot be fenced, so an old holder may push something once
more, never something new out of order: receivers drop it by its id.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TypeVar

import structlog

from dragoman.domain.chat.pace import Pace
from dragoman.domain.chat.switches import Path
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Reason
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Courier, Delivery, Tell
from dragoman.services.chat.holding import Holding, LostShard
from dragoman.services.chat.switchboard import Switchboard
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Entry, Shards, Unreadable
from dragoman.store.errors import Refused, StoreError

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY_S = 0.2


class DeliverStage:
    def __init__(self, shards: Shards, courier: Courier, switchboard: Switchboard, metrics: Metrics) -> None:
        self._shards, self._courier, self._switchboard, self._metrics = shards, courier, switchboard, metrics
        self._pace = Pace()

    async def run(self, holding: Holding) -> None:
        """Until the shard is given up or lost."""
        reader, after = self._shards.reader(holding.shard), "0"
        holding.interrupt = reader.close
        try:
            while not holding.stopping:
                holding.check()
                began = monotonic()
                switches = self._switchboard.current
                try:
                    entries = await self._shards.next_accepted(
                        reader, holding.shard, holding.holder, after, switches.batch_size, switches.block_ms
                    )
                    await self.work(holding, given(entries, holding))
                except StoreError as error:
                    # A read that failed may have given us entries that we have not seen: look at what is pending.
                    after = "0"
                    if not holding.stopping:
                        await paused(self._shards, holding, error)
                    continue
                if after != ">":
                    after = entries[-1].entry if entries else ">"
                elif entries and len(entries) < switches.batch_size:
                    await asyncio.sleep(self._pace.pause(began, monotonic()))
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
        holding.handing_on = True
        try:
            pushed_to, tried = await self._push(holding, known)
            for entry in known:
                holding.went_on(entry.sender, entry.to, entry.id, pushed_to.get(entry.id, ""))
            moves = [(entry.entry, pushed_to.get(entry.id, "")) for entry in known]
            await persist(lambda: self._shards.moved(holding.shard, holding.holder, moves, tried), holding)
            holding.more_to_save.set()
        finally:
            holding.handing_on = False
        self._metrics.chat_deliver.observe(monotonic() - began)

    async def _push(self, holding: Holding, entries: list[Entry]) -> tuple[dict[int, str], set[str]]:
        """Whom each was pushed to, by id, and the entries that were tried; the others go out when they are saved."""
        early = {entry.to for entry in entries if entry.mode == Path.DELIVER_FIRST}
        if not early:
            return {}, set()
        owners = await self._courier.owners(early)
        ready, held = list[Entry](), set[tuple[int, int]]()
        for entry in entries:
            pair, owner = (entry.sender, entry.to), owners.get(entry.to, "")
            if entry.mode == Path.DELIVER_FIRST and pair not in held and holding.may_push_now(*pair, owner):
                ready.append(entry)
            else:
                held.add(pair)
        holding.check()
        missed = await self._courier.push([_delivery(entry) for entry in ready], owners)
        reached = {entry.id: owners[entry.to] for entry in ready if entry.id not in missed}
        return reached, {entry.entry for entry in ready if entry.to in owners}

    async def _set_aside(self, holding: Holding, entry: Unreadable) -> None:
        log.error("an accepted message cannot be read", shard=holding.shard, entry=entry.entry, why=entry.why)
        tell = partial(tell_unreadable, self._courier, entry)
        await give_up(tell, partial(self._shards.bury, from_accepted=True), holding, entry, entry.why, 1)
        self._metrics.chat_dead.inc()


async def persist(step: Callable[[], Awaitable[T | None]], holding: Holding) -> T:
    """Repeat an idempotent step until Redis has done it; None of it means that the shard is not ours: LostShard."""
    while True:
        holding.check()
        try:
            done = await step()
            if done is None:
                raise LostShard(f"shard {holding.shard} has another holder")
            return done
        except StoreError as error:
            log.warning("a chat shard waits for Redis", shard=holding.shard, error=str(error), limited=True)
            await asyncio.sleep(RETRY_S)


async def give_up(
    tell: Callable[[], Awaitable[None]],
    bury: Callable[..., Awaitable[int | None]],
    holding: Holding,
    entry: Entry | Unreadable,
    why: str,
    tries: int,
) -> None:
    """Its sender is told, then it is buried. Told first: who is told twice is told, who is not told does not know.

    A sender that asks in between is told again, and only then is it buried: it would wait for ever.
    """
    asked, told = 0, False
    while asked or not told:
        await tell()
        told = True
        step = partial(bury, holding.shard, holding.holder, entry, why, tries, asked=asked)
        asked = await persist(step, holding)


def given(entries: list[Entry | Unreadable] | None, holding: Holding) -> list[Entry | Unreadable]:
    """What a read gave us, or LostShard."""
    if entries is None:
        raise LostShard(f"shard {holding.shard} has another holder")
    return entries


async def paused(shards: Shards, holding: Holding, error: StoreError) -> None:
    """Redis is away, or came back without our groups."""
    log.warning("a chat shard waits for Redis", shard=holding.shard, error=str(error), limited=True)
    # Not by its first word: Redis 6.2 puts words of its own before what a command says inside a script.
    if isinstance(error, Refused) and "NOGROUP" in str(error):
        with suppress(StoreError):
            await shards.ensure_groups(holding.shard)
    await asyncio.sleep(RETRY_S)


async def tell_unreadable(courier: Courier, entry: Unreadable) -> None:
    """Its sender hears that it failed, if it can be made out who that is."""
    sender, client, id = (entry.fields.get(name, "") for name in ("fromUserId", "clientMsgId", "serverMsgId"))
    if sender.isdecimal() and client:
        known = int(id) if id.isdecimal() else 0
        frame = wire.error(Reason.SAVE_FAILED, now_ms(), client, known or None)
        await courier.tell([Tell(int(sender), frame, known, keep=True)])


def _delivery(entry: Entry) -> Delivery:
    frame = wire.chat(
        entry.sender, entry.to, entry.client_msg_id, entry.id, entry.msg_type, entry.body, entry.created_ms
    )
    return Delivery(entry.to, entry.id, entry.sender, frame)
