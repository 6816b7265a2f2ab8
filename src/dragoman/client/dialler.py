"""Connections, one after another: which address is next, how long to wait for it, when to give up.

The first time every address is tried once, and that is it: somebody waits for an answer. A session that was open
is worth more patience: `patience_s` from the moment its connection was lost.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from ssl import SSLContext

from picows import WSError, WSInvalidStatusError, WSInvalidURL

from dragoman.client.backoff import Backoff
from dragoman.client.errors import SessionError, Unreachable
from dragoman.client.link import Closed, Link
from dragoman.protocol.codes import Close, may_come_back

log = logging.getLogger("dragoman.client")

_REFUSED_STATUS = {401: "UNAUTHORIZED", 403: "FORBIDDEN"}


class Dialler:
    def __init__(
        self,
        urls: Sequence[str],
        received: Callable[[bytes], None],
        backoff: Backoff,
        *,
        connect_s: float,
        patience_s: float,
        ssl: SSLContext | None = None,
    ) -> None:
        if not urls:
            raise ValueError("a session needs at least one address")
        self._urls = cycle(urls)
        self._received = received
        self._backoff = backoff
        self._connect_s = connect_s
        self._patience_s = patience_s
        self._ssl = ssl
        self._tries_left = len(urls)  # of the first round
        self._give_up_at: float | None = None
        self._opened_at: float | None = None
        self._dialled = ""

    async def dial(self) -> Link:
        """A connection. Raises Unreachable when patience is over, SessionError when there is no use."""
        while True:
            if self._give_up_at is not None:
                await asyncio.sleep(self._backoff.delay_s())
            dialled = next(self._urls)
            url = self._dialled = _without_secrets(dialled)
            try:
                return await Link.open(dialled, self._received, self._connect_s, self._ssl)
            except WSInvalidURL:
                raise ValueError(f"{url!r} is not the address of a server, as ws://host:5010/ws/session is") from None
            except WSInvalidStatusError as error:
                status = int(error.response.status) if error.response is not None else 0
                if status in _REFUSED_STATUS:
                    raise SessionError(_REFUSED_STATUS[status], f"{url} does not let us in: HTTP {status}") from error
                self._failed(f"{url} answered with HTTP {status}, not as a server of sessions")
            except TimeoutError:
                self._failed(f"{url} does not answer")
            except (OSError, WSError) as error:
                self._failed(f"no server answers at {url}: {_why(error)}")

    def opened(self) -> None:
        """The session is open on the connection we gave."""
        self._tries_left = 0
        self._give_up_at = None
        self._opened_at = time.monotonic()

    def lost(self, closed: Closed) -> None:
        """The connection is gone; raises what makes coming back pointless."""
        now = time.monotonic()
        if self._opened_at is not None:
            self._backoff.lasted(now - self._opened_at)
            self._opened_at = None
        code = closed.code
        if not may_come_back(code):
            name = Close(code).name if code in set(Close) else str(code)
            raise SessionError(name, closed.reason or "the server closed the connection and does not want it back")
        if self._give_up_at is None:
            self._give_up_at = now + self._patience_s
        self._failed(f"the connection to {self._dialled} is gone: {closed.reason or 'no reason given'} ({code})")

    def _failed(self, why: str) -> None:
        """Raises when that was the last try."""
        log.info("%s", why)
        self._tries_left -= 1
        over = self._tries_left <= 0 if self._give_up_at is None else time.monotonic() >= self._give_up_at
        if over:
            raise Unreachable(why)


def _without_secrets(url: str) -> str:
    """As it may be shown: without a query, where a token may be, and without a password."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
