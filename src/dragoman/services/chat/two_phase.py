"""Two phases: a message is accepted by Redis while its sender waits, and saved and pushed by the holder of its shard.

    Acceptance    claim and append in Redis ─▶ ACK accepted
    DeliverStage  accepted ─▶ push what may go out before it is saved ─▶ to_save
    SaveStage     to_save ─▶ one transaction ─▶ ACK saved ─▶ push ─▶ XACK
                                 │ the database is unavailable: again, with back-off; Redis keeps the entries
                                 │ a row that cannot be written: found by halves, retried, then a dead letter
                                 └ fenced: stop

Both stages run under one `ShardLease`, and begin with what the last holder left pending. The order of the steps makes
whatever is interrupted be done again: an entry is acknowledged to Redis only if it is in SQL or among the dead letters,
and *saved* is sent only of rows. A push cannot be fenced, so a former holder may push a message once more, never a new
one out of order: receivers drop it by its id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TypeVar

import msgspec
import structlog

from dragoman.archive import (
    Archive,
    ArchiveAway,
    ArchiveError,
    BadRow,
    Fenced,
    NewMessage,
    Outcome,
    Status,
    Verdict,
)
from dragoman.domain.chat.gate import Gate
from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.shards import ReadPace
from dragoman.domain.chat.switches import Path
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Reason
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.delivery import Delivery, MessagePush, ResendNotBegun, SenderNotice
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.chat.one_phase import Refusals, digest_of, was_paused
from dragoman.services.chat.perf import Perf
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.replicas import Replicas
from dragoman.services.chat.shard_lease import LostShard, ShardLease
from dragoman.services.loops import ReadFirstTimeout, retry
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Accepted, Entry, SavedEntry, Shards, Unreadable
from dragoman.store.errors import RedisAway, Refused, StoreError, UnknownOutcome
from dragoman.store.redis import Dedicated

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY_S = 0.2
BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
RESEND_TIMEOUT_S = 5.0
IDLE_S = 1.0  # entries that a former holder released are found this late
# Errors of Redis that mean it cannot work now; any other is a bug of ours.
UNAVAILABLE = frozenset(
    {"LOADING", "READONLY", "CLUSTERDOWN", "OOM", "MASTERDOWN", "NOREPLICAS", "MISCONF", "TRYAGAIN"}
)


# -- accept --------------------------------------------------------------------------------------


class NotAccepted(Exception):
    """Redis did not accept `row`; or, `perhaps`, it did, and did not say so in time.

    `ours`: Redis was not the cause. This or another instance was paused, and the others may have gone on.
    """

    def __init__(self, why: str, row: NewMessage, *, perhaps: bool = False, ours: bool = False) -> None:
        super().__init__(why)
        self.row, self.perhaps, self.ours = row, perhaps, ours


class Acceptance:
    def __init__(
        self,
        instance: str,
        shards: Shards,
        archive: Archive,
        delivery: Delivery,
        switches: FeatureSwitches,
        gate: Gate,
        ids: IdMaker,
        replicas: Replicas,
        refusals: Refusals,
        perf: Perf,
        metrics: Metrics,
        timeout_s: float,
    ) -> None:
        self._instance, self._shards, self._archive, self._delivery = instance, shards, archive, delivery
        self._switches, self._gate, self._ids, self._replicas = switches, gate, ids, replicas
        self._refusals, self._perf, self._metrics, self._timeout_s = refusals, perf, metrics, timeout_s

    async def resend_after_move(self, user: ChatUser, receiver: int, path: Path) -> None:
        """Before the first message of a sender that moved here, its receiver is sent earlier ones from the archive.

        An instance that is slow to begin the resend does not delay the message: the receiver may have been connected
        to the one that died.
        """
        self._delivery.must_resend(receiver)
        if path is Path.OFF or not self._gate.open:
            return  # this instance pushes the message itself, after the resend
        try:
            async with ReadFirstTimeout(self._timeout_s):
                await self._delivery.resend_first([receiver])
        except ResendNotBegun as error:
            log.debug("a resend may not have begun yet", user=receiver, error=str(error))
        except (StoreError, TimeoutError):
            user.sender.must_resend.add(receiver)

    async def accept(
        self,
        user: ChatUser,
        row: NewMessage,
        path: Path,
        sent_ms: int,
        received_at: float,
        queued: int,
        verify: Callable[[ChatUser], Awaitable[None]],
    ) -> Accepted:
        """Answer it by what Redis says; raises NotAccepted."""
        began = monotonic()
        if not self._gate.may_ask(began):
            raise NotAccepted("Redis failed a moment ago", row)
        row, verdict, number = await self._append(user, row, path, sent_ms, verify)
        self._gate.worked()
        wrote_s = monotonic() - began
        await self._answer(user, row, verdict, number)
        if verdict is Accepted.OK:
            user.unsaved.accepted(row.id)
            self._perf.accepted(row, came_at=received_at, wrote_s=wrote_s, queue=queued)
        elif verdict in (Accepted.DUPLICATE, Accepted.DUPLICATE_OTHER) and user.unsaved.count == 0:
            user.unsaved.lost_count()  # another instance accepted it after we counted, and it is on its way
        return verdict

    async def _append(
        self, user: ChatUser, row: NewMessage, path: Path, sent_ms: int, verify: Callable[[ChatUser], Awaitable[None]]
    ) -> tuple[NewMessage, Accepted, int]:
        share = max(self._switches.current.max_backlog // self._shards.count, 1)
        digest, timeout = digest_of(row.body), ReadFirstTimeout(self._timeout_s)
        try:
            async with timeout:
                await self._verify(user, row, verify)
                await self._resend_first(user, row)
                verdict, number = await self._ask(row, path, sent_ms, digest, share)
                while verdict is Accepted.STALE_ID:
                    row = replace(row, id=self._ids.draw(above=number))
                    verdict, number = await self._ask(row, path, sent_ms, digest, share)
        except TimeoutError:
            if was_paused(timeout):
                raise NotAccepted("this process was paused", row, perhaps=True, ours=True) from None
            raise self._failed(f"no answer in {self._timeout_s:g} s", row, perhaps=True) from None
        except Refused as error:
            if not is_unavailable(error):
                self._gate.worked()
                raise
            raise self._failed(str(error), row) from None
        except UnknownOutcome as error:
            raise self._failed(str(error), row, perhaps=True) from None
        except StoreError as error:
            # Too few replicas is such an error as well, and comes after the message was written.
            raise self._failed(str(error), row, perhaps=self._switches.current.wait_replicas > 0) from None
        return row, verdict, number

    async def _verify(self, user: ChatUser, row: NewMessage, verify: Callable[[ChatUser], Awaitable[None]]) -> None:
        """A user that connected while Redis was unavailable has no owner key there, and would get no `saved`."""
        if not user.verified:
            await verify(user)
            if user.socket.closed:
                raise NotAccepted("its session is over", row, ours=True)

    async def _resend_first(self, user: ChatUser, row: NewMessage) -> None:
        """What was saved past Redis goes out before anything accepted now, whichever instance pushes that."""
        if user.sender.must_resend:
            try:
                await self._delivery.resend_first(user.sender.must_resend)
            except ResendNotBegun as error:  # no reason for others to do without Redis
                raise NotAccepted(str(error), row, ours=True) from None
            except StoreError as error:
                raise RedisAway(str(error)) from None
            user.sender.must_resend.clear()

    async def _ask(self, row: NewMessage, path: Path, sent_ms: int, digest: str, share: int) -> tuple[Accepted, int]:
        shards, replicas = self._shards, self._switches.current.wait_replicas
        entry = Entry(
            "", row.id, row.client_msg_id, row.from_user, row.to_user, row.msg_type, row.body, sent_ms,
            row.created_ms, self._instance, path,
        )  # fmt: skip
        if not replicas:
            return await shards.accept(entry, digest, share)
        reply = await shards.accept(entry, digest, share, await self._replicas.redis())
        if reply[0] in (Accepted.OK, Accepted.DUPLICATE):
            await self._replicas.have_it(shards.accepted(shards.of(row.from_user)), replicas)
        return reply

    def _failed(self, why: str, row: NewMessage, *, perhaps: bool = False) -> NotAccepted:
        self._gate.failed(monotonic())
        self._metrics.chat_publish_fail.inc()
        return NotAccepted(why, row, perhaps=perhaps)

    async def _answer(self, user: ChatUser, row: NewMessage, verdict: Accepted, number: int) -> None:
        match verdict:
            case Accepted.OK:
                user.accepted(row, row.id)
            case Accepted.DUPLICATE:
                user.accepted(row, number)
            case Accepted.SAVED:
                user.accepted_and_saved(row, number)
            case Accepted.DUPLICATE_OTHER | Accepted.SAVED_OTHER:
                await self._answer_repeated(user, row, number, saved=verdict is Accepted.SAVED_OTHER)
            case Accepted.MISMATCH:
                user.error(Reason.DUPLICATE_MSG_ID_MISMATCH, row.client_msg_id)
            case Accepted.OVER:
                self._refusals.over_quota(user, row)
            case _:
                self._refusals.busy(user, row)

    async def _answer_repeated(self, user: ChatUser, row: NewMessage, id: int, *, saved: bool) -> None:
        """The first message with this clientMsgId and receiver stands; its sender gets that one's body."""
        body = await self._body_of(row.from_user, id)
        if body is None:
            self._refusals.busy(user, row)
            return
        row, duplicate = self._refusals.first(row, id, body)
        if saved:
            user.accepted_and_saved(row, id, duplicate=duplicate)
        else:
            user.accepted(row, id, duplicate=duplicate)

    async def _body_of(self, sender: int, id: int) -> str | None:
        """None: it cannot be looked up now, or became a dead letter meanwhile; sent again, it will be known."""
        try:
            async with ReadFirstTimeout(self._timeout_s):
                body = await self._shards.unsaved_body(sender, id)
                if body is None and (row := (await self._archive.messages([id])).get(id)) is not None:
                    body = row.body
        except (StoreError, ArchiveError, TimeoutError) as error:
            log.debug("a repeated message cannot be looked up", user=sender, id=id, error=str(error))
            return None
        return body


def is_unavailable(error: Refused) -> bool:
    """Not by its first word alone: Redis 6.2 puts words of its own before what a command says inside a script."""
    return error.word in UNAVAILABLE or any(f" -{word} " in str(error) for word in UNAVAILABLE)


# -- deliver -------------------------------------------------------------------------------------


class DeliverStage:
    """Reads what was accepted, pushes what may go out before it is saved, and moves everything to the save stage."""

    def __init__(self, shards: Shards, delivery: Delivery, switches: FeatureSwitches, metrics: Metrics) -> None:
        self._shards, self._delivery, self._switches, self._metrics = shards, delivery, switches, metrics
        self._pace = ReadPace()

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
                    await self.handle(lease, _unless_lost(entries, lease))
                except StoreError as error:
                    # A read that failed may have assigned entries to us that we have not seen: read what is pending.
                    after = "0"
                    if not lease.stopping:
                        await _wait_for_redis(self._shards, lease, error)
                    continue
                if after != ">":
                    after = entries[-1].entry if entries else ">"
                elif entries and len(entries) < switches.batch_size:
                    await asyncio.sleep(self._pace.pause(began, monotonic()))
        finally:
            interrupting.cancel()
            await reader.close()

    async def handle(self, lease: ShardLease, entries: list[Entry | Unreadable]) -> None:
        """One batch, in order."""
        known = list[Entry]()
        for entry in entries:
            if isinstance(entry, Entry):
                known.append(entry)
            elif not entry.newer:
                await self._fail_unreadable(lease, entry)
        if not known:
            return
        began = monotonic()
        with lease.moving():
            pushed_to, tried = await self._push(lease, known)
            for entry in known:
                lease.early.moved(entry.sender, entry.to, entry.id, pushed_to.get(entry.id, ""))
            moves = [(entry.entry, pushed_to.get(entry.id, "")) for entry in known]
            await _retry(lambda: self._shards.moved(lease.shard, lease.holder, moves, tried), lease)
            lease.more_to_save.set()
        self._metrics.chat_deliver.observe(monotonic() - began)

    async def _push(self, lease: ShardLease, entries: list[Entry]) -> tuple[dict[int, str], set[str]]:
        """The connection each was pushed to, by id, and the entries whose push was tried.

        The others go out when they are saved.
        """
        early = {entry.to for entry in entries if entry.mode == Path.DELIVER_FIRST}
        if not early:
            return {}, set()
        owners = await self._delivery.owners(early)
        ready, waiting = list[Entry](), set[tuple[int, int]]()
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

    async def _fail_unreadable(self, lease: ShardLease, entry: Unreadable) -> None:
        log.error("an accepted message cannot be read", shard=lease.shard, entry=entry.entry, why=entry.why)
        notify = partial(_notify_unreadable, self._delivery, entry)
        await _fail(notify, partial(self._shards.move_to_dead, from_accepted=True), lease, entry, entry.why, 1)
        self._metrics.chat_dead.inc()


async def _close_when_stopped(reader: Dedicated, lease: ShardLease) -> None:
    """Ends the wait for new messages."""
    await lease.stopped.wait()
    await reader.close()


def _message_push(entry: Entry) -> MessagePush:
    frame = wire.chat(
        entry.sender, entry.to, entry.client_msg_id, entry.id, entry.msg_type, entry.body, entry.created_ms
    )
    return MessagePush(entry.to, entry.id, entry.sender, frame)


# -- save ----------------------------------------------------------------------------------------


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
    ) -> None:
        self._shards, self._archive, self._delivery, self._receipts = shards, archive, delivery, receipts
        self._switches, self._metrics, self._refusals = switches, metrics, refusals
        self._max_deliveries = max_deliveries

    async def run(self, lease: ShardLease) -> None:
        """Until the shard is released or lost."""
        after = "0"
        while not lease.stopping:
            lease.check()
            lease.more_to_save.clear()
            count = self._switches.current.batch_size
            try:
                entries = _unless_lost(await self._shards.next_to_save(lease.shard, lease.holder, after, count), lease)
                await self.handle(lease, entries)
                if entries:
                    lease.early.saved_up_to(entries[-1].entry)
            except StoreError as error:
                after = "0"
                await _wait_for_redis(self._shards, lease, error)
                continue
            if after != ">":
                after = entries[-1].entry if entries else ">"
            elif not entries:
                lease.nothing_to_save()
                await _more_to_save(lease)

    async def handle(self, lease: ShardLease, entries: list[Entry | Unreadable]) -> None:
        """One batch, in order."""
        known = list[Entry]()
        for entry in entries:
            if isinstance(entry, Entry):
                known.append(entry)
            elif not entry.newer:
                log.error("a message cannot be read", shard=lease.shard, entry=entry.entry, why=entry.why)
                notify = partial(_notify_unreadable, self._delivery, entry)
                await _fail(notify, self._shards.move_to_dead, lease, entry, entry.why, 1)
                self._metrics.chat_dead.inc()
        if known:
            await self._save(lease, known)

    async def _save(self, lease: ShardLease, entries: list[Entry]) -> None:
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

    async def _commit(self, lease: ShardLease, entries: list[Entry]) -> list[Outcome]:
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

    async def _retry_alone(self, lease: ShardLease, entry: Entry, why: str) -> None:
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
        await self._fail(lease, entry, why, self._max_deliveries)

    # After the commit: notify the senders, push to the receivers, acknowledge to Redis.

    async def _committed(self, lease: ShardLease, entries: list[Entry], outcomes: list[Outcome]) -> None:
        ts = now_ms()
        pairs = list(zip(entries, outcomes, strict=True))
        good = [(entry, outcome) for entry, outcome in pairs if outcome.verdict is not Verdict.MISMATCH]
        for entry, outcome in good:
            self._metrics.chat_save_lag.observe(max(ts - entry.created_ms, 0) / 1000)
            if outcome.verdict is Verdict.EXISTS:
                self._metrics.chat_dup_db.inc()
        rows = [self._saved_entry(entry, outcome) for entry, outcome in good]
        notices = [_saved_notice(row, ts) for row in rows]
        await self._push(lease, good, await self._notify(notices, [entry.to for entry, _ in good]))
        await self._acknowledge(lease, rows)
        for entry, outcome in pairs:
            if outcome.verdict is Verdict.MISMATCH:
                await self._refuse(lease, entry, outcome.message.id)

    def _saved_entry(self, entry: Entry, outcome: Outcome) -> SavedEntry:
        """With the body that is stored: a repeated clientMsgId does not change the first message."""
        stored = outcome.message
        if stored.body == entry.body:
            return SavedEntry(entry, stored.id)
        self._refusals.note_other_body(entry.sender, entry.client_msg_id, stored.id)
        return SavedEntry(msgspec.structs.replace(entry, body=stored.body), stored.id, duplicate=True)

    async def _notify(self, notices: list[SenderNotice], receivers: list[int]) -> dict[int, str]:
        """Returns where the receivers are: looked up after the commit, and once for both."""
        delivery, found = self._delivery, None
        try:
            owners = found = await delivery.look_up(list(dict.fromkeys([*receivers, *(one.user for one in notices)])))
        except StoreError:
            owners = delivery.local_owners(receivers)
        await delivery.notify(notices, found)
        return owners

    async def _push(self, lease: ShardLease, saved: list[tuple[Entry, Outcome]], owners: Mapping[int, str]) -> None:
        """To receivers that have not got it, or got it on a connection that is not theirs any more."""
        delivered = await self._apply_early(saved)
        pushes = [
            MessagePush.of(outcome.message)
            for entry, outcome in saved
            if outcome.message.status is Status.SAVED
            and entry.pushed_to != owners.get(entry.to, "")
            and entry.id not in delivered
        ]
        if pushes:
            began = monotonic()
            # Another holder may have pushed them long ago, and the receivers may have forgotten that they have them.
            lease.check()
            await self._delivery.push(pushes, owners)
            self._metrics.chat_deliver.observe(monotonic() - began)
        await self._resend_first(lease, {entry.to for entry, _ in saved})

    async def _resend_first(self, lease: ShardLease, receivers: set[int]) -> None:
        """The resend of receivers that missed something because Redis was unavailable begins before the sender counts
        as having nothing unsaved.

        From then on other instances may save and push newer messages of that sender. Limited to RESEND_TIMEOUT_S: in a
        Cluster a part of Redis may stay unavailable, and the other messages of this shard do not depend on it.
        """
        delivery, until = self._delivery, monotonic() + RESEND_TIMEOUT_S
        while any(map(delivery.is_unlocated, receivers)) and monotonic() < until and not lease.stopping:
            lease.check()
            try:
                await delivery.resend_first(receivers)
            except StoreError:
                await asyncio.sleep(BACK_OFF_S[1])

    async def _apply_early(self, saved: list[tuple[Entry, Outcome]]) -> set[int]:
        """Receipts that came before the row; only what was pushed before it was saved can have one.

        By its mode, not by the connection it was pushed to: an earlier holder may have pushed it and died.
        """
        by_user: dict[int, list[int]] = {}
        for entry, _ in saved:
            if entry.mode == Path.DELIVER_FIRST:
                by_user.setdefault(entry.to, []).append(entry.id)
        found = await asyncio.gather(*(self._receipts.apply_early(user, ids) for user, ids in by_user.items()))
        return set().union(*found)

    async def _acknowledge(self, lease: ShardLease, rows: list[SavedEntry]) -> None:
        """Redis deletes the entries. A sender that sent a message again since it was notified is notified again first:
        otherwise it would wait for ever."""
        while rows:
            asked = await _retry(partial(self._shards.saved, lease.shard, lease.holder, rows), lease)
            stay = {row.entry.entry for row in asked}
            for row in rows:
                if row.entry.entry not in stay:
                    lease.early.ended(row.entry.sender, row.entry.to, row.entry.id)
            rows = asked
            if rows:
                await self._delivery.notify([_saved_notice(row, now_ms()) for row in rows])

    # What will never be a row.

    async def _fail(self, lease: ShardLease, entry: Entry, why: str, tries: int) -> None:
        log.error("a message cannot be saved", shard=lease.shard, serverMsgId=entry.id, why=why, tries=tries)
        notify = partial(self._notify_failed, entry, Reason.SAVE_FAILED)
        await _fail(notify, self._shards.move_to_dead, lease, entry, why, tries)
        self._metrics.chat_dead.inc()
        lease.early.ended(entry.sender, entry.to, entry.id)

    async def _refuse(self, lease: ShardLease, entry: Entry, stored: int) -> None:
        """Its sender has used the clientMsgId for another receiver before: nothing is kept of it."""
        why = f"clientMsgId is that of message {stored}, which has another receiver"
        about = {"user": entry.sender, "serverMsgId": entry.id, "why": why}
        log.warning("a message is refused", shard=lease.shard, **about, limited=True, each="user")
        notify = partial(self._notify_failed, entry, Reason.DUPLICATE_MSG_ID_MISMATCH)
        await _fail(notify, partial(self._shards.move_to_dead, keep=False), lease, entry, why, 1)
        lease.early.ended(entry.sender, entry.to, entry.id)

    async def _notify_failed(self, entry: Entry, reason: Reason) -> None:
        frame = wire.error(reason, now_ms(), entry.client_msg_id, entry.id)
        await self._delivery.notify([SenderNotice(entry.sender, frame, entry.id, keep=True)])


async def _more_to_save(lease: ShardLease) -> None:
    """Until the deliver stage has moved something."""
    try:
        async with asyncio.timeout(IDLE_S):
            await lease.more_to_save.wait()
    except TimeoutError:
        pass


def _row(entry: Entry) -> NewMessage:
    return NewMessage(
        entry.id, entry.client_msg_id, entry.sender, entry.to, entry.msg_type, entry.body, entry.created_ms
    )


def _saved_notice(saved: SavedEntry, ts: int) -> SenderNotice:
    entry, duplicate = saved.entry, saved.duplicate
    frame = wire.ack(AckType.SAVED, entry.sender, entry.client_msg_id, saved.row, ts, entry.body, duplicate=duplicate)
    return SenderNotice(entry.sender, frame, entry.id, saved=entry.client_msg_id)


# -- both stages ---------------------------------------------------------------------------------


async def _retry(step: Callable[[], Awaitable[T | None]], lease: ShardLease) -> T:
    """Repeat an idempotent step until Redis has done it; None of it means that the shard is not ours: LostShard."""

    async def checked() -> T:
        lease.check()
        done = await step()
        if done is None:
            raise LostShard(f"shard {lease.shard} has another holder")
        return done

    def warn(error: Exception) -> None:
        log.warning("a chat shard waits for Redis", shard=lease.shard, error=str(error), limited=True)

    return await retry(checked, pause_s=RETRY_S, on_error=warn)


async def _fail(
    notify: Callable[[], Awaitable[None]],
    move_to_dead: Callable[..., Awaitable[int | None]],
    lease: ShardLease,
    entry: Entry | Unreadable,
    why: str,
    tries: int,
) -> None:
    """Notify the sender, then move the entry to the dead letters: a duplicate notice is harmless, a missing one is not.

    A sender that sends the message again in between is notified again before the entry goes.
    """
    asked, notified = 0, False
    while asked or not notified:
        await notify()
        notified = True
        step = partial(move_to_dead, lease.shard, lease.holder, entry, why, tries, asked=asked)
        asked = await _retry(step, lease)


def _unless_lost(entries: list[Entry | Unreadable] | None, lease: ShardLease) -> list[Entry | Unreadable]:
    if entries is None:
        raise LostShard(f"shard {lease.shard} has another holder")
    return entries


async def _wait_for_redis(shards: Shards, lease: ShardLease, error: StoreError) -> None:
    """Redis is unavailable, or came back without our groups."""
    log.warning("a chat shard waits for Redis", shard=lease.shard, error=str(error), limited=True)
    # Not by its first word: Redis 6.2 puts words of its own before what a command says inside a script.
    if isinstance(error, Refused) and "NOGROUP" in str(error):
        with suppress(StoreError):
            await shards.ensure_groups(lease.shard)
    await asyncio.sleep(RETRY_S)


async def _notify_unreadable(delivery: Delivery, entry: Unreadable) -> None:
    """Its sender gets save_failed, if the entry names it."""
    sender, client, id = (entry.fields.get(name, "") for name in ("fromUserId", "clientMsgId", "serverMsgId"))
    if sender.isdecimal() and client:
        known = int(id) if id.isdecimal() else 0
        frame = wire.error(Reason.SAVE_FAILED, now_ms(), client, known or None)
        await delivery.notify([SenderNotice(int(sender), frame, known, keep=True)])
