"""Keeps a chat connected: dials, authenticates, says again what was lost on the way, comes back.

    token → dial → AUTH → AUTH_OK → gate open, say what is to be said … → lost → token → dial → AUTH …

One task runs `run`; what the server says is handled in the link's callback. The gate is open while something can be
said, and when all is over, so that nobody waits there for ever. `kicked` and a session that is no longer valid are the
end: whoever else is this user was let in later, and coming back would throw them out.
"""

import asyncio
import binascii
import inspect
import logging
import time
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.client.backoff import Backoff
from dragoman.client.chat.errors import ChatOver, Kicked, Refused, SendFailed, Unreachable
from dragoman.client.chat.inbox import Inbox, Message, Taken
from dragoman.client.chat.outbox import Outbox
from dragoman.client.chat.owed import Owed
from dragoman.client.chat.pace import Pace
from dragoman.client.chat.receipts import Receipts
from dragoman.client.chat.sent import Sent
from dragoman.client.dialler import Dialler
from dragoman.client.errors import SessionError
from dragoman.client.errors import Unreachable as NoLink
from dragoman.client.link import Closed, Frame, Link
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, FrameType, Reason, ServerFrame

log = logging.getLogger("dragoman.client")

Token = str | Callable[[], str | Awaitable[str]]
OnConnection = Callable[[bool, str], None]

_COME_BACK = 1006
_LEAST_WAIT_S = 0.005  # also how often a socket that takes nothing is looked at


@dataclass(frozen=True, slots=True)
class Timing:
    connect_s: float = 10.0
    answer_s: float = 10.0  # for the server's word on AUTH
    ping_s: float = 25.0
    again_s: float = 20.0  # without a word that it is saved, a message is said again
    reconnect_s: float = float("inf")  # how long we try to get a lost connection back
    close_s: float = 10.0  # how long closing waits for what is not saved, and for receipts that are not said
    reauth_before_s: float = 60.0  # the token is renewed so long before it expires
    backoff_first_s: float = 0.25
    backoff_longest_s: float = 5.0
    backoff_steady_s: float = 5.0

    def backoff(self) -> Backoff:
        return Backoff(self.backoff_first_s, self.backoff_longest_s, self.backoff_steady_s)


class Keeper:
    def __init__(
        self,
        token: Token,
        inbox: Inbox,
        outbox: Outbox,
        *,
        timing: Timing,
        pace: Pace,
        acknowledge: bool,
        on_connection: OnConnection,
    ) -> None:
        self.inbox, self.outbox, self.owed, self.receipts = inbox, outbox, Owed(), Receipts()
        self.gate = asyncio.Event()
        self.news = asyncio.Event()  # a message left the outbox, nothing more is owed, or all is over
        self.over = False
        self.error: Exception | None = None
        self.user_id: int | None = None
        self._token = token
        self._timing = timing
        self._pace = pace
        self._acknowledge = acknowledge
        self._on_connection = on_connection
        self._link: Link | None = None
        self._answer: asyncio.Future[ServerFrame] | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._expires_at: float | None = None  # of the token in use, wall clock
        self._refusals = 0  # of tokens, since one was good

    # ------------------------------------------------------------ life

    async def run(self, dialler: Dialler) -> None:
        """Be connected until the chat is over; `error` says how it came to that."""
        backoff = self._timing.backoff()
        try:
            while not self.over:
                try:
                    token = await self._fresh_token()
                except Unreachable:
                    if self.user_id is None:
                        raise
                    await asyncio.sleep(backoff.delay_s())
                    continue
                link = await dialler.dial()
                await self._hold(link, dialler, token)
                if not self.over:
                    # What its close code says of coming back was for clients that cannot get another token.
                    dialler.lost(link.closed.result()._replace(code=_COME_BACK))
        except NoLink as error:
            self.end(Unreachable(error.message))
        except SessionError as error:
            self.end(Refused(error.code.lower(), error.message))
        except Exception as error:
            self.end(error)

    def end(self, error: Exception | None = None) -> None:
        if not self.over:
            self.over, self.error = True, error
            self.inbox.end(error)
            why = ChatOver() if error is None else ChatOver(getattr(error, "reason", "error"), str(error))
            for sent in (*self.outbox.unsaved(), *self.receipts.all()):
                sent.end(why)
        if self._wake is not None:
            self._wake.cancel()
        self.gate.set()
        self.news.set()
        if self._link is not None:
            self._link.hang_up()

    async def _hold(self, link: Link, dialler: Dialler, token: str) -> None:
        """From AUTH to the end of the connection; cancelled, it hangs up."""
        self._link = link
        back = False
        try:
            if await self._authenticate(link, token):
                dialler.opened()
                back = True
                self.gate.set()
                self._on_connection(True, "")
                self.pump()
                await self._beat(link)
        finally:
            if not self.over:
                self.gate.clear()
            self._link = None
            await link.close()
            self.outbox.lost()
            self.owed.lost()
            if back and not self.over:
                self._on_connection(False, _why(link.closed.result()))

    async def _beat(self, link: Link) -> None:
        """Alive, and with a token that is good, for as long as the connection lasts."""
        while not (await asyncio.wait({link.closed}, timeout=self._beat_s()))[0]:
            link.send(Frame(wire.ping()))
            if self._expires_at is not None and self._expires_at - time.time() <= self._timing.reauth_before_s:
                await self._renew(link)

    def _beat_s(self) -> float:
        if self._expires_at is None or not callable(self._token):
            return self._timing.ping_s
        left_s = self._expires_at - time.time() - self._timing.reauth_before_s
        return min(self._timing.ping_s, max(left_s, 0.05))

    # ------------------------------------------------------------ tokens

    async def _fresh_token(self) -> str:
        if isinstance(self._token, str):
            return self._token
        given = self._token()
        return await given if inspect.isawaitable(given) else given

    async def _renew(self, link: Link) -> None:
        if isinstance(self._token, str):
            self._expires_at = None  # there is no other; the server says when it is over
            return
        try:
            token = await self._fresh_token()
        except Unreachable as error:
            log.info("no new token for now: %s", error)
            self._expires_at = time.time() + self._timing.reauth_before_s + self._timing.ping_s
            return
        link.send(Frame(wire.reauth(token)))
        expires_at = _expiry(token)
        # One that is no better than the last is not asked for again and again.
        self._expires_at = None if expires_at == self._expires_at else expires_at

    def reauth(self, token: str) -> None:
        self._token = token
        self._expires_at = _expiry(token)
        if self._link is not None and self.gate.is_set():
            self._link.send(Frame(wire.reauth(token)))

    async def _authenticate(self, link: Link, token: str) -> bool:
        """False: not on this connection. Raises Refused."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        link.send(Frame(wire.auth(token)))
        waits: set[asyncio.Future[Any]] = {answer, link.closed}
        await asyncio.wait(waits, timeout=self._timing.answer_s, return_when=asyncio.FIRST_COMPLETED)
        self._answer = None
        if not answer.done():
            return False
        told = answer.result()
        if told.type == FrameType.AUTH_OK:
            self._refusals, self._expires_at = 0, _expiry(token)
            return True
        if told.type == FrameType.AUTH_FAIL:
            self._refuse(told.reason or "refused")
        else:
            self._connection_error(told.reason or "")
        return False

    def _refuse(self, reason: str) -> None:
        """A token was not good. Another one may be, once; a session that is over is over."""
        self._refusals += 1
        if reason == Reason.SESSION_INVALID:
            self.end(Refused(reason, "this user logged in again elsewhere"))
        elif isinstance(self._token, str) or self._refusals > 1:
            self.end(Refused(reason, "the server does not take the token"))

    # ------------------------------------------------------------ saying

    def pump(self) -> None:
        """Say what may be said now, and see to it that the rest is said when it may: receipts first, they are owed."""
        link = self._link
        if link is None or not self.gate.is_set() or self.over:
            return
        now = time.monotonic()
        while self._pace.wait_s(now) <= 0 and link.writable.is_set():
            frame = self._next_frame(now)
            if frame is None:
                break
            link.send(Frame(frame))
            self._pace.sent(now)
        if not self.owed:
            self.news.set()
        self._pump_later(now)

    def _next_frame(self, now: float) -> bytes | None:
        if self.owed:
            return self.owed.next()
        sent = self.outbox.next(now)
        return None if sent is None else wire.say(sent.client_msg_id, sent.to, sent.body, sent.msg_type)

    def _pump_later(self, now: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        due_at = now if self.owed else self.outbox.due_at()
        if due_at is not None:
            wait_s = max(due_at - now, self._pace.wait_s(now), _LEAST_WAIT_S)
            self._wake = asyncio.get_running_loop().call_later(wait_s, self.pump)

    def confirm(self, receipt: AckType, message: Message) -> None:
        self.owed.add(receipt, message.server_msg_id, message.from_user)
        self.pump()

    def handed_out(self, message: Message) -> None:
        """Somebody has it now."""
        if self._acknowledge:
            self.confirm(AckType.DELIVERED, message)
        if self.inbox.caught_up and self._link is not None:
            self._link.hang_up()  # and come back: what there was no room for is sent again then, in order

    # ------------------------------------------------------------ what the server says

    def received(self, data: bytes) -> None:
        try:
            frame = wire.decode_server_frame(data)
        except wire.Refused as error:
            log.warning("ignored what the server sent: %s", error.message)
            return
        match frame.type:
            case FrameType.SINGLE_CHAT:
                self._message(frame)
            case FrameType.ACK:
                self._ack(frame)
            case FrameType.ERROR:
                self._error(frame)
            case FrameType.AUTH_OK | FrameType.AUTH_FAIL:
                self._authenticated(frame)
            case FrameType.PING if self._link is not None:
                self._link.send(Frame(wire.pong()))

    def _authenticated(self, frame: ServerFrame) -> None:
        # Here and not when the waiting task wakes up: what follows may come in the same read.
        if self._answer is not None and not self._answer.done():
            if frame.type == FrameType.AUTH_OK:
                self.user_id = frame.from_ or self.user_id
                self.inbox.behind = False
            self._answer.set_result(frame)
        elif frame.type == FrameType.AUTH_FAIL:
            self._refuse(frame.reason or "refused")

    def _message(self, frame: ServerFrame) -> None:
        if frame.from_ is None or frame.serverMsgId is None:
            log.warning("ignored a message without sender or id")
            return
        message = Message(
            from_user=frame.from_,
            to_user=frame.to or self.user_id or 0,
            body=frame.body or "",
            msg_type=frame.msgType or wire.TEXT,
            client_msg_id=frame.clientMsgId or "",
            server_msg_id=frame.serverMsgId,
            seq=frame.msgSeq,
            ts=frame.ts or 0,
        )
        if self.inbox.put(message) is Taken.HANDED_OUT and self._acknowledge:
            self.confirm(AckType.DELIVERED, message)

    def _ack(self, frame: ServerFrame) -> None:
        match frame.ackType:
            case AckType.ACCEPTED | AckType.SAVED if frame.clientMsgId is not None:
                self._own_ack(AckType(frame.ackType), frame.clientMsgId, frame.serverMsgId)
            case AckType.DELIVERED | AckType.READ if frame.serverMsgId is not None:
                self.receipts.told(AckType(frame.ackType), frame.from_, frame.serverMsgId)

    def _own_ack(self, receipt: AckType, client_msg_id: str, server_msg_id: int | None) -> None:
        settle = self.outbox.done if receipt is AckType.SAVED else self.outbox.accepted
        sent = settle(client_msg_id)
        if sent is None:
            return
        if server_msg_id is not None:
            self.receipts.know(sent, server_msg_id)
        sent.reach(receipt)
        self.news.set()
        self.pump()

    def _error(self, frame: ServerFrame) -> None:
        reason, client_msg_id = frame.reason or "", frame.clientMsgId
        if client_msg_id is not None and reason not in wire.CLOSING:
            self._not_taken(client_msg_id, reason)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)
        else:
            self._connection_error(reason)

    def _not_taken(self, client_msg_id: str, reason: str) -> None:
        if reason in wire.RETRY:
            self.outbox.busy(client_msg_id, time.monotonic())
        else:
            sent: Sent | None = self.outbox.done(client_msg_id)
            if sent is not None:
                sent.end(SendFailed(reason, _NOT_TAKEN.get(reason, "the server did not take the message")))
            self.news.set()
        self.pump()

    def _connection_error(self, reason: str) -> None:
        match reason:
            case Reason.KICKED:
                self.end(Kicked())
            case Reason.SESSION_INVALID | Reason.REAUTH_UID_MISMATCH | Reason.TOKEN_EXPIRED | Reason.UNAUTHORIZED:
                self._refuse(reason)
            case _:
                log.info("the server says: %s", reason)


_NOT_TAKEN: dict[str, str] = {
    Reason.SAVE_FAILED: "the server accepted the message and could not save it",
    Reason.DUPLICATE_MSG_ID_MISMATCH: "this clientMsgId was used for another message",
}


def _why(closed: Closed) -> str:
    return f"{closed.reason or 'no reason given'} ({closed.code})"


def _expiry(token: str) -> float | None:
    """`exp` of a JWT, for knowing when to renew it; whether it is genuine is the server's business."""
    try:
        payload = token.split(".")[1]
        exp = msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).get("exp")
    except (IndexError, ValueError, binascii.Error, AttributeError, msgspec.DecodeError):
        return None
    return float(exp) if isinstance(exp, int | float) else None
