"""The handler of every kind of inbox message.

Two functions per kind: `handle` runs on the instance that the message is for; `rehome` runs on the instance that
takes over the inbox of a dead one, and sends the message where it belongs now. An instance starts only if every kind
has both. A message without a handler raises, so its entry stays pending and is never acknowledged.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar, get_args

import structlog

from dragoman.protocol.peer import InboxMessage, Peer, kind_of

log = structlog.get_logger(__name__)

INBOX_KINDS: tuple[type[Peer], ...] = get_args(InboxMessage)
M = TypeVar("M", bound=Peer)


class NoHandler(Exception):
    """A kind of inbox message has no handler."""


class _Handler(NamedTuple):
    handle: Callable[[Any], Awaitable[None] | None]
    rehome: Callable[[Any], Awaitable[None] | None]


class Handlers:
    def __init__(self, kinds: Iterable[type[Peer]] = INBOX_KINDS) -> None:
        self._kinds = tuple(kinds)
        self._handlers: dict[type[Peer], _Handler] = {}

    def register(
        self,
        kind: type[M],
        handle: Callable[[M], Awaitable[None] | None],
        *,
        rehome: Callable[[M], Awaitable[None] | None],
    ) -> None:
        """A later registration of the same kind replaces the earlier one."""
        self._handlers[kind] = _Handler(handle, rehome)

    def require_all(self) -> None:
        """Raises NoHandler if a kind has no handler."""
        missing = [kind.__name__ for kind in self._kinds if kind not in self._handlers]
        if missing:
            raise NoHandler(f"no handler for these kinds of inbox message: {', '.join(missing)}")

    async def handle(self, message: InboxMessage) -> None:
        pending = self._of(message).handle(message)
        if pending is not None:
            await pending

    def handle_at_once(self, message: InboxMessage) -> None:
        """Of a kind whose handler awaits nothing."""
        pending = self._of(message).handle(message)
        assert pending is None, f"the handler of {kind_of(message)} awaits something"

    async def rehome(self, message: InboxMessage) -> None:
        pending = self._of(message).rehome(message)
        if pending is not None:
            await pending

    def _of(self, message: InboxMessage) -> _Handler:
        try:
            return self._handlers[type(message)]
        except KeyError:
            raise NoHandler(f"no handler for {kind_of(message)}") from None


def drop_silently(message: InboxMessage) -> None:
    """The `rehome` of messages that nothing waits for."""


def drop(message: InboxMessage) -> None:
    """The `rehome` of messages that mean something only to the instance that died."""
    log.info("dropped with its instance", kind=kind_of(message))
