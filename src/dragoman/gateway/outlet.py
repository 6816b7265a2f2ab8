"""Writing to a connection: how long data has been waiting for a slow reader, and how a connection ends so that its
last frames arrive."""

import asyncio
from collections.abc import Callable

from dragoman.gateway.open_connections import OpenConnections

_DRAIN_BYTES = 1 << 20


class Backlog:
    """The age of what a peer has not read, from byte counts alone.

    A mark stands behind the last byte that was queued when it was set; once that has gone out the mark moves to the
    end of what is queued then. So a reader that keeps up has a young mark, and no byte waits longer than twice the
    age at which one gives up.
    """

    __slots__ = ("_mark", "_queued", "_since")

    def __init__(self, size: int, now: float) -> None:
        self._queued = self._mark = size
        self._since = now

    def grew(self, size: int) -> None:
        self._queued += size

    def age(self, size: int, now: float) -> float:
        """Seconds that the oldest of the `size` bytes still waiting has been waiting, at least."""
        if self._queued - size >= self._mark:
            self._mark = self._queued
            self._since = now
        return now - self._since


class Drain(asyncio.BufferedProtocol):
    """The last protocol of a connection: everything is sent, and what still arrives is dropped.

    A socket that is closed while unread data waits is reset, and the reset overtakes what was sent last. So only our
    half is shut. The rest ends when the peer ends its half, or after `ConnectionLimits.close_timeout_s`.
    """

    __slots__ = ("_gone", "_left", "_registry", "_transport")

    _scratch = bytearray(1 << 16)  # shared: nobody reads it

    def __init__(
        self, transport: asyncio.Transport, registry: OpenConnections, gone: Callable[[], None] | None = None
    ) -> None:
        self._transport = transport
        self._registry = registry
        self._gone = gone
        self._left = _DRAIN_BYTES

    def start(self, *, peer_is_done: bool = False) -> None:
        self._registry.leaving.add(self, self._registry.clock())
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
            # A flood is not worth reading to its end: let the peer's own socket hold it back.
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.leaving.discard(self)
        if self._gone is not None:
            self._gone()
