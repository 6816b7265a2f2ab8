"""The save stage of a shard: batches become rows, their senders are told, their receivers get them, Redis forgets them.

    to_save ─▶ one transaction ─▶ ACK saved ─▶ push ─▶ XACK
                   │ the database is away: again, with back-off; nothing is acknowledged to Redis
                   │ a row that cannot be written: found by halves, tried again, then a dead letter
                   └ fenced: stop

In this order, so that whatever is interrupted is done again: nothing is acknowledged to Redis that is not in SQL or
among the dead letters, and nobody is told saved before it is.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic

import msgspec
import structlog

from dragoman.archive import Archive, ArchiveAway, BadRow, Fenced, NewMessage, Outcome, Status, Verdict
from dragoman.domain.chat.switches import Path
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Reason
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Courier, Delivery, Tell
from dragoman.services.chat.deliver import give_up, given, paused, persist, tell_unreadable
from dragoman.services.chat.desk import Repeats
from dragoman.services.chat.holding import Holding, LostShard
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.switchboard import Switchboard
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Entry, SavedEntry, Shards, Unreadable
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
MAKE_UP_S = 5.0
IDLE_S = 1.0  # what another let go of is found this late


@dataclass(frozen=True, slots=True)
class SaveTools:
    shards: Shards
    archive: Archive
    courier: Courier
    receipts: Receipts
    switchboard: Switchboard
    metrics: Metrics
    max_deliveries: int
    repeats: Repeats


class SaveStage:
    def __init__(self, tools: SaveTools) -> None:
        self._tools = tools

    async def run(self, holding: Holding) -> None:
        """Until the shard is given up or lost; what the last holder left pending comes first."""
        tools, after = self._tools, "0"
        while not holding.stopping:
            holding.check()
            holding.more_to_save.clear()
            count = tools.switchboard.current.batch_size
            try:
                entries = given(await tools.shards.next_to_save(holding.shard, holding.holder, after, count), holding)
                await self.work(holding, entries)
                if entries:
                    holding.saved_up_to(entries[-1].entry)
            except StoreError as error:
                after = "0"
                await paused(tools.shards, holding, error)
                continue
            if after != ">":
                after = entries[-1].entry if entries else ">"
            elif not entries:
                holding.nothing_to_save()
                await _signal(holding)

    async def work(self, holding: Holding, entries: list[Entry | Unreadable]) -> None:
        """One batch, in order."""
        known = list[Entry]()
        for entry in entries:
            if isinstance(entry, Entry):
                known.append(entry)
            elif not entry.newer:
                log.error("a message cannot be read", shard=holding.shard, entry=entry.entry, why=entry.why)
                tell = partial(tell_unreadable, self._tools.courier, entry)
                await give_up(tell, self._tools.shards.bury, holding, entry, entry.why, 1)
                self._tools.metrics.chat_dead.inc()
        if known:
            await self._save(holding, known)

    # -- into SQL --------------------------------------------------------------------------------

    async def _save(self, holding: Holding, entries: list[Entry]) -> None:
        """Write them together, or find by halves what cannot be written."""
        try:
            outcomes = await self._commit(holding, entries)
        except BadRow as error:
            if len(entries) == 1:
                await self._try_alone(holding, entries[0], str(error))
                return
            half = len(entries) // 2
            await self._save(holding, entries[:half])
            await self._save(holding, entries[half:])
            return
        await self._saved(holding, entries, outcomes)

    async def _commit(self, holding: Holding, entries: list[Entry]) -> list[Outcome]:
        rows = [_row(entry) for entry in entries]
        tries = 0
        while True:
            holding.check()
            try:
                return await self._tools.archive.save(rows, shard=holding.shard, fence=holding.fence)
            except Fenced:
                raise LostShard(f"shard {holding.shard} was written with a higher fence") from None
            except ArchiveAway as error:
                self._tools.metrics.chat_save_fail.inc()
                if tries in (0, 10):
                    log.warning(
                        "a chat shard waits for the database", shard=holding.shard, error=str(error), limited=True
                    )
                await asyncio.sleep(BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)])
                tries += 1
                if holding.stopping:
                    raise LostShard(f"shard {holding.shard} is given up while the database is away") from None

    async def _try_alone(self, holding: Holding, entry: Entry, why: str) -> None:
        """A row that was refused by itself gets a few more tries, and then a person to look at it."""
        for tries in range(1, self._tools.max_deliveries):
            await asyncio.sleep(BACK_OFF_S[min(tries - 1, 2)])
            try:
                outcomes = await self._commit(holding, [entry])
            except BadRow as error:
                why = str(error)
            else:
                await self._saved(holding, [entry], outcomes)
                return
        self._tools.metrics.chat_save_fail.inc()
        await self._fail(holding, entry, why, self._tools.max_deliveries)

    # -- after the commit ------------------------------------------------------------------------

    async def _saved(self, holding: Holding, entries: list[Entry], outcomes: list[Outcome]) -> None:
        tools, ts = self._tools, now_ms()
        pairs = list(zip(entries, outcomes, strict=True))
        good = [(entry, outcome) for entry, outcome in pairs if outcome.verdict is not Verdict.MISMATCH]
        for entry, outcome in good:
            tools.metrics.chat_save_lag.observe(max(ts - entry.created_ms, 0) / 1000)
            if outcome.verdict is Verdict.EXISTS:
                tools.metrics.chat_dup_db.inc()
        rows = [self._row_of(entry, outcome) for entry, outcome in good]
        tells = [_told(row, ts) for row in rows]
        await self._push(holding, good, await self._tell(tells, [entry.to for entry, _ in good]))
        await self._done(holding, rows)
        for entry, outcome in pairs:
            if outcome.verdict is Verdict.MISMATCH:
                await self._refuse(holding, entry, outcome.message.id)

    def _row_of(self, entry: Entry, outcome: Outcome) -> SavedEntry:
        """With the body that is stored: a repeated clientMsgId does not change the first message."""
        stored = outcome.message
        if stored.body == entry.body:
            return SavedEntry(entry, stored.id)
        self._tools.repeats.note(entry.sender, entry.client_msg_id, stored.id)
        return SavedEntry(msgspec.structs.replace(entry, body=stored.body), stored.id, duplicate=True)

    async def _tell(self, tells: list[Tell], receivers: list[int]) -> dict[int, str]:
        """Answers where the receivers are: looked up after the commit, and once for both."""
        courier, found = self._tools.courier, None
        try:
            owners = found = await courier.look_up(list(dict.fromkeys([*receivers, *(one.user for one in tells)])))
        except StoreError:
            owners = courier.owners_here(receivers)
        await courier.tell(tells, found)
        return owners

    async def _push(self, holding: Holding, saved: list[tuple[Entry, Outcome]], owners: Mapping[int, str]) -> None:
        """To receivers that have not got it, or got it on a connection that is not theirs any more."""
        tools = self._tools
        delivered = await self._apply_early(saved)
        deliveries = [
            Delivery.of(outcome.message)
            for entry, outcome in saved
            if outcome.message.status is Status.SAVED
            and entry.pushed_to != owners.get(entry.to, "")
            and entry.id not in delivered
        ]
        if deliveries:
            began = monotonic()
            # Another holder may have pushed them long ago, and the receivers may have forgotten that they have them.
            holding.check()
            await tools.courier.push(deliveries, owners)
            tools.metrics.chat_deliver.observe(monotonic() - began)
        await self._make_up(holding, {entry.to for entry, _ in saved})

    async def _make_up(self, holding: Holding, receivers: set[int]) -> None:
        """Who missed something because Redis was away knows it before its sender counts as having nothing under way.

        From then on newer messages of that sender may be saved, and pushed, by others. Not for ever: in a Cluster a
        part of Redis may stay away, and the other messages of this shard have nothing to do with it.
        """
        courier, until = self._tools.courier, monotonic() + MAKE_UP_S
        while any(map(courier.is_behind, receivers)) and monotonic() < until and not holding.stopping:
            holding.check()
            try:
                await courier.make_up(receivers)
            except StoreError:
                await asyncio.sleep(BACK_OFF_S[1])

    async def _apply_early(self, saved: list[tuple[Entry, Outcome]]) -> set[int]:
        """Receipts that came before the row; only what was pushed before it was saved can have one.

        By its mode, not by whom it was pushed to: an earlier holder may have pushed it and died.
        """
        by_user: dict[int, list[int]] = {}
        for entry, _ in saved:
            if entry.mode == Path.DELIVER_FIRST:
                by_user.setdefault(entry.to, []).append(entry.id)
        found = await asyncio.gather(*(self._tools.receipts.apply_early(user, ids) for user, ids in by_user.items()))
        return set().union(*found)

    async def _done(self, holding: Holding, rows: list[SavedEntry]) -> None:
        """Redis forgets them. Who asked again since we told everybody is told again first: it would wait for ever."""
        shards = self._tools.shards
        while rows:
            asked = await persist(partial(shards.saved, holding.shard, holding.holder, rows), holding)
            stay = {row.entry.entry for row in asked}
            for row in rows:
                if row.entry.entry not in stay:
                    holding.settled(row.entry.sender, row.entry.to, row.entry.id)
            rows = asked
            if rows:
                await self._tools.courier.tell([_told(row, now_ms()) for row in rows])

    # -- what will never be a row ----------------------------------------------------------------

    async def _fail(self, holding: Holding, entry: Entry, why: str, tries: int) -> None:
        log.error("a message cannot be saved", shard=holding.shard, serverMsgId=entry.id, why=why, tries=tries)
        tell = partial(self._tell_failed, entry, Reason.SAVE_FAILED)
        await give_up(tell, self._tools.shards.bury, holding, entry, why, tries)
        self._tools.metrics.chat_dead.inc()
        holding.settled(entry.sender, entry.to, entry.id)

    async def _refuse(self, holding: Holding, entry: Entry, stored: int) -> None:
        """Its sender has used the clientMsgId for another receiver before. That is its fault: nothing is kept of it."""
        why = f"clientMsgId is that of message {stored}, which has another receiver"
        about = {"user": entry.sender, "serverMsgId": entry.id, "why": why}
        log.warning("a message is refused", shard=holding.shard, **about, limited=True, each="user")
        tell = partial(self._tell_failed, entry, Reason.DUPLICATE_MSG_ID_MISMATCH)
        await give_up(tell, partial(self._tools.shards.bury, keep=False), holding, entry, why, 1)
        holding.settled(entry.sender, entry.to, entry.id)

    async def _tell_failed(self, entry: Entry, reason: Reason) -> None:
        frame = wire.error(reason, now_ms(), entry.client_msg_id, entry.id)
        await self._tools.courier.tell([Tell(entry.sender, frame, entry.id, keep=True)])


async def _signal(holding: Holding) -> None:
    """Until the deliver stage has handed something on."""
    try:
        async with asyncio.timeout(IDLE_S):
            await holding.more_to_save.wait()
    except TimeoutError:
        pass


def _row(entry: Entry) -> NewMessage:
    return NewMessage(
        entry.id, entry.client_msg_id, entry.sender, entry.to, entry.msg_type, entry.body, entry.created_ms
    )


def _told(saved: SavedEntry, ts: int) -> Tell:
    entry, duplicate = saved.entry, saved.duplicate
    frame = wire.ack(AckType.SAVED, entry.sender, entry.client_msg_id, saved.row, ts, entry.body, duplicate=duplicate)
    return Tell(entry.sender, frame, entry.id, saved=entry.client_msg_id)
