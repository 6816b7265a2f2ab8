"""How a connection ends so that its last words arrive."""

import asyncio
from collections.abc import Callable

from dragoman.gateway.roster import Roster

_DRAIN_BYTES = 1 << 20


class Drain(asyncio.BufferedProtocol):
    """The last protocol of a connection: everything is said, what still comes in is thrown away.

    A socket closed while unread data waits is reset, and the reset overtakes the last words. So only our half is
    shut; the rest ends when the peer ends its half, or when its patience is over.
    """

    __slots__ = ("_gone", "_left", "_roster", "_transport")

    _scratch = bytearray(1 << 16)  # shared: nobody reads it

    def __init__(self, transport: asyncio.Transport, roster: Roster, gone: Callable[[], None] | None = None) -> None:
        self._transport = transport
        self._roster = roster
        self._gone = gone
        self._left = _DRAIN_BYTES

    def start(self, *, peer_is_done: bool = False) -> None:
        self._roster.leaving.add(self, self._roster.clock())
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
        self._roster.leaving.discard(self)
        if self._gone is not None:
            self._gone()
