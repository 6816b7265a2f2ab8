"""What one connected user is sent: first the undelivered rows of the archive, then live messages.

    AUTH ─▶ resend: undelivered rows, page by page, lowest id first
                │ live pushes queue meanwhile
                ▼
            live: a push is written at once

`ConnectionState` decides what is written; this reads the archive and writes to the socket.
"""

import asyncio
from time import monotonic, time
from typing import Protocol

import structlog

from dragoman.archive import ArchiveError, Stored
from dragoman.domain.chat.delivery_state import ConnectionState
from dragoman.domain.limits.frames import AckCredit
from dragoman.protocol import chat as wire
from dragoman.services.sockets import Socket

log = structlog.get_logger(__name__)

PAGE = 100
FULL_BYTES = 256 * 1024  # not read by the client yet: then the next page waits
POLL_S = 0.02
RETRY_S = 1.0
MAX_RESEND_PAUSE_S = 300.0


class ChatSocket(Socket, Protocol):
    @property
    def buffered(self) -> int: ...

    @property
    def frames(self) -> int: ...

    def ping(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Undelivered(Protocol):
    async def undelivered(self, user: int, after: int, limit: int) -> list[Stored]:
        """Rows for this user that it has not acknowledged, lowest id first. Raises ArchiveError."""


class AutomaticTranslation(Protocol):
    """Translates what a connection is sent."""

    def sent(self, receiver: "Inbound", frame: bytes) -> None:
        """A message was sent to this receiver."""

    async def stored(self, ids: list[int]) -> dict[int, wire.Translation]:
        """The translations that these messages have already."""


class Inbound:
    def __init__(self, user: int, socket: ChatSocket, archive: Undelivered) -> None:
        self.user, self.socket = user, socket
        self.sent_at = monotonic()
        self.ack_credit = AckCredit()
        self._archive = archive
        self._state = ConnectionState()
        self._translation: AutomaticTranslation | None = None
        self._resent_at = self._acknowledged_at = self._resend_pause_s = 0.0

    def send(self, frame: bytes) -> None:
        """Any frame for this socket."""
        self.sent_at = monotonic()
        self.socket.send(frame)

    def _send_message(self, frame: bytes) -> None:
        self.ack_credit.pushed()
        self.send(frame)
        if self._translation is not None:
            self._translation.sent(self, frame)

    @property
    def closed(self) -> bool:
        return self.socket.closed

    def translate_by(self, translation: AutomaticTranslation) -> None:
        """Messages are translated from now on."""
        self._translation = translation

    # -- messages --------------------------------------------------------------------------------

    def push(self, id: int, sender: int, frame: bytes) -> None:
        """A live message; during a resend it queues."""
        if self._state.push(id, sender, frame):
            self._send_message(frame)

    def push_early(self, id: int, sender: int, frame: bytes, after: int) -> bool:
        """One that is not saved yet; False: it must wait until it is."""
        if not self._state.may_push_early(after):
            return False
        self.push(id, sender, frame)
        return True

    def pause(self) -> None:
        """What is pushed from now on waits for the resend that `resume` begins."""
        self._state.pause()

    async def resume(self) -> None:
        """Once for each `pause`, and once for a new connection."""
        if self._state.resume():
            await self._resend(again=False, pages=None)

    async def resend(self, *, again: bool = False, pages: int | None = None) -> None:
        """Send what is undelivered; with `again` also what this connection was sent before."""
        if self._state.request_resend():
            await self._resend(again=again, pages=pages)

    async def _resend(self, *, again: bool, pages: int | None) -> None:
        try:
            while self._state.next_pass() and not self.socket.closed:
                await self._all_pages(again, pages)
                again, pages = False, None  # a resend requested meanwhile covers everything that was not sent
                for frame in self._state.end_pass():
                    self._send_message(frame)
        finally:
            for frame in self._state.end_resend():
                self._send_message(frame)
            self._resent_at = monotonic()

    async def _all_pages(self, again: bool, pages: int | None) -> None:
        after, fetched = 0, 0
        while not self.socket.closed:
            page = await self._page(after)
            found = await self._translation.stored([row.id for row in page]) if self._translation and page else {}
            for row in page:
                if self._state.deliver(row.id, row.from_user, again=again):
                    self._send_message(frame_of(row, found.get(row.id)))
            fetched += 1
            if len(page) < PAGE or fetched == pages:
                return
            after = page[-1].id
            await self._until_read()

    async def _until_read(self) -> None:
        """Until the client has read most of what it was sent."""
        while self.socket.buffered > FULL_BYTES and not self.socket.closed:  # noqa: ASYNC110 - sockets have no event
            await asyncio.sleep(POLL_S)

    async def _page(self, after: int) -> list[Stored]:
        """While the database is unavailable everything waits: what is undelivered comes before what is new."""
        while not self.socket.closed:
            try:
                return await self._archive.undelivered(self.user, after, PAGE)
            except ArchiveError as error:
                log.warning("a resend waits for the database", user=self.user, error=str(error), limited=True)
                await asyncio.sleep(RETRY_S)
        return []

    # -- acknowledgements ------------------------------------------------------------------------

    def acknowledged_any(self) -> None:
        """It sent a receipt, whatever for."""
        self._acknowledged_at = monotonic()

    def acknowledge(self, id: int) -> tuple[int, ...]:
        """The messages a receipt for `id` covers: it, and what its sender sent before it on this connection."""
        return self._state.acknowledge(id)

    # -- resends to a silent receiver ------------------------------------------------------------

    def is_resend_due(self, now: float, after_s: float) -> bool:
        return not self._state.resending and now >= self._resent_at + self._pause_s(after_s)

    def back_off(self, after_s: float) -> None:
        """It has messages that it did not acknowledge: the next resend comes after twice the pause."""
        self._resend_pause_s = min(2 * self._pause_s(after_s), MAX_RESEND_PAUSE_S)

    def reset_back_off(self) -> None:
        self._resend_pause_s = 0.0

    def _pause_s(self, after_s: float) -> float:
        """Since the last resend. One that acknowledges does not wait longer for what it misses later."""
        answers = self._acknowledged_at > self._resent_at
        return after_s if answers else max(self._resend_pause_s, after_s)


def now_ms() -> int:
    """The `ts` of a frame, by the wall clock. It is data: nothing is decided by comparing it with another clock."""
    return int(time() * 1000)


def frame_of(row: Stored, translation: wire.Translation | None = None) -> bytes:
    return wire.chat(
        row.from_user, row.to_user, row.client_msg_id, row.id, row.msg_type, row.body, row.created_ms, row.seq,
        row.lang, translation,
    )  # fmt: skip
