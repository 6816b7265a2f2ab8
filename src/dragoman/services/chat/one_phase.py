"""One phase: a message is saved, pushed to its receiver and acknowledged while its sender waits.

    save in SQL ─▶ push to the receiver ─▶ ACK saved

It is pushed before it is acknowledged: if this instance dies in between, the sender sends it again, and nothing the
sender sends after that can overtake it.
"""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import assert_never

import structlog

from dragoman.archive import Archive, ArchiveError, BadRow, NewMessage, SaveVerdict, Status, Stored
from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.switches import Gate
from dragoman.domain.limits.rates import RatePerKey, cost
from dragoman.protocol.chat import Reason
from dragoman.services.chat.delivery import Delivery, MessagePush
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.chat.report import Perf
from dragoman.services.loops import ReadFirstTimeout, Tasks, unawaited
from dragoman.services.metrics import Metrics
from dragoman.store.chat.entries import digest_of
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)


class Refusals:
    """Answers to messages that are not taken, and repeated clientMsgIds: counted, and logged where that helps."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._warnings = RatePerKey(per_minute=1)

    def busy(self, user: ChatUser, row: NewMessage) -> None:
        self._metrics.chat_server_busy.inc()
        user.error(Reason.SERVER_BUSY, row.client_msg_id)

    def over_quota(self, user: ChatUser, row: NewMessage) -> None:
        self._metrics.chat_over_quota.inc()
        user.error(Reason.QUOTA_EXCEEDED, row.client_msg_id)

    def first(self, row: NewMessage, id: int, body: str) -> tuple[NewMessage, bool]:
        """The message as it was first sent, and whether `row` has another body."""
        if row.body == body:
            return row, False
        self.note_other_body(row.from_user, row.client_msg_id, id)
        return replace(row, body=body), True

    def note_other_body(self, sender: int, client_msg_id: str, id: int) -> None:
        """A clientMsgId was repeated with another body: logged at most once a minute for each sender."""
        self._metrics.chat_other_body.inc()
        if self._warnings.take(sender, self._clock()):
            log.warning(
                "A sender repeats a clientMsgId with another body; the first message stands.",
                user=sender, clientMsgId=client_msg_id, serverMsgId=id,
            )  # fmt: skip


class _Began:
    """When the database began with a message; set by its thread."""

    def __init__(self) -> None:
        self.at = monotonic()

    def __call__(self) -> None:
        self.at = monotonic()


class OnePhase:
    def __init__(
        self,
        archive: Archive,
        shards: Shards,
        delivery: Delivery,
        switches: FeatureSwitches,
        gate: Gate,
        ids: IdMaker,
        refusals: Refusals,
        perf: Perf,
        metrics: Metrics,
        tasks: Tasks,
        timeout_s: float,
    ) -> None:
        self._archive, self._shards, self._delivery, self._switches = archive, shards, delivery, switches
        self._gate, self._ids, self._refusals, self._perf = gate, ids, refusals, perf
        self._metrics, self._tasks, self._timeout_s = metrics, tasks, timeout_s

    async def save(self, user: ChatUser, row: NewMessage, received_at: float, *, past_redis: bool = False) -> bool:
        """Whether its sender knows now that it is a row, or will never be one."""
        asked, began = monotonic(), _Began()
        if not user.bytes_per_day.room_for(cost(row.body), asked):
            self._refusals.over_quota(user, row)
            return True
        try:
            (outcome,) = await self._archive.save([row], on_begin=began)
        except BadRow as error:
            log.warning("a message cannot be saved", user=row.from_user, id=row.id, error=str(error))
            self._metrics.chat_save_fail.inc()
            user.error(Reason.SAVE_FAILED, row.client_msg_id, row.id)
            return True
        except ArchiveError as error:
            log.debug("not saved", user=row.from_user, error=str(error))
            self._metrics.chat_save_fail.inc()
            self._refusals.busy(user, row)
            return False
        saved = monotonic()
        match verdict := outcome.verdict:
            case SaveVerdict.MISMATCH:
                user.error(Reason.DUPLICATE_MSG_ID_MISMATCH, row.client_msg_id)
            case SaveVerdict.EXISTS:
                self._metrics.chat_dup_db.inc()
                self._ids.rise(outcome.message.id)  # the instance that made it may be ahead of us, and dead since
                row, duplicate = self._refusals.first(row, outcome.message.id, outcome.message.body)
                self._remember(replace(row, id=outcome.message.id))
                # The instance that saved it may have died before the push; a receiver that has it drops the second.
                await self._push(user, outcome.message, past_redis)
                user.saved(row, outcome.message.id, duplicate=duplicate)
            case SaveVerdict.SAVED:
                await self._push(user, outcome.message, past_redis)
                user.unsaved.sent(row.id, row.to_user, saved)
                self._remember(row)
                self._spend(user, row)
                user.saved(row, row.id)
                self._perf.saved(row, came_at=received_at, asked=asked, began=began.at, saved=saved)
            case _:
                assert_never(verdict)
        return True

    def refuse(self, user: ChatUser, row: NewMessage) -> None:
        """Neither accepted nor saved."""
        self._refusals.busy(user, row)

    async def _push(self, user: ChatUser, row: Stored, past_redis: bool) -> None:
        """One that goes past Redis may find it there again: what went through it before is saved and perhaps not
        pushed, so the receiver gets a resend first, whatever Redis says now."""
        if row.status is not Status.SAVED:
            return
        delivery, receiver = self._delivery, row.to_user
        owners = delivery.local_owners([receiver]) if past_redis else await self._owner(receiver)
        await delivery.push([MessagePush.of(row)], owners, in_line=user.unsaved.in_line(monotonic()))
        if delivery.is_unlocated(receiver):
            user.sender.resend_to.add(receiver)

    async def _owner(self, receiver: int) -> dict[int, str]:
        """Where it is connected. A Redis that hangs delays one message, not each."""
        delivery, gate, timeout = self._delivery, self._gate, ReadFirstTimeout(self._timeout_s)
        if not gate.may_ask(monotonic()):
            return delivery.local_owners([receiver])
        try:
            async with timeout:
                found = await delivery.look_up([receiver])
        except (StoreError, TimeoutError):
            if not timeout.was_paused:
                gate.failed(monotonic())
            return delivery.local_owners([receiver])
        gate.worked()
        return found

    def _remember(self, row: NewMessage) -> None:
        """So that a repetition after a change of path gets the same id, and ids rise for a sender that moves.

        Nothing waits for it. It leaves before the sender is answered, so that another instance the sender moves to
        finds it.
        """
        if not self._gate.open:
            return
        if self._switches.current.enabled:
            digest = digest_of(row.body)
            unawaited(self._shards.remember(row.from_user, row.client_msg_id, row.id, row.to_user, digest))
        else:
            unawaited(self._shards.raise_last_id(row.from_user, row.id))

    def _spend(self, user: ChatUser, row: NewMessage) -> None:
        """Count its bytes. Nothing waits for that: what Redis has counted is known for one of the next messages."""
        user.bytes_per_day.stored(cost(row.body), monotonic())
        if self._shards.bytes_per_day and self._gate.open:
            self._tasks.spawn(self._spent(user, row), "chat-quota")

    async def _spent(self, user: ChatUser, row: NewMessage) -> None:
        used, left_s = await self._shards.spend(row.from_user, cost(row.body))
        user.bytes_per_day.learned(used, left_s, monotonic())
