"""Receipts of receivers: gathered, written together, and passed on to the senders.

    receipt ─▶ gathered ─▶ SQL ─▶ the sender gets the highest
                            └ no such row yet: parked in Redis, and SQL is asked once more

Receipts are written half an interval after the save stages read, those that came before that read: the rows of early
pushes are there by then. So few are parked, unless the database is slow.

The save stage reads the parked receipts after its commit; whichever of the two comes second finds both and applies
them. A parked receipt stays in Redis until SQL has it: if this instance dies meanwhile, it is found with the receiver's
next AUTH, or before its next resend. While Redis is unavailable it is kept here, and parked later.

Undelivered messages are looked up for users that connect, and resent to connected users that do not acknowledge.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal

import structlog

from dragoman.archive import Applied, Archive, ArchiveError, Receipt, Status, Stored
from dragoman.domain.chat.message_ids import made_by_us
from dragoman.domain.chat.shards import EARLY_READ_INTERVAL_S, next_read
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Frame, Reason
from dragoman.services.chat.delivery import Delivery, SenderNotice
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser, LocalUsers
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

BATCH = 512
MAX_WAITING = 100_000
RETRY_S = 0.5

Raised = Literal[Status.DELIVERED, Status.READ]
_STATUS: dict[AckType, Raised] = {AckType.DELIVERED: Status.DELIVERED, AckType.READ: Status.READ}
_KIND: dict[Status, AckType] = {status: kind for kind, status in _STATUS.items()}


@dataclass(slots=True)
class _Received:
    """One receipt; `user` is None for one that was parked: its receiver may be disconnected."""

    receipt: Receipt
    user: ChatUser | None
    at: float = 0.0  # monotonic; 0: its row is there, or was awaited before


class Receipts:
    def __init__(self, archive: Archive, users: Users, delivery: Delivery, metrics: Metrics, tasks: Tasks) -> None:
        self._archive, self._users, self._delivery, self._tasks = archive, users, delivery, tasks
        self._metrics = metrics
        self._waiting: deque[_Received] = deque()  # by `at`
        self._unparked: list[_Received] = []  # there is no row yet, and Redis could not park them
        self._working = False

    # -- from the socket -------------------------------------------------------------------------

    def receive(self, user: ChatUser, frame: Frame) -> None:
        """An ACK of a receiver; an invalid one is answered by an ERROR."""
        if not frame.ackType:
            user.error(Reason.MISSING_ACK_TYPE)
            return
        kind = wire.receipt_type(frame.ackType)
        if kind is None:
            user.error(Reason.UNKNOWN_ACK_TYPE)
            return
        user.inbound.acknowledged_any()
        id = frame.serverMsgId
        if id is None:
            user.error(Reason.MISSING_SERVER_MSG_ID)
        elif not made_by_us(id):
            user.error(Reason.MESSAGE_NOT_FOUND, server_msg_id=id)
        elif (
            len(self._waiting) + len(self._unparked) < MAX_WAITING
        ):  # else it is not taken, and the message comes again
            self._add(_Received(Receipt(user.id, _STATUS[kind], user.inbound.acknowledge(id)), user, monotonic()))

    async def apply_early(self, user: int, ids: Sequence[int] | None = None) -> set[int]:
        """Apply parked receipts of rows that have just been written, or all; returns the ids of their messages."""
        found = await self._users.early(user, ids)
        self._add_early(user, found)
        return {id for id, _ in found}

    async def apply_early_of(self, ids: Mapping[int, Sequence[int]]) -> set[int]:
        """The same for many users, by user."""
        found = await asyncio.gather(*(self._users.asking_early(user, theirs) for user, theirs in ids.items()))
        applied = set[int]()
        for (user, theirs), statuses in zip(ids.items(), found, strict=True):
            early = [(id, int(status)) for id, status in zip(theirs, statuses, strict=True) if status is not None]
            self._add_early(user, early)
            applied.update(id for id, _ in early)
        return applied

    def _add_early(self, user: int, found: Sequence[tuple[int, int]]) -> None:
        for id, status in found:
            raised: Raised = Status.READ if status == Status.READ else Status.DELIVERED
            self._add(_Received(Receipt(user, raised, (id,)), None))

    def _add(self, received: _Received) -> None:
        if received.at:
            self._waiting.append(received)
        else:
            self._waiting.appendleft(received)
        if not self._working:
            self._working = True
            self._tasks.spawn(self._work(), "chat-receipts")

    # -- into SQL --------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._waiting or self._unparked:
                if not self._waiting:
                    await asyncio.sleep(RETRY_S)
                    unparked, self._unparked = self._unparked, []
                    self._waiting.extendleft(replace(one, at=0.0) for one in reversed(unparked))
                read_at = next_read(monotonic())
                await asyncio.sleep(max(read_at + EARLY_READ_INTERVAL_S / 2 - monotonic(), 0.0))
                while batch := self._take(read_at):
                    await self._apply(batch)
        finally:
            self._working = False

    def _take(self, until: float) -> list[_Received]:
        batch = list[_Received]()
        while self._waiting and self._waiting[0].at <= until and len(batch) < BATCH:
            batch.append(self._waiting.popleft())
        return batch

    async def _apply(self, batch: list[_Received]) -> None:
        applied = await self._write([received.receipt for received in batch])
        missing = [(received, tuple(one.missing)) for received, one in zip(batch, applied, strict=True) if one.missing]
        notices = _relays(applied)
        for received, one in zip(batch, applied, strict=True):
            if received.user is not None:
                for id in one.not_allowed:
                    received.user.error(Reason.ACK_NOT_ALLOWED, server_msg_id=id)
        if missing:
            notices += await self._park(missing)
        await self._drop_parked(
            [
                received.receipt
                for received, one in zip(batch, applied, strict=True)
                if received.user is None and not one.missing
            ]
        )
        if notices:
            await self._delivery.notify(notices)

    async def _drop_parked(self, written: list[Receipt]) -> None:
        """One that stays in Redis for its hour causes a write that changes nothing."""
        by_user: dict[int, list[tuple[int, int]]] = {}
        for receipt in written:
            by_user.setdefault(receipt.acker, []).extend((id, int(receipt.status)) for id in receipt.ids)
        with suppress(StoreError):
            await asyncio.gather(*(self._users.drop_early(user, receipts) for user, receipts in by_user.items()))

    async def _park(self, missing: list[tuple[_Received, tuple[int, ...]]]) -> list[SenderNotice]:
        """Park what has no row yet; then ask SQL once more, because the row may have been written in between."""
        by_user: dict[int, list[tuple[int, int]]] = {}
        for received, ids in missing:
            by_user.setdefault(received.receipt.acker, []).extend((id, int(received.receipt.status)) for id in ids)
        parking = (self._users.park_early(user, receipts) for user, receipts in by_user.items())
        done = await asyncio.gather(*parking, return_exceptions=True)
        failed = {user: error for user, error in zip(by_user, done, strict=True) if error is not None}
        for error in failed.values():
            if not isinstance(error, StoreError):
                raise error
            log.warning("early receipts wait for Redis", error=str(error), limited=True)
        applied = await self._write([Receipt(one.receipt.acker, one.receipt.status, ids) for one, ids in missing])
        for (received, _), one in zip(missing, applied, strict=True):
            if one.missing and received.receipt.acker in failed:
                left = Receipt(received.receipt.acker, received.receipt.status, tuple(one.missing))
                self._unparked.append(_Received(left, received.user))
        return _relays(applied)

    async def _write(self, receipts: list[Receipt]) -> list[Applied]:
        """While the database is unavailable, receipts wait for it."""

        def warn(error: Exception) -> None:
            log.warning("receipts wait for the database", waiting=len(self._waiting), error=str(error), limited=True)

        return await retry(lambda: self._archive.receipts(receipts), pause_s=RETRY_S, on=ArchiveError, on_error=warn)


def _relays(applied: Sequence[Applied]) -> list[SenderNotice]:
    """For each receiver and kind, the highest message that was raised."""
    highest: dict[tuple[int, int, Status], int] = {}
    for one in applied:
        for row in one.changed:
            key = (row.to_user, row.from_user, row.status)
            highest[key] = max(highest.get(key, 0), row.id)
    ts = now_ms()
    return [
        SenderNotice(sender, wire.relay_ack(_KIND[status], acker, sender, id, ts))
        for (acker, sender, status), id in highest.items()
    ]


# -- undelivered messages --------------------------------------------------------------------------


LOOKUP_GATHER_S = 0.005
PAGES = 1  # of unacknowledged messages at a time: a silent receiver is not flooded
_ANY_TIME_MS = 2**62


class UndeliveredLookup:
    """Asks the archive what a user has not acknowledged, for many users at once whether there is anything at all.

    After a network failure thousands connect within seconds, and most have nothing undelivered. A look-up for each is a
    query and a change of threads: a third of what an AUTH costs. So the first user is looked up at once, and those that
    come within the next few milliseconds share one query.
    """

    def __init__(self, archive: Archive, tasks: Tasks) -> None:
        self._archive, self._tasks = archive, tasks
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._running = False

    async def undelivered(self, user: int, after: int, limit: int) -> list[Stored]:
        if after or await self._has_any(user):
            return await self._archive.undelivered(user, after, limit)
        return []

    def _has_any(self, user: int) -> "asyncio.Future[bool]":
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((user, answer))
        if not self._running:
            self._running = True
            self._tasks.spawn(self._run(), "chat-undelivered")
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._answer(waiting)
                await asyncio.sleep(LOOKUP_GATHER_S)
        finally:
            self._running = False

    async def _answer(self, waiting: "list[tuple[int, asyncio.Future[bool]]]") -> None:
        users = [user for user, _ in waiting]
        try:
            # For one user, its rows are read without asking first.
            found = set(users) if len(users) == 1 else await self._archive.undelivered_users(users, _ANY_TIME_MS)
        except Exception as error:
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        for user, answer in waiting:
            if not answer.done():
                answer.set_result(user in found)


class Resender:
    """Resends what connected receivers have not acknowledged: after `after_s`, then with growing pauses.

    The archive is asked once for all of them, so that what was never pushed is sent as well.
    """

    def __init__(self, users: LocalUsers, archive: Archive, receipts: Receipts, tasks: Tasks, after_s: float) -> None:
        self._users, self._archive, self._receipts, self._tasks = users, archive, receipts, tasks
        self._after_s = after_s

    async def run_once(self) -> None:
        now = monotonic()
        due = {user.id: user for user in self._users if user.inbound.is_resend_due(now, self._after_s)}
        if not due:
            return
        try:
            silent = await self._archive.undelivered_users(list(due), now_ms() - int(self._after_s * 1000))
        except ArchiveError:
            return
        for id, user in due.items():
            if id in silent:
                user.inbound.back_off(self._after_s)
                self._tasks.spawn(self._resend(user), "chat-resend")
            else:
                user.inbound.reset_back_off()

    async def _resend(self, user: ChatUser) -> None:
        with suppress(StoreError):
            await self._receipts.apply_early(user.id)  # it may have sent them to an instance that died
        await user.inbound.resend(again=True, pages=PAGES)
