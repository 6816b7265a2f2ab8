"""What one user sends, one message at a time and in order: accepted by Redis, or saved at once.

    switches say two-phase ─▶ claim and append ─▶ ACK accepted             (the workers do the rest)
    off                    ─▶ save ─▶ ACK saved ─▶ push to the receiver
    Redis unusable         ─▶ fail open: as off, under the same serverMsgId; fail closed: server_busy

A timed-out accept may have happened. Saved under the same id, its entry later meets its own row. A sender that has
messages on their way is told server_busy instead: saving past them would break its order.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import blake2b
from time import monotonic

import structlog

from dragoman.archive import ArchiveError, BadRow, NewMessage, Status, Stored, Verdict
from dragoman.domain.chat.rules import check
from dragoman.domain.chat.switches import Course, Path
from dragoman.domain.limits.bytes_a_day import cost
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Frame, Reason
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Delivery, NotHeeded
from dragoman.services.chat.desk import Desk
from dragoman.services.chat.unusable import Unusable, cannot_work
from dragoman.services.chat.user import ChatUser
from dragoman.services.loops import ReadFirstTimeout, unawaited
from dragoman.store.chat.shards import Accepted, Entry
from dragoman.store.errors import RedisAway, Refused, StoreError, UnknownOutcome

log = structlog.get_logger(__name__)

LOOK_S = 0.02
# Messages of one sender that wait for their turn: past the first its socket is not read, until the second is reached.
FULL, ROOM = 256, 64
STILL_S = 0.5  # how late a timer may fire before it says more about us than about Redis
RECOUNT_S = 1.0  # how old our copy of a sender's unsaved messages may get while it sends


class Began:
    """When the database began with a message; said by its thread."""

    def __init__(self) -> None:
        self.began = monotonic()

    def __call__(self) -> None:
        self.began = monotonic()


class Outbound:
    def __init__(self, desk: Desk, user: ChatUser, verify: Callable[[ChatUser], Awaitable[None]]) -> None:
        self._desk, self._user, self._verify = desk, user, verify
        self._course = Course()
        self._queue: deque[tuple[Frame, float]] = deque()
        self._running = self._paused = False
        self._owed: set[int] = set()  # receivers that could not be found when we saved something for them
        self._counted_at = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, frame: Frame) -> None:
        """One SINGLE_CHAT, in its turn. Who sends faster than it can be taken is read more slowly."""
        self._queue.append((frame, monotonic()))
        if frame.clientMsgId:
            self._user.requests.received(frame.clientMsgId)
        if len(self._queue) >= FULL and not self._paused:
            self._paused = True
            self._user.stop_reading()
        if not self._running:
            self._running = True
            self._desk.tasks.spawn(self._work(), "chat-outbound")

    async def _work(self) -> None:
        try:
            while self._queue:
                frame, came_at = self._queue[0]
                await self._answered(frame, came_at)
                self._queue.popleft()
                if self._paused and len(self._queue) <= ROOM:
                    self._paused = False
                    self._user.read_on()
        finally:
            self._running = False

    async def _answered(self, frame: Frame, came_at: float) -> None:
        unknown = True
        try:
            unknown = await self._one(frame, came_at)
        except Exception:
            log.exception("a message failed", user=self._user.id)
            self._user.error(Reason.INTERNAL_ERROR, frame.clientMsgId)
        finally:
            if frame.clientMsgId:
                self._user.requests.answered(frame.clientMsgId, unknown=unknown)

    async def _one(self, frame: Frame, came_at: float) -> bool:
        """Whether Redis may have accepted it though its sender was not told so."""
        desk, user = self._desk, self._user
        reason = check(frame, user.id)
        if reason is not None:
            user.error(reason, frame.clientMsgId)
            return False
        assert frame.clientMsgId is not None
        assert frame.to is not None
        assert frame.body is not None
        row = NewMessage(
            desk.ids.draw(), frame.clientMsgId, user.id, frame.to, frame.msgType or wire.TEXT,
            desk.words.clean(frame.body), now_ms(),
        )  # fmt: skip
        path, sent_ms = await self._path(), frame.ts or row.created_ms
        await self._look_back(row.to_user, path)
        if path is Path.OFF:
            await self._save(row, came_at)
            return False
        try:
            await self._accept(row, path, sent_ms, came_at)
        except Unusable as unusable:
            log.debug("not accepted", user=user.id, why=str(unusable))
            await self._without_redis(unusable, came_at)
            return unusable.perhaps
        return False

    async def _look_back(self, receiver: int, path: Path) -> None:
        """Before the first message of one that moved, its receiver looks into the archive for earlier ones.

        An instance that takes long to hear of it does not hold us up: the receiver may have been on the one that died.
        """
        desk, known = self._desk, self._user.since_moved
        if known is None or receiver in known:
            return
        known.add(receiver)
        desk.courier.owe(receiver)
        if path is Path.OFF or not desk.gate.open:
            return  # we push it ourselves, behind the word that something was missed
        try:
            async with ReadFirstTimeout(desk.accept_timeout_s):
                await desk.courier.make_up([receiver])
        except NotHeeded as error:
            log.debug("a receiver may not have looked yet", user=receiver, error=str(error))
        except (StoreError, TimeoutError):
            self._owed.add(receiver)

    # -- which way -------------------------------------------------------------------------------

    async def _path(self) -> Path:
        """The sender's way. It changes only when nothing of it is on its way; for that the next message waits a bit."""
        wanted, now = self._desk.switchboard.current.path_of(self._user.id), monotonic()
        course = self._course
        if not course.wants_change(wanted, now):
            assert course.path is not None
            return course.path
        while course.waits(unsaved := await self._unsaved(), now, monotonic()):  # noqa: ASYNC110 - it is in Redis
            await asyncio.sleep(LOOK_S)
        return course.settle(wanted, unsaved, monotonic())

    async def _unsaved(self) -> int:
        """As Redis knows it; without Redis as we do. Unknown counts as some."""
        desk, user = self._desk, self._user
        if desk.gate.may_ask(monotonic()):
            timeout = ReadFirstTimeout(desk.accept_timeout_s)
            try:
                async with timeout:
                    unsaved = await self._count()
                desk.gate.worked()
                return unsaved
            except (StoreError, TimeoutError):
                if not stood_still(timeout):
                    desk.gate.failed(monotonic())
        return 1 if user.unsaved.count is None else user.unsaved.count

    async def _count(self) -> int:
        newest = self._user.unsaved.newest
        unsaved = await self._desk.shards.unsaved(self._user.id)
        self._user.unsaved.counted(unsaved, newest)
        return unsaved

    # -- two phases ------------------------------------------------------------------------------

    async def _accept(self, row: NewMessage, path: Path, sent_ms: int, came_at: float) -> None:
        desk, user, began = self._desk, self._user, monotonic()
        if not desk.gate.may_ask(began):
            raise Unusable("Redis failed a moment ago", row)
        share = max(desk.switchboard.current.max_backlog // desk.shards.count, 1)
        digest, timeout = digest_of(row.body), ReadFirstTimeout(desk.accept_timeout_s)
        try:
            async with timeout:
                await self._make_known(row)
                await self._make_up(row)
                verdict, number = await self._ask(row, path, sent_ms, digest, share)
                while verdict is Accepted.STALE_ID:
                    row = replace(row, id=desk.ids.draw(above=number))
                    verdict, number = await self._ask(row, path, sent_ms, digest, share)
        except TimeoutError:
            if stood_still(timeout):
                raise Unusable("we stood still", row, perhaps=True, ours=True) from None
            raise self._unusable(f"no answer in {desk.accept_timeout_s:g} s", row, perhaps=True) from None
        except Refused as error:
            if not cannot_work(error):
                desk.gate.worked()
                raise
            raise self._unusable(str(error), row) from None
        except UnknownOutcome as error:
            raise self._unusable(str(error), row, perhaps=True) from None
        except StoreError as error:
            # Not enough replicas is such an error, too, and comes after the message was written.
            raise self._unusable(str(error), row, perhaps=desk.switchboard.current.wait_replicas > 0) from None
        desk.gate.worked()
        wrote_s = monotonic() - began
        await self._answer(row, verdict, number)
        if verdict is Accepted.OK:
            user.unsaved.accepted(row.id)
            desk.perf.accepted(row, came_at=came_at, wrote_s=wrote_s, queue=len(self._queue))
            if user.unsaved.count != 1 and monotonic() - self._counted_at > RECOUNT_S:
                await self._recount()
        elif verdict in (Accepted.DUPLICATE, Accepted.DUPLICATE_OTHER) and user.unsaved.count == 0:
            user.unsaved.lost_count()  # another instance accepted it after we counted, and it is on its way

    async def _recount(self) -> None:
        """Our copy is as good as the words that reached us. One that misses some is found out while Redis is there."""
        self._counted_at = monotonic()
        try:
            async with ReadFirstTimeout(self._desk.accept_timeout_s):
                await self._count()
        except (StoreError, TimeoutError):
            pass

    async def _make_known(self, row: NewMessage) -> None:
        """Who came in while Redis was away is not known there as connected, and would not hear what becomes of it."""
        if not self._user.verified:
            await self._verify(self._user)
            if self._user.socket.closed:
                raise Unusable("its session is over", row, ours=True)

    async def _make_up(self, row: NewMessage) -> None:
        """What we saved while Redis was away goes out before anything accepted now, wherever that is pushed from."""
        if self._owed:
            try:
                await self._desk.courier.make_up(self._owed)
            except NotHeeded as error:  # no reason for others to do without Redis
                raise Unusable(str(error), row, ours=True) from None
            except StoreError as error:
                raise RedisAway(str(error)) from None
            self._owed.clear()

    async def _ask(self, row: NewMessage, path: Path, sent_ms: int, digest: str, share: int) -> tuple[Accepted, int]:
        desk, replicas = self._desk, self._desk.switchboard.current.wait_replicas
        entry = Entry(
            "", row.id, row.client_msg_id, row.from_user, row.to_user, row.msg_type, row.body, sent_ms,
            row.created_ms, desk.instance, path,
        )  # fmt: skip
        if not replicas:
            return await desk.shards.accept(entry, digest, share)
        reply = await desk.shards.accept(entry, digest, share, await desk.replicas.redis())
        if reply[0] in (Accepted.OK, Accepted.DUPLICATE):
            await desk.replicas.have_it(desk.shards.accepted(desk.shards.of(row.from_user)), replicas)
        return reply

    def _unusable(self, why: str, row: NewMessage, *, perhaps: bool = False) -> Unusable:
        self._desk.gate.failed(monotonic())
        self._desk.metrics.chat_publish_fail.inc()
        return Unusable(why, row, perhaps=perhaps)

    async def _answer(self, row: NewMessage, verdict: Accepted, number: int) -> None:
        match verdict:
            case Accepted.OK:
                self._accepted(row, row.id)
            case Accepted.DUPLICATE:
                self._accepted(row, number)
            case Accepted.SAVED:
                self._ack(AckType.ACCEPTED, row, number)
                self._saved(row, number)
            case Accepted.DUPLICATE_OTHER | Accepted.SAVED_OTHER:
                await self._answer_repeated(row, number, saved=verdict is Accepted.SAVED_OTHER)
            case Accepted.MISMATCH:
                self._user.error(Reason.DUPLICATE_MSG_ID_MISMATCH, row.client_msg_id)
            case Accepted.OVER:
                self._over_quota(row)
            case _:
                self._busy(row)

    async def _answer_repeated(self, row: NewMessage, id: int, *, saved: bool) -> None:
        """The first message with this clientMsgId and receiver stands; its sender gets that one's body."""
        body = await self._body_of(row.from_user, id)
        if body is None:
            self._busy(row)
            return
        row, duplicate = self._first(row, id, body)
        if saved:
            self._ack(AckType.ACCEPTED, row, id, duplicate=duplicate)
            self._saved(row, id, duplicate=duplicate)
        else:
            self._accepted(row, id, duplicate=duplicate)

    async def _body_of(self, sender: int, id: int) -> str | None:
        """None: it cannot be looked up now, or became a dead letter meanwhile; sent again, it will be known."""
        desk = self._desk
        try:
            async with ReadFirstTimeout(desk.accept_timeout_s):
                body = await desk.shards.unsaved_body(sender, id)
                if body is None and (row := (await desk.archive.messages([id])).get(id)) is not None:
                    body = row.body
        except (StoreError, ArchiveError, TimeoutError) as error:
            log.debug("a repeated message cannot be looked up", user=sender, id=id, error=str(error))
            return None
        return body

    def _first(self, row: NewMessage, id: int, body: str) -> tuple[NewMessage, bool]:
        """The message as it was first sent, and whether `row` has another body."""
        if row.body == body:
            return row, False
        self._desk.repeats.note(row.from_user, row.client_msg_id, id)
        return replace(row, body=body), True

    def _accepted(self, row: NewMessage, id: int, *, duplicate: bool = False) -> None:
        self._ack(AckType.ACCEPTED, row, id, duplicate=duplicate)
        saved = self._user.requests.accepted(row.client_msg_id, duplicate=duplicate)
        if saved is not None:
            self._user.say_stamped(saved, duplicate=duplicate)

    def _saved(self, row: NewMessage, id: int, *, duplicate: bool = False) -> None:
        self._ack(AckType.SAVED, row, id, duplicate=duplicate)
        self._user.requests.saved(row.client_msg_id, id)

    def _ack(self, kind: AckType, row: NewMessage, id: int, *, duplicate: bool = False) -> None:
        ts = self._user.stamp()
        self._user.say(wire.ack(kind, row.from_user, row.client_msg_id, id, ts, row.body, duplicate=duplicate))

    def _over_quota(self, row: NewMessage) -> None:
        self._desk.metrics.chat_over_quota.inc()
        self._user.error(Reason.QUOTA_EXCEEDED, row.client_msg_id)

    def _busy(self, row: NewMessage) -> None:
        self._desk.metrics.chat_server_busy.inc()
        self._user.error(Reason.SERVER_BUSY, row.client_msg_id)

    async def _without_redis(self, unusable: Unusable, came_at: float) -> None:
        saved, fail_open = False, self._desk.switchboard.current.fail_open
        if fail_open and self._user.unsaved.count is None and monotonic() - self._counted_at > RECOUNT_S:
            await self._recount()  # Redis may be there, and only its replicas away
        if fail_open and self._user.unsaved.count == 0 and not unusable.ours:
            saved = await self._save(unusable.row, came_at, past_redis=True)
        else:
            self._busy(unusable.row)
        if unusable.perhaps and not saved:
            self._user.unsaved.lost_count()  # it may be on its way: until Redis says, nothing is saved past it

    # -- one phase -------------------------------------------------------------------------------

    async def _save(self, row: NewMessage, came_at: float, *, past_redis: bool = False) -> bool:
        """Whether its sender knows now that it is a row, or will never be one."""
        desk, asked, clock = self._desk, monotonic(), Began()
        if not self._user.bytes_a_day.room_for(cost(row.body), asked):
            self._over_quota(row)
            return True
        try:
            (outcome,) = await desk.archive.save([row], on_begin=clock)
        except BadRow as error:
            log.warning("a message cannot be saved", user=row.from_user, id=row.id, error=str(error))
            desk.metrics.chat_save_fail.inc()
            self._user.error(Reason.SAVE_FAILED, row.client_msg_id, row.id)
            return True
        except ArchiveError as error:
            log.debug("not saved", user=row.from_user, error=str(error))
            desk.metrics.chat_save_fail.inc()
            self._busy(row)
            return False
        saved = monotonic()
        match outcome.verdict:
            case Verdict.MISMATCH:
                self._user.error(Reason.DUPLICATE_MSG_ID_MISMATCH, row.client_msg_id)
            case Verdict.EXISTS:
                desk.metrics.chat_dup_db.inc()
                desk.ids.rise(outcome.message.id)  # whoever made it may be ahead of us, and dead since
                row, duplicate = self._first(row, outcome.message.id, outcome.message.body)
                self._remember(replace(row, id=outcome.message.id))
                # Whoever saved it may have died before pushing it; a receiver that has it does not get it twice.
                await self._push(outcome.message, past_redis)
                self._saved(row, outcome.message.id, duplicate=duplicate)
            case Verdict.SAVED:
                # Pushed before it is acknowledged: should we die in between, its sender sends it again, and nothing
                # it sends after that can overtake it.
                await self._push(outcome.message, past_redis)
                self._remember(row)
                self._spend(row)
                self._saved(row, row.id)
                desk.perf.saved(row, came_at=came_at, asked=asked, began=clock.began, saved=saved)
        return True

    async def _push(self, row: Stored, past_redis: bool) -> None:
        """One that goes past Redis may find it there again: what went through it before is saved and perhaps not yet
        pushed, so the receiver looks into the archive first whatever Redis says now."""
        if row.status is not Status.SAVED:
            return
        courier, receiver = self._desk.courier, row.to_user
        owners = courier.owners_here([receiver]) if past_redis else await self._owner(receiver)
        await courier.push([Delivery.of(row)], owners)
        if courier.is_behind(receiver):
            self._owed.add(row.to_user)

    async def _owner(self, receiver: int) -> dict[int, str]:
        """Where it is. A Redis that hangs holds up one message, not each."""
        courier, gate, timeout = self._desk.courier, self._desk.gate, ReadFirstTimeout(self._desk.accept_timeout_s)
        if not gate.may_ask(monotonic()):
            return courier.owners_here([receiver])
        try:
            async with timeout:
                found = await courier.look_up([receiver])
        except (StoreError, TimeoutError):
            if not stood_still(timeout):
                gate.failed(monotonic())
            return courier.owners_here([receiver])
        gate.worked()
        return found

    def _remember(self, row: NewMessage) -> None:
        """So that a repetition after a change of path gets the same id, and ids rise for who goes on elsewhere.

        Nothing waits for it. It leaves before the sender is told: whoever is told, and comes in elsewhere, finds it.
        """
        desk = self._desk
        if not desk.gate.open:
            return
        if desk.switchboard.current.enabled:
            digest = digest_of(row.body)
            unawaited(desk.shards.remember(row.from_user, row.client_msg_id, row.id, row.to_user, digest))
        else:
            unawaited(desk.shards.rise(row.from_user, row.id))

    def _spend(self, row: NewMessage) -> None:
        """Count its bytes. Nothing waits for that: what Redis has counted is known for one of the next messages."""
        desk, day = self._desk, self._user.bytes_a_day
        day.stored(cost(row.body), monotonic())
        if desk.shards.bytes_a_day and desk.gate.open:
            desk.tasks.spawn(self._spent(row), "chat-quota")

    async def _spent(self, row: NewMessage) -> None:
        used, left_s = await self._desk.shards.spend(row.from_user, cost(row.body))
        self._user.bytes_a_day.learned(used, left_s, monotonic())


def stood_still(timeout: ReadFirstTimeout) -> bool:
    """A timer that fires long after it was due says nothing about Redis: this process was paused, or starved."""
    return timeout.late_s > STILL_S


def digest_of(body: str) -> str:
    """What tells the body of a repeated clientMsgId from that of the first message."""
    return blake2b(body.encode(), digest_size=8).hexdigest()
