"""What one user sends: one message at a time, in order, through two phases or through one.

    two phases        ─▶ claim and append ─▶ ACK accepted                     `acceptance`; the stages do the rest
    one phase         ─▶ save ─▶ push to the receiver ─▶ ACK saved            `one_phase`
    Redis unavailable ─▶ fail open: one phase under the same serverMsgId; fail closed: server_busy

An accept that timed out may have happened. Saved under the same id, its entry later meets its own row. A sender that
has unsaved messages gets server_busy instead: a message saved past them would break its order.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from dragoman.archive import NewMessage
from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.rules import WordFilter, check
from dragoman.domain.chat.switches import ConnectionPath, Path
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Frame, Reason
from dragoman.services.chat.acceptance import Acceptance, NotAccepted
from dragoman.services.chat.feature_switches import PathChooser
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.chat.one_phase import OnePhase
from dragoman.services.loops import Tasks
from dragoman.store.chat.entries import AcceptReply

log = structlog.get_logger(__name__)

# Queued messages of one sender: at the first number its socket is paused, at the second it is read again.
PAUSE_AT, RESUME_AT = 256, 64
RECOUNT_S = 1.0  # how old our copy of a sender's unsaved messages may get while it sends

Verify = Callable[[ChatUser], Awaitable[None]]


class MessageMaker:
    """Rows of what clients send: with an id, and without listed words."""

    def __init__(self, ids: IdMaker, words: WordFilter) -> None:
        self._ids, self._words = ids, words

    def make(self, sender: int, frame: Frame) -> NewMessage:
        assert frame.clientMsgId is not None
        assert frame.to is not None
        assert frame.body is not None
        return NewMessage(
            self._ids.draw(), frame.clientMsgId, sender, frame.to, frame.msgType or wire.TEXT,
            self._words.clean(frame.body), now_ms(), frame.lang or "",
        )  # fmt: skip


class Outbound:
    """One a connection."""

    __slots__ = (
        "_counted_at",
        "_messages",
        "_one_phase",
        "_path",
        "_paths",
        "_paused",
        "_queue",
        "_running",
        "_tasks",
        "_two_phase",
        "_user",
        "_verify",
    )

    def __init__(
        self,
        user: ChatUser,
        messages: MessageMaker,
        paths: PathChooser,
        one_phase: OnePhase,
        two_phase: Acceptance,
        tasks: Tasks,
        verify: Verify,
    ) -> None:
        self._user, self._messages, self._paths, self._tasks, self._verify = user, messages, paths, tasks, verify
        self._one_phase, self._two_phase = one_phase, two_phase
        self._path = ConnectionPath()
        self._queue: deque[tuple[Frame, float]] = deque()
        self._running = self._paused = False
        self._counted_at = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, frame: Frame) -> None:
        """One SINGLE_CHAT, in its turn. A client that sends faster than that is read more slowly."""
        self._queue.append((frame, monotonic()))
        if frame.clientMsgId:
            self._user.requests.received(frame.clientMsgId)
        if len(self._queue) >= PAUSE_AT and not self._paused:
            self._paused = True
            self._user.pause_reading()
        if not self._running:
            self._running = True
            self._tasks.spawn(self._run(), "chat-outbound")

    async def _run(self) -> None:
        try:
            while self._queue:
                frame, received_at = self._queue[0]
                await self._answer(frame, received_at)
                self._queue.popleft()
                if self._paused and len(self._queue) <= RESUME_AT:
                    self._paused = False
                    self._user.resume_reading()
        finally:
            self._running = False

    async def _answer(self, frame: Frame, received_at: float) -> None:
        unknown = True
        try:
            unknown = await self.handle(frame, received_at)
        except Exception:
            log.exception("a message failed", user=self._user.id)
            self._user.error(Reason.INTERNAL_ERROR, frame.clientMsgId)
        finally:
            if frame.clientMsgId:
                self._user.requests.answered(frame.clientMsgId, unknown=unknown)

    async def handle(self, frame: Frame, received_at: float) -> bool:
        """Whether Redis may have accepted it although its sender got an ERROR."""
        user = self._user
        reason = check(frame, user.id)
        if reason is not None:
            user.error(reason, frame.clientMsgId)
            return False
        row = self._messages.make(user.id, frame)
        path, sent_ms = await self._paths.choose(user, self._path), frame.ts or row.created_ms
        if user.sender.is_first_since_move(row.to_user):
            await self._two_phase.resend_after_move(user, row.to_user, path)
        if path is Path.OFF:
            await self._one_phase.save(user, row, received_at)
            return False
        try:
            verdict = await self._two_phase.accept(
                user, row, path, sent_ms, received_at, len(self._queue), self._verify
            )
        except NotAccepted as error:
            log.debug("not accepted", user=user.id, why=str(error))
            await self._without_redis(error, received_at)
            return error.perhaps
        if verdict is AcceptReply.OK and user.unsaved.count != 1 and monotonic() - self._counted_at > RECOUNT_S:
            await self._recount()
        return False

    async def _without_redis(self, error: NotAccepted, received_at: float) -> None:
        user, saved, fail_open = self._user, False, self._paths.fail_open
        if fail_open and user.unsaved.count is None and monotonic() - self._counted_at > RECOUNT_S:
            await self._recount()  # Redis may answer, and only its replicas be unavailable
        if fail_open and user.unsaved.count == 0 and not error.ours:
            saved = await self._one_phase.save(user, error.row, received_at, past_redis=True)
        else:
            self._one_phase.refuse(user, error.row)
        if error.perhaps and not saved:
            user.unsaved.lost_count()  # it may be on its way: until Redis says, nothing is saved past it

    async def _recount(self) -> None:
        self._counted_at = monotonic()
        await self._paths.recount(self._user)
