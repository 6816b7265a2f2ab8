"""An instance does not start if it could not handle every kind of inbox message."""

import pytest

from dragoman.instance import services
from dragoman.instance.instance import Instance
from dragoman.instance.redis_check import CannotStart
from dragoman.protocol.peer import Peer
from dragoman.services.routing.handlers import INBOX_KINDS
from support.cluster import config
from support.redis_servers import RedisAt


class Unhandled(Peer, tag="unhandled", frozen=True):
    """A kind that a later change added without a handler."""


async def test_an_instance_without_a_handler_for_a_kind_does_not_start(
    redis_at: RedisAt, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "INBOX_KINDS", (*INBOX_KINDS, Unhandled))
    with pytest.raises(CannotStart, match="no handler for these kinds of inbox message: Unhandled"):
        await Instance.start(config(redis_at, prefix, server__port=0))
