"""Keeps a chat connected: authenticates, reconnects, resends the messages and receipts that the server may not have.

    token → connect → AUTH → AUTH_OK → ready: send what waits … → lost → token → connect → AUTH …

One task runs `run`; frames of the server are handled in the callback of the socket. `ready` is set while frames can be
sent, and when the chat is over, so that no caller waits for ever. `kicked` and an invalid session end the chat: the
same user logged in later elsewhere, and reconnecting would disconnect that client.
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

from dragoman.client.chat.messages import (
    AccessDenied,
    ChatClosed,
    Kicked,
    Message,
    SendFailed,
    Sent,
    Translation,
    Unreachable,
)
from dragoman.client.chat.outbox import Inbox, Outbox, PendingReceipts, Put, SentReceipts, Translations
from dragoman.client.pacing import RateLimit
from dragoman.connection import Backoff, ClientWebSocket, Closed, ConnectionRefused, Connector, Frame, ServerUnreachable
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, FrameType, Reason, ServerFrame

log = logging.getLogger("dragoman.client")

Token = str | Callable[[], str | Awaitable[str]]
OnConnection = Callable[[bool, str], None]
OnExchange = Callable[[str, str, int], None]

_MAY_RECONNECT = 1006
_MIN_WAIT_S = 0.005  # also how often a socket that accepts nothing is polled


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts and intervals of a chat, in seconds."""

    connect_s: float = 10.0  # to connect, and to complete the handshake
    answer_s: float = 10.0  # for the answer to AUTH
    ping_s: float = 25.0
    resend_s: float = 20.0  # a message that is not known to be saved by then is resent
    reconnect_s: float = float("inf")  # how long to try to reconnect after a lost connection
    translate_s: float = 30.0  # how long `translate` waits for an answer
    close_s: float = 10.0  # how long `close` waits for messages to be saved and receipts to be sent
    reauth_before_s: float = 60.0  # how long before it expires the token is renewed
    backoff_first_s: float = 0.25  # upper bound of the first delay before a reconnect; doubles each time
    backoff_longest_s: float = 5.0
    backoff_steady_s: float = 5.0  # a connection that lasts so long resets the delay

    def backoff(self) -> Backoff:
        return Backoff(self.backoff_first_s, self.backoff_longest_s, self.backoff_steady_s)


class ChatConnection:
    def __init__(
        self,
        token: Token,
        connector: Connector,
        inbox: Inbox,
        outbox: Outbox,
        *,
        timing: Timing,
        rate_limit: RateLimit,
        acknowledge: bool,
        on_connection: OnConnection,
        on_arrival: Callable[[Message], None],
        on_exchange: OnExchange,
        translate: str,
        on_translation: Callable[[Translation], None],
    ) -> None:
        self.inbox, self.outbox = inbox, outbox
        self.pending_receipts, self._sent_receipts = PendingReceipts(), SentReceipts()
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()  # a message left the outbox, all receipts are sent, or the chat is over
        self.over = False
        self.error: Exception | None = None
        self.user_id: int | None = None
        self.translations, self._translate, self._on_translation = Translations(), translate, on_translation
        self._connector = connector
        self._token = token
        self._timing = timing
        self._rate_limit = rate_limit
        self._acknowledge = acknowledge
        self._on_connection = on_connection
        self._on_arrival, self._on_exchange = on_arrival, on_exchange
        self._socket: ClientWebSocket | None = None
        self._answer: asyncio.Future[ServerFrame] | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._expires_at: float | None = None  # of the token in use, wall clock
        self._refusals = 0  # tokens refused since the last that was accepted

    # ------------------------------------------------------------ life

    @property
    def socket(self) -> ClientWebSocket | None:
        """The authenticated connection; None while the chat reconnects, and when it is over."""
        return self._socket if self.ready.is_set() and not self.over else None

    async def run(self) -> None:
        """Stay connected until the chat is over; `error` is then what ended it."""
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
                socket = await self._connector.connect(self._on_frame)
                await self._use(socket, token)
                if not self.over:
                    # Close codes that forbid a reconnect are for clients that cannot get another token.
                    self._connector.lost(socket.closed.result()._replace(code=_MAY_RECONNECT))
        except ServerUnreachable as error:
            self.end(Unreachable(str(error)))
        except ConnectionRefused as error:
            self.end(AccessDenied(error.name.lower(), str(error)))
        except Exception as error:
            self.end(error)

    def end(self, error: Exception | None = None) -> None:
        if not self.over:
            self.over, self.error = True, error
            self.inbox.end(error)
            why = ChatClosed() if error is None else ChatClosed(getattr(error, "reason", "error"), str(error))
            for sent in (*self.outbox.unsaved(), *self._sent_receipts.all()):
                sent.end(why)
            self.translations.end(why)
        if self._send_timer is not None:
            self._send_timer.cancel()
        self.ready.set()
        self.changed.set()
        if self._socket is not None:
            self._socket.start_closing()

    async def _use(self, socket: ClientWebSocket, token: str) -> None:
        """From AUTH to the end of the connection. Closes the connection if cancelled."""
        self._socket = socket
        was_ready = False
        try:
            if await self._authenticate(socket, token):
                self._connector.opened()
                was_ready = True
                self.ready.set()
                self._on_connection(True, "")
                self.send_pending()
                await self._keep_alive(socket)
        finally:
            if not self.over:
                self.ready.clear()
            self._socket = None
            await socket.close()
            self.outbox.lost()
            self.pending_receipts.lost()
            self.translations.lost()
            if was_ready and (self.error is not None or not self.over):  # else its user closed it
                self._on_connection(False, str(self.error or _why(socket.closed.result())))

    async def _keep_alive(self, socket: ClientWebSocket) -> None:
        """Send pings and renew the token for as long as the connection lasts."""
        while not (await asyncio.wait({socket.closed}, timeout=self._interval_s()))[0]:
            socket.send(Frame(wire.ping()))
            if self._expires_at is not None and self._expires_at - time.time() <= self._timing.reauth_before_s:
                await self._renew(socket)

    def _interval_s(self) -> float:
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

    async def _renew(self, socket: ClientWebSocket) -> None:
        if isinstance(self._token, str):
            self._expires_at = None  # there is no other token; the server reports when this one has expired
            return
        try:
            token = await self._fresh_token()
        except Unreachable as error:
            log.info("no new token yet: %s", error)
            self._expires_at = time.time() + self._timing.reauth_before_s + self._timing.ping_s
            return
        socket.send(Frame(wire.reauth(token)))
        expires_at = _expiry(token)
        # A token that expires at the same time is not renewed again and again.
        self._expires_at = None if expires_at == self._expires_at else expires_at

    def reauth(self, token: str) -> None:
        self._token = token
        self._expires_at = _expiry(token)
        if self._socket is not None and self.ready.is_set():
            self._socket.send(Frame(wire.reauth(token)))

    async def _authenticate(self, socket: ClientWebSocket, token: str) -> bool:
        """False: not on this connection. Raises AccessDenied."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        socket.send(Frame(wire.auth(token, self._translate)))
        waits: set[asyncio.Future[Any]] = {answer, socket.closed}
        await asyncio.wait(waits, timeout=self._timing.answer_s, return_when=asyncio.FIRST_COMPLETED)
        self._answer = None
        if not answer.done():
            return False
        frame = answer.result()
        if frame.type == FrameType.AUTH_OK:
            self._refusals, self._expires_at = 0, _expiry(token)
            return True
        if frame.type == FrameType.AUTH_FAIL:
            self._refuse(frame.reason or "refused")
        else:
            self._connection_error(frame.reason or "")
        return False

    def _refuse(self, reason: str) -> None:
        """The server did not accept the token. One other token is tried, unless the session itself is invalid."""
        self._refusals += 1
        if reason == Reason.SESSION_INVALID:
            self.end(AccessDenied(reason, "this user logged in again elsewhere"))
        elif isinstance(self._token, str) or self._refusals > 1:
            self.end(AccessDenied(reason, "the server does not accept the token"))

    # ------------------------------------------------------------ sending

    def send_pending(self) -> None:
        """Send what may be sent now, receipts first, and schedule the rest."""
        socket = self._socket
        if socket is None or not self.ready.is_set() or self.over:
            return
        now = time.monotonic()
        while self._rate_limit.wait_s(now) <= 0 and socket.writable.is_set():
            frame = self._next_frame(now)
            if frame is None:
                break
            socket.send(Frame(frame))
            self._rate_limit.sent(now)
        if not self.pending_receipts:
            self.changed.set()
        self._schedule(now)

    def _next_frame(self, now: float) -> bytes | None:
        if self.pending_receipts:
            return self.pending_receipts.next()
        if self.translations and (request := self.translations.next()) is not None:
            return request
        sent = self.outbox.next(now)
        if sent is None:
            return None
        self._on_exchange(sent.client_msg_id, "sent", 0)
        return wire.say(sent.client_msg_id, sent.to, sent.body, sent.msg_type, sent.lang)

    def _schedule(self, now: float) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        due_at = now if self.pending_receipts or self.translations else self.outbox.due_at()
        if due_at is not None:
            wait_s = max(due_at - now, self._rate_limit.wait_s(now), _MIN_WAIT_S)
            self._send_timer = asyncio.get_running_loop().call_later(wait_s, self.send_pending)

    def confirm(self, receipt: AckType, message: Message) -> None:
        self.pending_receipts.add(receipt, message.server_msg_id, message.from_user)
        self.send_pending()

    def ask(self, server_msg_id: int, lang: str) -> "asyncio.Future[Translation]":
        """For a translation."""
        asked = self.translations.ask(server_msg_id, lang)
        self.send_pending()
        return asked

    def was_read(self, message: Message) -> None:
        """The user took it from the inbox."""
        if self._acknowledge:
            self.confirm(AckType.DELIVERED, message)
        if self.inbox.should_reconnect and self._socket is not None:
            self._socket.start_closing()  # on the next connection the server resends, in order, what had no room

    # ------------------------------------------------------------ receiving

    def _on_frame(self, data: bytes) -> None:
        try:
            frame = wire.decode_server_frame(data)
        except wire.Refused as error:
            log.warning("ignored an invalid frame of the server: %s", error.message)
            return
        match frame.type:
            case FrameType.SINGLE_CHAT:
                self._message(frame)
            case FrameType.ACK:
                self._ack(frame)
            case FrameType.TRANSLATION if frame.serverMsgId is not None:
                self._translated(Translation(frame.serverMsgId, frame.lang or "", frame.body, frame.reason or ""))
            case FrameType.ERROR:
                self._error(frame)
            case FrameType.AUTH_OK | FrameType.AUTH_FAIL:
                self._authenticated(frame)
            case FrameType.PING if self._socket is not None:
                self._socket.send(Frame(wire.pong()))

    def _authenticated(self, frame: ServerFrame) -> None:
        # Applied here and not in the waiting task: the frames after AUTH_OK may come in the same read.
        if self._answer is not None and not self._answer.done():
            if frame.type == FrameType.AUTH_OK:
                self.user_id = frame.from_ or self.user_id
                self.inbox.reconnected()
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
            lang=frame.lang or "",
            translation=frame.translation.body if frame.translation is not None else None,
        )
        put = self.inbox.put(message)
        if put is not Put.NO_ROOM:
            self._on_arrival(message)
        if put is Put.READ_DUPLICATE and self._acknowledge:
            self.confirm(AckType.DELIVERED, message)

    def _translated(self, translation: Translation) -> None:
        self.translations.received(translation)
        self._on_translation(translation)

    def _ack(self, frame: ServerFrame) -> None:
        match frame.ackType:
            case AckType.ACCEPTED | AckType.SAVED if frame.clientMsgId is not None:
                self._on_exchange(frame.clientMsgId, frame.ackType, frame.ts or 0)
                self._own_ack(AckType(frame.ackType), frame.clientMsgId, frame.serverMsgId)
            case AckType.DELIVERED | AckType.READ if frame.serverMsgId is not None:
                self._sent_receipts.receive(AckType(frame.ackType), frame.from_, frame.serverMsgId)

    def _own_ack(self, receipt: AckType, client_msg_id: str, server_msg_id: int | None) -> None:
        saved = receipt is AckType.SAVED
        sent = self.outbox.done(client_msg_id) if saved else self.outbox.accepted(client_msg_id)
        if sent is None:
            return
        if server_msg_id is not None:
            self._sent_receipts.identify(sent, server_msg_id)
        sent.add_receipt(receipt)
        self.changed.set()
        self.send_pending()

    def _error(self, frame: ServerFrame) -> None:
        reason, client_msg_id = frame.reason or "", frame.clientMsgId
        if client_msg_id is not None and reason not in wire.CLOSING:
            self._on_exchange(client_msg_id, "error", frame.ts or 0)
            self._rejected(client_msg_id, reason)
        elif frame.serverMsgId is not None and self.translations.refused(frame.serverMsgId, reason):
            pass
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)
        else:
            self._connection_error(reason)

    def _rejected(self, client_msg_id: str, reason: str) -> None:
        if reason in wire.RETRY:
            self.outbox.busy(client_msg_id, time.monotonic())
        else:
            sent: Sent | None = self.outbox.done(client_msg_id)
            if sent is not None:
                sent.end(SendFailed(reason, _WHY_REJECTED.get(reason, "the server rejected the message")))
            self.changed.set()
        self.send_pending()

    def _connection_error(self, reason: str) -> None:
        match reason:
            case Reason.KICKED:
                self.end(Kicked())
            case Reason.SESSION_INVALID | Reason.REAUTH_UID_MISMATCH | Reason.TOKEN_EXPIRED | Reason.UNAUTHORIZED:
                self._refuse(reason)
            case _:
                log.info("the server reports: %s", reason)


_WHY_REJECTED: dict[str, str] = {
    Reason.SAVE_FAILED: "the server accepted the message and could not save it",
    Reason.DUPLICATE_MSG_ID_MISMATCH: "this clientMsgId was used for another message",
}


def _why(closed: Closed) -> str:
    return f"{closed.reason or 'no reason given'} ({closed.code})"


def _expiry(token: str) -> float | None:
    """`exp` of a JWT, to renew it in time. The server checks the signature."""
    try:
        payload = token.split(".")[1]
        exp = msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).get("exp")
    except (IndexError, ValueError, binascii.Error, AttributeError, msgspec.DecodeError):
        return None
    return float(exp) if isinstance(exp, int | float) else None
