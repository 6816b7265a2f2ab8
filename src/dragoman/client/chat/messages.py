"""The messages of a chat, those sent and those received, and what can go wrong."""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from dragoman.protocol.chat import AckType, Reason

# ---------------------------------------------------------------- errors

UNREACHABLE = "unreachable"
CLOSED = "closed"
FORGOTTEN = "forgotten"


class ChatError(Exception):
    """The base of all errors of a chat.

    `reason` is a reason of the protocol, such as `kicked` or `body_too_long`; or `unreachable`, `closed`, `forgotten`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{message} ({reason})")
        self.reason = reason
        self.message = message


class Unreachable(ChatError):
    """No server answered in time."""

    def __init__(self, message: str) -> None:
        super().__init__(UNREACHABLE, message)


class AccessDenied(ChatError):
    """The server does not accept the password, the token or the session."""


class Kicked(ChatError):
    """The same user connected elsewhere. Reconnecting would only disconnect that client."""

    def __init__(self) -> None:
        super().__init__(Reason.KICKED, "this user is connected elsewhere now")


class SendFailed(ChatError):
    """The server rejected the message, or accepted it and could not save it (`save_failed`)."""


class ChatClosed(ChatError):
    """The chat ended, or the message was forgotten, before the receipt arrived. The receipt may still be given."""

    def __init__(self, reason: str = CLOSED, message: str = "the chat is closed") -> None:
        super().__init__(reason, message)


# ---------------------------------------------------------------- messages received


@dataclass(frozen=True, slots=True)
class Message:
    """A message to this user."""

    from_user: int
    to_user: int
    body: str
    msg_type: str
    client_msg_id: str
    server_msg_id: int
    seq: int | None  # number in its conversation; None until it is saved
    ts: int  # ms, the server's clock
    lang: str = ""  # that the sender named
    translation: str | None = None  # of a message that is sent again, if the server has it


@dataclass(frozen=True, slots=True)
class Translation:
    """A message in another language; without a `body` the `reason` why there is none: `busy`, `no_node`, `failed`,
    `too_long`, `message_not_found`, or `no_answer` if the server did not answer in time."""

    server_msg_id: int
    lang: str
    body: str | None = None
    reason: str = ""


# ---------------------------------------------------------------- messages sent

IMPLIED: Final = {
    AckType.ACCEPTED: frozenset({AckType.ACCEPTED}),
    AckType.SAVED: frozenset({AckType.ACCEPTED, AckType.SAVED}),
    AckType.DELIVERED: frozenset({AckType.ACCEPTED, AckType.DELIVERED}),
    AckType.READ: frozenset({AckType.ACCEPTED, AckType.DELIVERED, AckType.READ}),
}


class Receipt:
    """One of the four receipts of a message: true once it has arrived, awaitable until then."""

    __slots__ = ("_sent", "_type")

    def __init__(self, sent: "Sent", type: AckType) -> None:
        self._sent, self._type = sent, type

    def __bool__(self) -> bool:
        return self._type in self._sent.receipts

    def __await__(self) -> Generator[None, None, None]:
        """Raises SendFailed if the receipt will not arrive, ChatClosed if the chat ends first."""
        return self._sent.wait_for(self._type).__await__()


class Sent:
    """A message that this user sent, and its receipts.

        accepted   the server has it, and its position in the order of our messages
        saved      it is in the database
        delivered  the receiver's client has it
        read       the receiver has read it

    Await a receipt (`await sent.saved`) or test it (`if sent.saved:`). Receipts arrive in no fixed order: a server that
    delivers before it saves reports *delivered* before *saved*. A receipt includes those that it implies.
    """

    def __init__(
        self,
        number: int,
        client_msg_id: str,
        to: int,
        body: str,
        msg_type: str,
        on_change: Callable[["Sent"], None] = lambda sent: None,
        lang: str = "",
    ) -> None:
        self.number = number  # its position in the order of our messages, from 1
        self.client_msg_id = client_msg_id
        self.to = to
        self.body = body
        self.msg_type = msg_type
        self.lang = lang
        self.server_msg_id: int | None = None
        self.receipts: frozenset[AckType] = frozenset()
        self.error: ChatError | None = None
        self._on_change = on_change
        self._changed: asyncio.Event | None = None

    def __repr__(self) -> str:
        known = self.error.reason if self.error is not None else "+".join(sorted(self.receipts)) or "sent"
        return f"<Sent {self.client_msg_id} to {self.to}: {known}>"

    @property
    def accepted(self) -> Receipt:
        return Receipt(self, AckType.ACCEPTED)

    @property
    def saved(self) -> Receipt:
        return Receipt(self, AckType.SAVED)

    @property
    def delivered(self) -> Receipt:
        return Receipt(self, AckType.DELIVERED)

    @property
    def read(self) -> Receipt:
        return Receipt(self, AckType.READ)

    @property
    def failed(self) -> str | None:
        """The reason why the server rejected the message or could not save it; None if it did neither."""
        return self.error.reason if isinstance(self.error, SendFailed) else None

    async def wait_for(self, receipt: AckType) -> None:
        while receipt not in self.receipts:
            if self.error is not None:
                # A new exception for each waiter: a traceback belongs to one.
                raise type(self.error)(self.error.reason, self.error.message)
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()

    # ------------------------------------------------------------ called by the connection

    def identify(self, server_msg_id: int) -> None:
        self.server_msg_id = server_msg_id

    def add_receipt(self, receipt: AckType) -> bool:
        """False: it was known."""
        if receipt in self.receipts:
            return False
        self.receipts |= IMPLIED[receipt]
        self._wake_waiters()
        self._on_change(self)
        return True

    def end(self, error: ChatError) -> None:
        """No more receipts follow, because of `error`."""
        if self.error is None:
            self.error = error
            self._wake_waiters()
            if self.failed is not None:
                self._on_change(self)

    def _wake_waiters(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None
