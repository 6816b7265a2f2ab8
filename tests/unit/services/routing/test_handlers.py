"""Every kind of inbox message has a handler; a message without one raises."""

import pytest

from dragoman.protocol.peer import DrainInstance, EndSession, Evict, InboxMessage
from dragoman.services.routing.handlers import INBOX_KINDS, Handlers, NoHandler, drop


async def test_a_message_goes_to_the_handler_of_its_kind() -> None:
    handled: list[InboxMessage] = []
    rehomed: list[InboxMessage] = []

    async def handle(message: EndSession) -> None:
        handled.append(message)

    handlers = Handlers()
    handlers.register(EndSession, handle, rehome=rehomed.append)
    handlers.register(Evict, handled.append, rehome=drop)
    await handlers.handle(EndSession("s"))
    await handlers.handle(Evict("n", 1))
    await handlers.rehome(EndSession("of a dead instance"))
    assert (handled, rehomed) == ([EndSession("s"), Evict("n", 1)], [EndSession("of a dead instance")])


async def test_a_message_without_a_handler_raises() -> None:
    handlers = Handlers()
    with pytest.raises(NoHandler, match="no handler for drain"):
        await handlers.handle(DrainInstance())
    with pytest.raises(NoHandler, match="no handler for drain"):
        await handlers.rehome(DrainInstance())


def test_every_kind_of_the_union_needs_a_handler() -> None:
    handlers = Handlers()
    for kind in INBOX_KINDS:
        with pytest.raises(NoHandler, match=kind.__name__):
            handlers.require_all()
        handlers.register(kind, lambda _: None, rehome=lambda _: None)
    handlers.require_all()
