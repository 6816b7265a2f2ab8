"""A chat with a server: send messages, receive messages, confirm them. `ChatConnection` keeps it connected.

`send` waits while too many messages are not saved, so the queue is bounded.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from ssl import SSLContext
from types import TracebackType

from dragoman.client.chat.chat_connection import ChatConnection, OnConnection, OnExchange, Timing, Token
from dragoman.client.chat.messages import ChatClosed, Message, Sent, Translation
from dragoman.client.chat.outbox import Inbox, Outbox
from dragoman.client.pacing import RateLimit
from dragoman.connection import ClientWebSocket, Connector
from dragoman.protocol.chat import MAX_BODY_UNITS, MAX_CLIENT_MSG_ID, TEXT, AckType

log = logging.getLogger("dragoman.client")


class Chat:
    """One user's connection to a chat server. Use it with `async with`, which opens and closes it.

        async with Chat("ws://127.0.0.1:5010/ws", token=account.token) as chat:
            sent = await chat.send(to=2, body="hi")
            await sent.saved

    Parameters:

    - `url`: one address or several. When one fails, the next is tried.
    - `token`: an access token, or a function that returns one (plain or async). The function is called before each
      connection, and before the current token expires.
    - `acknowledge`: send *delivered* to the sender when `messages` yields a message.
    - `in_flight`: how many messages may be sent before the first of them is accepted. With 1 the order of sending
      always holds. More is faster, but a message that the server was too busy for may arrive behind later ones.
    - `max_unsaved`: `send` waits while so many messages are not saved.
    - `max_unread`: how many messages wait for `messages` to yield them.
    - `on_receipt`: called when a message gets a receipt or fails.
    - `on_connection`: called with (True, "") when the chat is connected, with (False, reason) when it is not.
    - `on_arrival`: called for each message that arrives, duplicates included, before `messages` yields it.
    - `on_exchange`: called with (clientMsgId, what, ts) for each message that is sent ("sent") and each answer to one
      ("accepted", "saved", "error"), repeated ones included; `ts` is that of the answer.
    - `translate`: a language, such as "es": the server is asked for the translation of each message that arrives.
    - `on_translation`: called with each Translation, also with those that have a reason instead of a text.
    - `timing`, `rate_limit`: timeouts, and how fast frames are sent.

    Callbacks must not block.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: Token,
        acknowledge: bool = True,
        in_flight: int = 1,
        max_unsaved: int = 1000,
        max_unread: int = 1000,
        on_receipt: Callable[[Sent], None] = lambda sent: None,
        on_connection: OnConnection = lambda up, why: None,
        on_arrival: Callable[[Message], None] = lambda message: None,
        on_exchange: OnExchange = lambda client_msg_id, what, ts: None,
        translate: str = "",
        on_translation: Callable[[Translation], None] = lambda translation: None,
        timing: Timing | None = None,
        rate_limit: RateLimit | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._timing = timing = timing or Timing()
        self._max_unsaved = max_unsaved
        self._on_receipt = on_receipt
        connector = Connector(
            url, timing.backoff(), log, connect_s=timing.connect_s, reconnect_s=timing.reconnect_s, ssl=ssl
        )
        self._connection = ChatConnection(
            token,
            connector,
            Inbox(max_unread),
            Outbox(timing.backoff(), in_flight, timing.resend_s),
            timing=timing,
            rate_limit=rate_limit or RateLimit(),
            acknowledge=acknowledge,
            on_connection=on_connection,
            on_arrival=on_arrival,
            on_exchange=on_exchange,
            translate=translate,
            on_translation=on_translation,
        )
        self._running: asyncio.Task[None] | None = None
        self._send_lock = asyncio.Lock()  # senders wait for room in the order of their calls
        self._number = 0
        self._prefix = secrets.token_hex(6)

    @property
    def user_id(self) -> int:
        """The id of this user, as the server reports it."""
        if self._connection.user_id is None:
            raise ChatClosed(message="the chat is not open")
        return self._connection.user_id

    @property
    def connected(self) -> bool:
        return self._connection.socket is not None

    @property
    def socket(self) -> ClientWebSocket | None:
        """The current connection; None while the chat reconnects. Lets a test cut it, or stop reading it."""
        return self._connection.socket

    @property
    def unsaved(self) -> int:
        """How many of our messages are not known to be saved."""
        return len(self._connection.outbox)

    # ------------------------------------------------------------ opening and closing

    async def __aenter__(self) -> "Chat":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()

    async def open(self) -> None:
        """Connect and authenticate. Raises Unreachable and AccessDenied."""
        self._running = asyncio.get_running_loop().create_task(self._connection.run(), name="dragoman-chat")
        try:
            await self._connection.ready.wait()
        except BaseException:
            await self.abort()
            raise
        if self._connection.error is not None:
            await self.abort()
            raise self._connection.error

    async def close(self) -> None:
        """Wait up to `timing.close_s` until messages are saved and receipts are sent, then close.

        Receipts that arrive later are not reported. Messages that were not acknowledged are delivered again later.
        """
        try:
            async with asyncio.timeout(self._timing.close_s):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Close without waiting."""
        self._connection.end()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def flush(self) -> None:
        """Wait until every message of ours is saved or failed, and every receipt is sent."""
        connection = self._connection
        while (connection.outbox or connection.pending_receipts) and not connection.over:
            await self._wait_for_change()

    # ------------------------------------------------------------ sending

    async def send(
        self, to: int, body: str, *, client_msg_id: str | None = None, msg_type: str = TEXT, lang: str = ""
    ) -> Sent:
        """Queue a message; it is sent now, or after a reconnect. Waits only while `max_unsaved` messages are not saved.

        `lang` is its language, which a translation starts from.

        Await the receipts of the returned Sent. Raises ValueError for a message that no server accepts, and the error
        that ended the chat if it is over.
        """
        name = self._client_msg_id(client_msg_id)
        _check(to, body, name)
        async with self._send_lock:
            await self._until_unsaved_below(self._max_unsaved)
            if self._connection.over:
                raise self._connection.error or ChatClosed()
            if name in self._connection.outbox:
                raise ValueError(f"client_msg_id {name!r} is in use for a message that is not saved")
            self._number += 1
            sent = Sent(self._number, name, to, body, msg_type, self._on_receipt, lang)
            self._connection.outbox.add(sent)
            self._connection.send_pending()
        return sent

    def read(self, message: Message) -> None:
        """Tell the sender that this message, and all before it, were read."""
        self._connection.confirm(AckType.READ, message)

    def delivered(self, message: Message) -> None:
        """Tell the sender that this message was delivered. Only needed with `acknowledge=False`."""
        self._connection.confirm(AckType.DELIVERED, message)

    async def translate(self, message: Message | int, lang: str) -> Translation:
        """A message that this user sent or received, in another language; an int is its server_msg_id."""
        id = message.server_msg_id if isinstance(message, Message) else message
        if self._connection.over:
            raise self._connection.error or ChatClosed()
        asked = self._connection.ask(id, lang)
        done, _ = await asyncio.wait({asked}, timeout=self._timing.translate_s)
        if not done:
            self._connection.translations.forget(id, lang)
            return Translation(id, lang, reason="no_answer")
        return asked.result()

    def reauth(self, token: str) -> None:
        """Use a new token, now and for later connections."""
        self._connection.reauth(token)

    # ------------------------------------------------------------ receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Messages to this user, each once, in the order of their sender, until the chat is over. Raises its error."""
        while (message := await self._connection.inbox.get()) is not None:
            self._connection.was_read(message)
            yield message

    async def _until_unsaved_below(self, count: int) -> None:
        connection = self._connection
        while len(connection.outbox) >= count and not connection.over:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._connection.changed.clear()
        await self._connection.changed.wait()

    def _client_msg_id(self, given: str | None) -> str:
        return given if given is not None else f"{self._prefix}-{self._number + 1}-{secrets.token_hex(4)}"


def _check(to: int, body: str, client_msg_id: str) -> None:
    if to <= 0:
        raise ValueError("a user id is a positive number")
    if not body:
        raise ValueError("a message must have a body")
    if len(body.encode("utf-16-le", "surrogatepass")) // 2 > MAX_BODY_UNITS:
        raise ValueError(f"a message may have {MAX_BODY_UNITS} UTF-16 units")
    if "\0" in body or any("\ud800" <= char <= "\udfff" for char in body):
        raise ValueError("a message is text: no NUL, no lone surrogates")
    if not 0 < len(client_msg_id) <= MAX_CLIENT_MSG_ID:
        raise ValueError(f"a client_msg_id has 1 to {MAX_CLIENT_MSG_ID} characters")
