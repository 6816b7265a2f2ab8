"""A message of ours and what is known of it: the receipts it got, or why it got none.

    accepted   the server has it and its place in our order
    saved      it is a row of the database
    delivered  the receiver's client has it
    read       the receiver has read it

Each of the four can be awaited (`await sent.saved`) and asked (`if sent.saved:`). They come in no fixed order: a server
that delivers first tells *delivered* before *saved*; one that saves while we wait tells *saved* alone. What implies
another one is taken for both.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Final

from dragoman.client.chat.errors import ChatError, SendFailed
from dragoman.protocol.chat import AckType

IMPLIED: Final = {
    AckType.ACCEPTED: frozenset({AckType.ACCEPTED}),
    AckType.SAVED: frozenset({AckType.ACCEPTED, AckType.SAVED}),
    AckType.DELIVERED: frozenset({AckType.ACCEPTED, AckType.DELIVERED}),
    AckType.READ: frozenset({AckType.ACCEPTED, AckType.DELIVERED, AckType.READ}),
}


class Receipt:
    """One of the four: true when it is there, awaitable until it is."""

    __slots__ = ("_sent", "_type")

    def __init__(self, sent: "Sent", type: AckType) -> None:
        self._sent, self._type = sent, type

    def __bool__(self) -> bool:
        return self._type in self._sent.receipts

    def __await__(self) -> Generator[None, None, None]:
        """Raises SendFailed when it will not come, ChatOver when nobody will tell."""
        return self._sent.until(self._type).__await__()


class Sent:
    def __init__(
        self,
        number: int,
        client_msg_id: str,
        to: int,
        body: str,
        msg_type: str,
        changed: Callable[["Sent"], None] = lambda sent: None,
    ) -> None:
        self.number = number  # its place in our order, from 1
        self.client_msg_id = client_msg_id
        self.to = to
        self.body = body
        self.msg_type = msg_type
        self.server_msg_id: int | None = None
        self.receipts: frozenset[AckType] = frozenset()
        self.error: ChatError | None = None
        self._changed = changed
        self._news: asyncio.Event | None = None

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
        """Why the server did not take it, or gave it up."""
        return self.error.reason if isinstance(self.error, SendFailed) else None

    async def until(self, receipt: AckType) -> None:
        while receipt not in self.receipts:
            if self.error is not None:
                raise type(self.error)(self.error.reason, self.error.message)
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()

    # ------------------------------------------------------------ told by the connection

    def reach(self, receipt: AckType) -> bool:
        """False: that was known."""
        if receipt in self.receipts:
            return False
        self.receipts |= IMPLIED[receipt]
        self._wake()
        self._changed(self)
        return True

    def end(self, error: ChatError) -> None:
        """Nothing more will be known of it. `error` is made from its reason and message again for whoever waits."""
        if self.error is None:
            self.error = error
            self._wake()
            if self.failed is not None:
                self._changed(self)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None
