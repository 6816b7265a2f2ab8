"""Receipts of receivers: gathered, written together, and told to the senders.

    receipt ─▶ gathered for a moment ─▶ SQL ─▶ the sender hears the highest
                                        └ no such row yet: parked in Redis, and SQL is asked once more

The save stage looks among the parked after its commit; whichever of the two comes second finds both and applies them.
What is parked stays in Redis until SQL has it: should we die meanwhile, it is found when its receiver comes in the next
time, or would be sent the message again. With Redis away it is kept here, and tried again.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Literal

import structlog

from dragoman.archive import Applied, Archive, ArchiveError, Receipt, Status
from dragoman.domain.chat.message_ids import made_by_us
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Frame, Reason
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Courier, Tell
from dragoman.services.chat.user import ChatUser
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

GATHER_S = 0.1
BATCH = 512
MOST_WAITING = 100_000
RETRY_S = 0.5

Raised = Literal[Status.DELIVERED, Status.READ]
_STATUS: dict[AckType, Raised] = {AckType.DELIVERED: Status.DELIVERED, AckType.READ: Status.READ}
_KIND: dict[Status, AckType] = {status: kind for kind, status in _STATUS.items()}


@dataclass(slots=True)
class _Given:
    """One receipt on its way; `user` is None for one that was parked, whose giver may be gone."""

    receipt: Receipt
    user: ChatUser | None


class Receipts:
    def __init__(self, archive: Archive, users: Users, courier: Courier, metrics: Metrics, tasks: Tasks) -> None:
        self._archive, self._users, self._courier, self._tasks = archive, users, courier, tasks
        self._metrics = metrics
        self._waiting: list[_Given] = []
        self._unkept: list[_Given] = []  # for no row yet, and Redis could not be told
        self._working = False

    # -- from the socket -------------------------------------------------------------------------

    def given(self, user: ChatUser, frame: Frame) -> None:
        """An ACK of a receiver, or why it is none."""
        if not frame.ackType:
            user.error(Reason.MISSING_ACK_TYPE)
            return
        kind = wire.receipt_type(frame.ackType)
        if kind is None:
            user.error(Reason.UNKNOWN_ACK_TYPE)
            return
        user.confirmed_at = monotonic()
        id = frame.serverMsgId
        if id is None:
            user.error(Reason.MISSING_SERVER_MSG_ID)
        elif not made_by_us(id):
            user.error(Reason.MESSAGE_NOT_FOUND, server_msg_id=id)
        elif len(self._waiting) + len(self._unkept) < MOST_WAITING:  # else it is not taken, and the message comes again
            self._add(_Given(Receipt(user.id, _STATUS[kind], user.inbound.confirmed(id)), user))

    async def apply_early(self, user: int, ids: Sequence[int] | None = None) -> set[int]:
        """Look for parked receipts of rows that have just been written, or for any; answers what they are for."""
        found = await self._users.early(user, ids)
        for id, status in found:
            raised: Raised = Status.READ if status == Status.READ else Status.DELIVERED
            self._add(_Given(Receipt(user, raised, (id,)), None))
        return {id for id, _ in found}

    def _add(self, given: _Given) -> None:
        self._waiting.append(given)
        if not self._working:
            self._working = True
            self._tasks.spawn(self._work(), "chat-receipts")

    # -- into SQL --------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            await asyncio.sleep(GATHER_S)
            while self._waiting or self._unkept:
                if not self._waiting:
                    await asyncio.sleep(RETRY_S)
                    self._waiting, self._unkept = [*self._unkept, *self._waiting], []
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                await self._apply(batch)
                if len(self._waiting) < BATCH:
                    await asyncio.sleep(GATHER_S)
        finally:
            self._working = False

    async def _apply(self, batch: list[_Given]) -> None:
        applied = await self._write([given.receipt for given in batch])
        missing = [(given, tuple(one.missing)) for given, one in zip(batch, applied, strict=True) if one.missing]
        tells = _relays(applied)
        for given, one in zip(batch, applied, strict=True):
            if given.user is not None:
                for id in one.not_allowed:
                    given.user.error(Reason.ACK_NOT_ALLOWED, server_msg_id=id)
        if missing:
            tells += await self._park(missing)
        await self._drop_parked(
            [given.receipt for given, one in zip(batch, applied, strict=True) if given.user is None and not one.missing]
        )
        if tells:
            await self._courier.tell(tells)

    async def _drop_parked(self, written: list[Receipt]) -> None:
        """Of those that Redis keeps for an hour more nothing becomes but a write that changes nothing."""
        by_user: dict[int, list[tuple[int, int]]] = {}
        for receipt in written:
            by_user.setdefault(receipt.acker, []).extend((id, int(receipt.status)) for id in receipt.ids)
        with suppress(StoreError):
            await asyncio.gather(*(self._users.drop_early(user, receipts) for user, receipts in by_user.items()))

    async def _park(self, missing: list[tuple[_Given, tuple[int, ...]]]) -> list[Tell]:
        """Keep what has no row yet; then ask SQL once more, for the row may have come in between."""
        by_user: dict[int, list[tuple[int, int]]] = {}
        for given, ids in missing:
            by_user.setdefault(given.receipt.acker, []).extend((id, int(given.receipt.status)) for id in ids)
        parking = (self._users.park_early(user, receipts) for user, receipts in by_user.items())
        done = await asyncio.gather(*parking, return_exceptions=True)
        failed = {user: error for user, error in zip(by_user, done, strict=True) if error is not None}
        for error in failed.values():
            if not isinstance(error, StoreError):
                raise error
            log.warning("early receipts wait for Redis", error=str(error), limited=True)
        applied = await self._write([Receipt(one.receipt.acker, one.receipt.status, ids) for one, ids in missing])
        for (given, _), one in zip(missing, applied, strict=True):
            if one.missing and given.receipt.acker in failed:
                left = Receipt(given.receipt.acker, given.receipt.status, tuple(one.missing))
                self._unkept.append(_Given(left, given.user))
        return _relays(applied)

    async def _write(self, receipts: list[Receipt]) -> list[Applied]:
        """The database may be away: receipts wait for it, as everything does."""
        while True:
            try:
                return await self._archive.receipts(receipts)
            except ArchiveError as error:
                log.warning(
                    "receipts wait for the database", waiting=len(self._waiting), error=str(error), limited=True
                )
                await asyncio.sleep(RETRY_S)


def _relays(applied: Sequence[Applied]) -> list[Tell]:
    """What senders hear: of each receiver and kind the highest message that was raised."""
    highest: dict[tuple[int, int, Status], int] = {}
    for one in applied:
        for row in one.changed:
            key = (row.to_user, row.from_user, row.status)
            highest[key] = max(highest.get(key, 0), row.id)
    ts = now_ms()
    return [
        Tell(sender, wire.relay_ack(_KIND[status], acker, sender, id, ts))
        for (acker, sender, status), id in highest.items()
    ]
