"""The first phase: Redis claims the clientMsgId and appends the message while its sender waits, then ACK accepted.

With deliver-first the message is pushed at once (`EarlyPush`); the save stage of the sender's shard does the rest. If
Redis does not accept the message, `NotAccepted` says what is known of it, and `Outbound` decides whether it is saved in
one phase instead.

Deliver-first: the instance that accepted a message pushes it to its receiver, before it is saved.

    accepted ─▶ the receiver's connection, here or on another instance ─▶ the instance that saves it is informed

Nothing of this is kept anywhere: an early push goes to another instance as an announcement, and may be lost; that of a
sender that has just connected goes through the inbox (`Unsaved.in_line`). What the
save stage is not informed of it pushes after its commit, and the receiver's connection drops what it has. The order of
the sender holds, because a message is pushed early only if all unsaved messages to its receiver were pushed to the same
connection (`Unsaved.may_push`), and written there only if the one before it was (`ConnectionState.may_push_early`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import monotonic

import structlog
from msgspec import Raw

from dragoman.archive import Archive, ArchiveError, NewMessage
from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.switches import Gate, Path
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Reason
from dragoman.protocol.peer import Announcement, EarlyMessage, EarlyPushes, PushedEarly
from dragoman.services.chat.delivery import Delivery, ResendNotBegun
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.chat.one_phase import Refusals
from dragoman.services.chat.report import Perf
from dragoman.services.loops import ReadFirstTimeout, unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.store.chat.cluster import Replicas
from dragoman.store.chat.entries import AcceptReply, ChatEntry, digest_of
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import RedisAway, Refused, StoreError, UnknownOutcome
from dragoman.store.inbox import PushReply

GATHER_S = 0.01  # of what the save stages are informed of: they read a busy shard less often
MAX_KNOWN = 20_000  # past that the oldest are forgotten, and pushed again when they are saved

log = structlog.get_logger(__name__)

# Errors of Redis that mean it cannot work now; any other is a bug of ours.
UNAVAILABLE = frozenset(
    {"LOADING", "READONLY", "CLUSTERDOWN", "OOM", "MASTERDOWN", "NOREPLICAS", "MISCONF", "TRYAGAIN"}
)


class PushedMessages:
    """The connections to which messages were pushed before they are saved, for the instance that saves them."""

    def __init__(self, instance: str, announcer: Announcer) -> None:
        self._instance, self._announcer = instance, announcer
        self._holders: dict[int, str] = {}
        self._known: dict[int, str] = {}
        self._gathered: dict[str, list[tuple[int, str]]] = {}
        announcer.subscribe(self._on_announcement)

    def set_holders(self, holders: dict[int, str]) -> None:
        """The instance that works each shard, as far as is known."""
        self._holders = holders

    def add(self, shard: int, id: int, owner: str) -> None:
        holder = self._holders.get(shard, self._instance)
        if holder == self._instance:
            self._remember(id, owner)
            return
        gathered = self._gathered.setdefault(holder, [])
        gathered.append((id, owner))
        if len(gathered) == 1:
            asyncio.get_running_loop().call_later(GATHER_S, self._send, holder)

    def take(self, id: int) -> str:
        """`instance|connection`, or ''; once."""
        return self._known.pop(id, "")

    def _send(self, holder: str) -> None:
        self._announcer.announce_to(holder, PushedEarly(self._gathered.pop(holder)))

    def _on_announcement(self, message: Announcement) -> None:
        if isinstance(message, PushedEarly):
            for id, owner in message.messages:
                self._remember(id, owner)

    def _remember(self, id: int, owner: str) -> None:
        self._known[id] = owner
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]


class EarlyPush:
    def __init__(self, delivery: Delivery, pushed: PushedMessages, announcer: Announcer, metrics: Metrics) -> None:
        self._delivery, self._pushed, self._announcer, self._metrics = delivery, pushed, announcer, metrics
        self._gathered: dict[str, list[EarlyMessage]] = {}  # of this turn of the loop, by instance
        announcer.subscribe(self._on_announcement)

    def look_up(self, receiver: int) -> "asyncio.Future[bytes | None] | None":
        """Begun with the accept, so that both leave in one write. None: the receiver is here. It may have connected
        elsewhere a moment ago; then the save stage finds another connection, and pushes the message there."""
        if self._delivery.local.owner(receiver):
            return None
        looked_up = self._delivery.users.owner(receiver)
        unawaited(looked_up)
        return looked_up

    async def push(
        self, user: ChatUser, row: NewMessage, shard: int, looked_up: "asyncio.Future[bytes | None] | None"
    ) -> None:
        """A message of this user that was accepted just now."""
        began = monotonic()
        try:
            owner = self._delivery.local.owner(row.to_user)
            if not owner and looked_up is not None:
                owner = (await looked_up or b"").decode()
        except StoreError:
            owner = ""
        receiver, unsaved = row.to_user, user.unsaved
        may_push = unsaved.may_push(receiver, owner) and not self._delivery.is_resend_due([receiver])
        message = _early_message(row, owner, shard, unsaved.last_to(receiver, began)) if may_push else None
        unsaved.accepted(row.id, receiver, owner if may_push else "")
        if message is not None and not (
            await self._push_in_line(message, owner) if unsaved.in_line(began) else self._push(message, owner)
        ):
            unsaved.not_pushed(receiver)
        self._metrics.chat_deliver.observe(monotonic() - began)

    async def _push_in_line(self, message: EarlyMessage, owner: str) -> bool:
        """Behind what is in the inbox; False: it may not be there."""
        return await self._delivery.put(owner.partition("|")[0], EarlyPushes([message])) is PushReply.OK

    def _push(self, message: EarlyMessage, owner: str) -> bool:
        """False: its receiver is on this instance, and has not got it."""
        instance = owner.partition("|")[0]
        if instance == self._delivery.instance:
            return self._write(message)
        gathered = self._gathered.setdefault(instance, [])
        gathered.append(message)
        if len(gathered) == 1:
            asyncio.get_running_loop().call_soon(self._send, instance)
        return True

    def _write(self, message: EarlyMessage) -> bool:
        owner = self._delivery.local.push_early(message)
        if owner:
            self._pushed.add(message.shard, message.id, owner)
        return bool(owner)

    def _send(self, instance: str) -> None:
        self._announcer.announce_to(instance, EarlyPushes(self._gathered.pop(instance)))

    def _on_announcement(self, announcement: Announcement) -> None:
        if isinstance(announcement, EarlyPushes):
            self.on_pushes(announcement)

    def on_pushes(self, pushes: EarlyPushes) -> None:
        for message in pushes.messages:
            self._write(message)


def _early_message(row: NewMessage, owner: str, shard: int, after: int) -> EarlyMessage:
    frame = wire.chat(
        row.from_user, row.to_user, row.client_msg_id, row.id, row.msg_type, row.body, row.created_ms, lang=row.lang
    )
    connection = int(owner.rpartition("|")[2])
    return EarlyMessage(row.to_user, connection, row.id, row.from_user, shard, after, Raw(frame))


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
        early: EarlyPush,
    ) -> None:
        self._early = early
        self._instance, self._shards, self._archive, self._delivery = instance, shards, archive, delivery
        self._switches, self._gate, self._ids, self._replicas = switches, gate, ids, replicas
        self._refusals, self._perf, self._metrics, self._timeout_s = refusals, perf, metrics, timeout_s

    async def resend_after_move(self, user: ChatUser, receiver: int, path: Path) -> None:
        """Before the first message of a sender that moved here, its receiver is sent earlier ones from the archive.

        An instance that is slow to begin the resend does not delay the message: the receiver may have been connected
        to the one that died.
        """
        self._delivery.request_resend(receiver)
        if path is Path.OFF or not self._gate.open:
            return  # this instance pushes the message itself, after the resend
        try:
            async with ReadFirstTimeout(self._timeout_s):
                await self._delivery.resend_first([receiver])
        except ResendNotBegun as error:
            log.debug("a resend may not have begun yet", user=receiver, error=str(error))
        except (StoreError, TimeoutError):
            user.sender.resend_to.add(receiver)

    async def accept(
        self,
        user: ChatUser,
        row: NewMessage,
        path: Path,
        sent_ms: int,
        received_at: float,
        queued: int,
        verify: Callable[[ChatUser], Awaitable[None]],
    ) -> AcceptReply:
        """Answer it by what Redis says; raises NotAccepted."""
        began = monotonic()
        if not self._gate.may_ask(began):
            raise NotAccepted("Redis failed a moment ago", row)
        is_early = path is Path.DELIVER_FIRST
        looked_up = self._early.look_up(row.to_user) if is_early else None
        row, verdict, number = await self._append(user, row, path, sent_ms, verify)
        self._gate.worked()
        wrote_s = monotonic() - began
        await self._answer(user, row, verdict, number)
        if verdict is AcceptReply.OK:
            self._perf.accepted(row, came_at=received_at, wrote_s=wrote_s, queue=queued)
            if is_early:
                await self._early.push(user, row, self._shards.shard_of(row.from_user), looked_up)
            else:
                user.unsaved.accepted(row.id, row.to_user)
        elif verdict in (AcceptReply.DUPLICATE, AcceptReply.DUPLICATE_OTHER) and user.unsaved.count == 0:
            user.unsaved.lost_count()  # another instance accepted it after we counted, and it is on its way
        return verdict

    async def _append(
        self, user: ChatUser, row: NewMessage, path: Path, sent_ms: int, verify: Callable[[ChatUser], Awaitable[None]]
    ) -> tuple[NewMessage, AcceptReply, int]:
        share = max(self._switches.current.max_backlog // self._shards.count, 1)
        digest, timeout = digest_of(row.body), ReadFirstTimeout(self._timeout_s)
        try:
            async with timeout:
                await self._verify(user, row, verify)
                await self._resend_first(user, row)
                verdict, number = await self._ask(row, path, sent_ms, digest, share)
                while verdict is AcceptReply.STALE_ID:
                    row = replace(row, id=self._ids.draw(above=number))
                    verdict, number = await self._ask(row, path, sent_ms, digest, share)
        except TimeoutError:
            if timeout.was_paused:
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
        if user.sender.resend_to:
            try:
                await self._delivery.resend_first(user.sender.resend_to)
            except ResendNotBegun as error:  # no reason for others to do without Redis
                raise NotAccepted(str(error), row, ours=True) from None
            except StoreError as error:
                raise RedisAway(str(error)) from None
            user.sender.resend_to.clear()

    async def _ask(self, row: NewMessage, path: Path, sent_ms: int, digest: str, share: int) -> tuple[AcceptReply, int]:
        shards, replicas = self._shards, self._switches.current.wait_replicas
        entry = ChatEntry(
            "", row.id, row.client_msg_id, row.from_user, row.to_user, row.msg_type, row.body, sent_ms,
            row.created_ms, self._instance, path, lang=row.lang,
        )  # fmt: skip
        if not replicas:
            return await shards.accept(entry, digest, share)
        reply = await shards.accept(entry, digest, share, await self._replicas.redis())
        if reply[0] in (AcceptReply.OK, AcceptReply.DUPLICATE):
            await self._replicas.wait(shards.accepted(shards.shard_of(row.from_user)), replicas)
        return reply

    def _failed(self, why: str, row: NewMessage, *, perhaps: bool = False) -> NotAccepted:
        self._gate.failed(monotonic())
        self._metrics.chat_publish_fail.inc()
        return NotAccepted(why, row, perhaps=perhaps)

    async def _answer(self, user: ChatUser, row: NewMessage, verdict: AcceptReply, number: int) -> None:
        match verdict:
            case AcceptReply.OK:
                user.accepted(row, row.id)
            case AcceptReply.DUPLICATE:
                user.accepted(row, number)
            case AcceptReply.SAVED:
                user.accepted_and_saved(row, number)
            case AcceptReply.DUPLICATE_OTHER | AcceptReply.SAVED_OTHER:
                await self._answer_repeated(user, row, number, saved=verdict is AcceptReply.SAVED_OTHER)
            case AcceptReply.MISMATCH:
                user.error(Reason.DUPLICATE_MSG_ID_MISMATCH, row.client_msg_id)
            case AcceptReply.OVER:
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
