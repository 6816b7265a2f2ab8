"""What one connected user is sent: live messages, and before them all that it has not confirmed.

    AUTH ─▶ catching up: undelivered rows, page by page, lowest id first
                │ live pushes meanwhile wait behind them
                ▼
            live: what is pushed is written at once

- A message is written once a connection, unless it stays unconfirmed and is sent again on purpose (`again`).
- A receipt for a message covers those of the same sender that were written before it on this connection, and no
  others: nothing counts as delivered that was not sent.
- Bounded: what does not fit waits in the archive, and is fetched from there.
"""

import asyncio
from collections import OrderedDict, deque
from time import monotonic
from typing import Protocol

import structlog

from dragoman.archive import ArchiveError, Stored
from dragoman.domain.chat.rules import AckCredit
from dragoman.protocol import chat as wire
from dragoman.services.chat.mailroom import Mail
from dragoman.services.sockets import Socket

log = structlog.get_logger(__name__)

PAGE = 100
MOST_WAITING = 1000  # live pushes behind a catch-up
MOST_UNCONFIRMED = 20_000
MOST_CONFIRMED = 500  # more than are confirmed until the database knows; each is 140 bytes of every user who chats
FULL_BYTES = 256 * 1024  # waiting to be read by the client: then the next page waits too
LOOK_S = 0.02
RETRY_S = 1.0


class ChatSocket(Socket, Protocol):
    @property
    def buffered(self) -> int: ...

    @property
    def frames(self) -> int: ...

    def ping(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Inbound:
    def __init__(self, user: int, socket: ChatSocket, mail: Mail) -> None:
        self.user, self.socket = user, socket
        self.said_at = monotonic()
        self._mail = mail
        self._unconfirmed: OrderedDict[int, int] = OrderedDict()  # id → sender, as written
        self._by_sender: dict[int, deque[int]] = {}
        self._confirmed: OrderedDict[int, None] = OrderedDict()  # the latest
        self._waiting: deque[tuple[int, int, bytes]] = deque()
        self._holds = 1  # from the beginning: nothing live may come before what waited
        self._catching_up = False
        self._missed = False  # something newer than what waits
        self._look_again = False  # something older
        self.caught_up_at = 0.0
        self.ack_credit = AckCredit()

    def say(self, frame: bytes) -> None:
        """Anything that is for this socket."""
        self.said_at = monotonic()
        self.socket.send(frame)

    @property
    def catching_up(self) -> bool:
        return self._catching_up or self._holds > 0

    # -- sending ---------------------------------------------------------------------------------

    def push(self, id: int, sender: int, frame: bytes) -> None:
        """A live message; behind a catch-up it waits its turn."""
        if not self.catching_up:
            self._write(id, sender, frame)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append((id, sender, frame))
        else:
            self._missed = True

    def hold(self) -> None:
        """From now on what is pushed waits, also behind a catch-up that is under way, for one that is to `begin`."""
        self._holds += 1

    async def begin(self) -> None:
        """The catch-up that everything waits for; once for each `hold`."""
        self._holds -= 1
        await self.catch_up()

    async def catch_up(self, *, again: bool = False, pages: int | None = None) -> None:
        """Send what is undelivered; with `again` also what was written before. One at a time; none while held."""
        self._look_again = True
        if self.catching_up:
            return
        self._catching_up = True
        try:
            while self._behind and not self.socket.closed:
                self._missed = self._look_again = False
                await self._all_pages(again, pages)
                again, pages = False, None  # who asked meanwhile asked for all that it was not sent
                if not self._look_again:
                    self._let_go()
        finally:
            self._let_go()
            self._catching_up = False
            self.caught_up_at = monotonic()

    @property
    def _behind(self) -> bool:
        """What is newer than what waits has to come after it, and that may be held."""
        return self._look_again or (self._missed and not self._holds)

    async def _all_pages(self, again: bool, pages: int | None) -> None:
        after, fetched = 0, 0
        while not self.socket.closed:
            page = await self._page(after)
            for row in page:
                self._write(row.id, row.from_user, frame_of(row), again=again)
            fetched += 1
            if len(page) < PAGE or fetched == pages:
                return
            after = page[-1].id
            await self._room()

    async def _room(self) -> None:
        """Until the client has read most of what it was sent."""
        while self.socket.buffered > FULL_BYTES and not self.socket.closed:  # noqa: ASYNC110 - sockets tell nobody
            await asyncio.sleep(LOOK_S)

    async def _page(self, after: int) -> list[Stored]:
        """The database may be away: what is undelivered comes before what is new, so everything waits for it."""
        while not self.socket.closed:
            try:
                return await self._mail.undelivered(self.user, after, PAGE)
            except ArchiveError as error:
                log.warning("a catch-up waits for the database", user=self.user, error=str(error), limited=True)
                await asyncio.sleep(RETRY_S)
        return []

    def _let_go(self) -> None:
        while self._waiting and not self._holds:
            self._write(*self._waiting.popleft())

    def _write(self, id: int, sender: int, frame: bytes, *, again: bool = False) -> None:
        if id in self._confirmed or (id in self._unconfirmed and not again):
            return
        if id not in self._unconfirmed:
            self._unconfirmed[id] = sender
            self._by_sender.setdefault(sender, deque()).append(id)
            if len(self._unconfirmed) > MOST_UNCONFIRMED:
                self._forget_oldest()
        self.ack_credit.pushed()
        self.say(frame)

    def _forget_oldest(self) -> None:
        oldest, sender = self._unconfirmed.popitem(last=False)
        theirs = self._by_sender[sender]
        if theirs[0] == oldest:
            theirs.popleft()
        if not theirs:
            del self._by_sender[sender]

    # -- receipts --------------------------------------------------------------------------------

    def confirmed(self, id: int) -> tuple[int, ...]:
        """The messages a receipt for `id` covers: it, and what its sender sent before it on this connection."""
        sender = self._unconfirmed.get(id)
        if sender is None:
            return (id,)
        covered, theirs = list[int](), self._by_sender[sender]
        while not covered or covered[-1] != id:
            covered.append(theirs.popleft())
        if not theirs:
            del self._by_sender[sender]
        for one in covered:
            self._unconfirmed.pop(one, None)
            self._confirmed[one] = None
        while len(self._confirmed) > MOST_CONFIRMED:
            self._confirmed.popitem(last=False)
        return tuple(covered)


def frame_of(row: Stored) -> bytes:
    return wire.chat(
        row.from_user, row.to_user, row.client_msg_id, row.id, row.msg_type, row.body, row.created_ms, row.seq
    )
