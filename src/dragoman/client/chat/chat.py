"""A chat with a server: send, listen, say what was read. Staying connected is the keeper's.

Whoever sends waits here while too many messages are not saved, so nothing queues up without bound inside.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from ssl import SSLContext
from types import TracebackType

from dragoman.client.chat.errors import ChatOver
from dragoman.client.chat.inbox import Inbox, Message
from dragoman.client.chat.keeper import Keeper, OnConnection, Timing, Token
from dragoman.client.chat.outbox import Outbox
from dragoman.client.chat.pace import Pace
from dragoman.client.chat.sent import Sent
from dragoman.client.dialler import Dialler
from dragoman.protocol.chat import MAX_BODY_UNITS, MAX_CLIENT_MSG_ID, TEXT, AckType


class Chat:
    """`url` may be several: the next one is tried when one fails. `token` may be a function that gives one: it is asked
    before every connection, and before the token in use expires.

    `in_flight`: messages sent before the one ahead of them was accepted. One keeps the order of sending whatever
    happens; more is faster, and a message the server was too busy for may then arrive behind later ones.
    `acknowledge`: tell the sender *delivered* when `messages` hands a message out.
    `on_receipt` is called whenever something new is known of a message of ours, `on_connection` when the connection
    is there (True) or lost (False, with the reason); neither may wait.
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
        timing: Timing | None = None,
        pace: Pace | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._timing = timing = timing or Timing()
        self._max_unsaved = max_unsaved
        self._on_receipt = on_receipt
        self._keeper = Keeper(
            token,
            Inbox(max_unread),
            Outbox(timing.backoff(), in_flight, timing.again_s),
            timing=timing,
            pace=pace or Pace(),
            acknowledge=acknowledge,
            on_connection=on_connection,
        )
        self._dialler = Dialler(
            [url] if isinstance(url, str) else url,
            self._keeper.received,
            timing.backoff(),
            connect_s=timing.connect_s,
            patience_s=timing.reconnect_s,
            ssl=ssl,
        )
        self._life: asyncio.Task[None] | None = None
        self._floor = asyncio.Lock()  # one waits for room at a time, in the order of asking
        self._number = 0
        self._run = secrets.token_hex(6)

    @property
    def user_id(self) -> int:
        """Who we are, as the server says."""
        if self._keeper.user_id is None:
            raise ChatOver(message="the chat is not open")
        return self._keeper.user_id

    @property
    def connected(self) -> bool:
        return self._keeper.gate.is_set() and not self._keeper.over

    @property
    def unsaved(self) -> int:
        """Messages of ours that are not known to be saved."""
        return len(self._keeper.outbox)

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> "Chat":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.leave()

    async def open(self) -> None:
        """Connect and authenticate. Raises Unreachable, Refused."""
        self._life = asyncio.get_running_loop().create_task(self._keeper.run(self._dialler), name="dragoman-chat")
        try:
            await self._keeper.gate.wait()
        except BaseException:
            await self.leave()
            raise
        if self._keeper.error is not None:
            await self.leave()
            raise self._keeper.error

    async def close(self) -> None:
        """Wait a while for what is not saved and for receipts we owe, then go. What is not known by then, nobody will
        tell; what was not acknowledged comes again."""
        try:
            async with asyncio.timeout(self._timing.close_s):
                await self.settled()
        except TimeoutError:
            pass
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Go without waiting for anything."""
        self._keeper.end()
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})

    async def settled(self) -> None:
        """Wait until every message of ours is saved or failed, and every receipt we owe is said."""
        keeper = self._keeper
        while (keeper.outbox or keeper.owed) and not keeper.over:
            await self._news()

    # ------------------------------------------------------------ saying

    async def send(self, to: int, body: str, *, client_msg_id: str | None = None, msg_type: str = TEXT) -> Sent:
        """Give a message to the connection, or to the next one. Waits only while too many are not saved.

        Raises ValueError for what no server would take, and what ended the chat when it is over.
        """
        name = self._name(client_msg_id)
        _check(to, body, name)
        async with self._floor:
            await self._until_unsaved_below(self._max_unsaved)
            if self._keeper.over:
                raise self._keeper.error or ChatOver()
            if name in self._keeper.outbox:
                raise ValueError(f"client_msg_id {name!r} is in use for a message that is not saved")
            self._number += 1
            sent = Sent(self._number, name, to, body, msg_type, self._on_receipt)
            self._keeper.outbox.add(sent)
            self._keeper.pump()
        return sent

    def read(self, message: Message) -> None:
        """Tell its sender that this message, and what came before it, was read."""
        self._keeper.confirm(AckType.READ, message)

    def delivered(self, message: Message) -> None:
        """For those who switched `acknowledge` off."""
        self._keeper.confirm(AckType.DELIVERED, message)

    def reauth(self, token: str) -> None:
        """A new token, now and for the connections to come."""
        self._keeper.reauth(token)

    # ------------------------------------------------------------ listening

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Messages to us, each once, in their sender's order, to the end of the chat. Raises what ended it."""
        while (message := await self._keeper.inbox.get()) is not None:
            self._keeper.handed_out(message)
            yield message

    async def _until_unsaved_below(self, count: int) -> None:
        keeper = self._keeper
        while len(keeper.outbox) >= count and not keeper.over:
            await self._news()

    async def _news(self) -> None:
        self._keeper.news.clear()
        await self._keeper.news.wait()

    def _name(self, given: str | None) -> str:
        return given if given is not None else f"{self._run}-{self._number + 1}-{secrets.token_hex(4)}"


def _check(to: int, body: str, client_msg_id: str) -> None:
    if to <= 0:
        raise ValueError("a user id is a positive number")
    if not body:
        raise ValueError("a message needs a body")
    if len(body.encode("utf-16-le", "surrogatepass")) // 2 > MAX_BODY_UNITS:
        raise ValueError(f"a message may have {MAX_BODY_UNITS} UTF-16 units")
    if "\0" in body or any("\ud800" <= char <= "\udfff" for char in body):
        raise ValueError("a message is text: no NUL, no lone surrogates")
    if not 0 < len(client_msg_id) <= MAX_CLIENT_MSG_ID:
        raise ValueError(f"a client_msg_id has 1 to {MAX_CLIENT_MSG_ID} characters")
