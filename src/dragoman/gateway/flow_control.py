"""Flow control of one connection: what is read, what waits to be written, and how it ends. None of it knows frames.

`ReadGate` collects the reasons not to read. `InboundQueue` handles a few messages in each turn of the loop, so that
other connections have their turn between them; the rest waits, in order and up to a bound, and so does a close that
came behind it. `Backlog` measures how long a slow reader has left data unread. `LingeringClose` ends a connection so
that its last frames arrive.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from dragoman.gateway.open_connections import OpenConnections

_PER_TURN = 16  # messages of one connection
# What may wait. Each message counts for more than its bytes: the smallest are read by the thousand.
_MAX_WAITING_BYTES, _BYTES_PER_MESSAGE = 1 << 20, 2048

Step = Callable[[], None]


class Pause:
    """Reasons not to read, as bits of an int: every idle connection has a set of them."""

    ENDPOINT: Final = 1  # its endpoint asked for it
    QUEUE: Final = 2  # too many messages wait for their turn, or the last one does
    IDLE: Final = 4  # the idle poller watches the socket
    HOLD: Final = 8  # its client has to wait before its next message is handled


class ReadGate:
    """Pauses and resumes a transport: it is read while there is no reason not to."""

    __slots__ = ("_reasons", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._reasons = 0

    def is_paused(self, reason: int) -> bool:
        return bool(self._reasons & reason)

    def pause(self, reason: int) -> None:
        if not self._reasons:
            self._transport.pause_reading()
        self._reasons |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason. If it was the last one, the connection is read again."""
        if self._reasons & reason:
            self._reasons &= ~reason
            if not self._reasons and not self._transport.is_closing():
                self._transport.resume_reading()

    def open(self) -> None:
        """Drop all reasons: everything that arrives is read to its end."""
        reasons, self._reasons = self._reasons, 0
        if reasons and not self._transport.is_closing():
            self._transport.resume_reading()


class InboundQueue:
    __slots__ = ("_bytes", "_gate", "_held", "_in_read", "_waiting", "has_ended")

    def __init__(self, gate: ReadGate) -> None:
        self._gate = gate
        self._in_read = 0  # messages so far of one read
        self._waiting: deque[Step] | None = None  # None: nothing waits
        self._bytes = 0
        self._held: asyncio.TimerHandle | None = None
        self.has_ended = False  # the last message waits: what arrives after it is ignored

    @property
    def is_empty(self) -> bool:
        return self._waiting is None and self._held is None

    def admits(self, *, is_last_read: bool) -> bool:
        """Count one message, and tell whether to handle it at once. If not, it must be added. `is_last_read`: it is the
        last message of one read."""
        self._in_read += 1
        at_once = self.is_empty and self._in_read <= _PER_TURN
        if is_last_read:
            self._in_read = 0
        return at_once

    def read_ended(self) -> None:
        self._in_read = 0

    def add(self, step: Step, size: int = 0) -> None:
        if self._waiting is None:
            self._waiting = deque()
            self._bytes = 0
            if self._held is None:
                asyncio.get_running_loop().call_soon(self._handle_some)
        self._waiting.append(step)
        self._bytes += size + _BYTES_PER_MESSAGE
        if self._bytes > _MAX_WAITING_BYTES:
            self._gate.pause(Pause.QUEUE)

    def in_turn(self, step: Step) -> None:
        """Handle after what waits: now, if nothing does."""
        if self.is_empty:
            step()
        else:
            self.add(step)

    def finish(self, step: Step) -> None:
        """Like `in_turn`; what arrives later is ignored."""
        if not self.is_empty:
            self.has_ended = True
            self._gate.pause(Pause.QUEUE)
        self.in_turn(step)

    def hold(self, seconds: float) -> None:
        """Handle nothing more for so long, and do not read meanwhile."""
        if self._held is None:
            self._gate.pause(Pause.HOLD)
        else:
            self._held.cancel()
        self._held = asyncio.get_running_loop().call_later(seconds, self._release)

    def _release(self) -> None:
        self._held = None
        self._gate.resume(Pause.HOLD)
        if self._waiting is not None:
            self._handle_some()

    def handle_all(self) -> None:
        """Handle what waits now, unless the client has to wait: what it sent is lost with its connection then."""
        while self._waiting and self._held is None:
            self._waiting.popleft()()
        self.clear()

    def clear(self) -> None:
        """Drop what waits; a step that is being handled may call this."""
        self._waiting = None
        if self._held is not None:
            self._held.cancel()
            self._held = None

    def _handle_some(self) -> None:
        for _ in range(_PER_TURN):
            if self._waiting and self._held is None:
                self._waiting.popleft()()
        if self._held is not None:
            return
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._handle_some)
        elif self._waiting is not None:
            self._waiting = None
            self._in_read = 0
            self._gate.resume(Pause.QUEUE)


_MAX_LINGER_BYTES = 1 << 20


class Backlog:
    """The age of the data that a peer has not read, from byte counts alone.

    A mark stands behind the last byte that was queued when the mark was set. Once that byte is sent, the mark moves to
    the end of what is queued then. So a reader that keeps up has a young mark, and no byte waits longer than twice the
    maximum age.
    """

    __slots__ = ("_mark", "_queued", "_since")

    def __init__(self, size: int, now: float) -> None:
        self._queued = self._mark = size
        self._since = now

    def grew(self, size: int) -> None:
        self._queued += size

    def age(self, size: int, now: float) -> float:
        """Seconds that the oldest of the `size` waiting bytes has waited, at least."""
        if self._queued - size >= self._mark:
            self._mark = self._queued
            self._since = now
        return now - self._since


class LingeringClose(asyncio.BufferedProtocol):
    """The last protocol of a connection: it sends everything, and drops what still arrives.

    A socket that is closed while unread data waits is reset, and the reset overtakes what was sent last. So only our
    half is shut. The rest ends when the peer ends its half, or after `close_timeout_s`.
    """

    __slots__ = ("_left", "_on_lost", "_registry", "_transport")

    _scratch = bytearray(1 << 16)  # shared: its content is never used

    def __init__(
        self, transport: asyncio.Transport, registry: OpenConnections, on_lost: Callable[[], None] | None = None
    ) -> None:
        self._transport = transport
        self._registry = registry
        self._on_lost = on_lost
        self._left = _MAX_LINGER_BYTES

    def start(self, *, peer_is_done: bool = False) -> None:
        self._registry.closing.add(self, self._registry.clock())
        self._transport.set_protocol(self)
        if peer_is_done:
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # reset by the peer, which the loop has not noticed yet
            self._transport.abort()

    def expire(self) -> None:
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            # Do not read a flood to its end: the full socket stops the peer.
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.closing.discard(self)
        if self._on_lost is not None:
            self._on_lost()
