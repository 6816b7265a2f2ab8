"""Utterances by a socket on another instance than their session: with Redis away they wait, as do their results."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dragoman.protocol.codec import encode
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.peer import ForwardedUtterance, InboxMessage, ToSocket
from dragoman.protocol.session import SessionInit, Utterance
from dragoman.services.speech.session import Session
from dragoman.store.errors import RedisAway, UnknownOutcome
from dragoman.store.inbox import PushReply
from integration.speech.test_session import OPUS, WHO
from support.in_process import TIMEOUT_S, InProcessInstance, OpenInstance, RecordingSocket
from support.waiting import wait_until


async def gateway(
    open_instance: OpenInstance, **flags: object
) -> tuple[InProcessInstance, InProcessInstance, Session, RecordingSocket]:
    """A session at b, and a socket at a by which it is spoken to."""
    a, b = await open_instance("a", **flags), await open_instance("b")
    await b.node("n", working=True)
    session = b.services.sessions.open(RecordingSocket(), SessionInit("1", "api-gateway", "en", "es"), WHO)
    await wait_until(lambda: a.stores.owners.session_owner(session.id), TIMEOUT_S)
    return a, b, session, RecordingSocket()


def utter(instance: InProcessInstance, session: Session, socket: RecordingSocket) -> None:
    message = Utterance(session.id, 0, True, "en", "es", OPUS, "opus", 16000)
    instance.services.sessions.forwarder.forward(socket, message, WHO.owner, "default", encode(message))


class Stumbling:
    """The push of a router that fails the first time it has a message of a kind."""

    def __init__(self, instance: InProcessInstance, kind: type[InboxMessage], stumble: Exception | PushReply) -> None:
        self._router, self._kind = instance.services.router, kind
        self._stumble: Exception | PushReply | None = stumble
        self._push: Callable[..., Awaitable[PushReply]] = self._router.push
        self._router.push = self  # type: ignore[assignment,method-assign]

    async def __call__(self, instance: str, message: InboxMessage, *more: Any) -> PushReply:
        stumble, self._stumble = (self._stumble, None) if isinstance(message, self._kind) else (None, self._stumble)
        if isinstance(stumble, PushReply):
            return stumble
        if stumble is not None:
            raise stumble
        return await self._push(instance, message, *more)


AWAY = RedisAway("for a moment")


@pytest.mark.parametrize("stumble", [AWAY, PushReply.FULL])
@pytest.mark.parametrize(("of", "kind"), [("a", ForwardedUtterance), ("b", ToSocket)])
async def test_forwarded_utterance_and_its_result_survive_a_short_redis_outage(
    open_instance: OpenInstance, of: str, kind: type[InboxMessage], stumble: Exception | PushReply
) -> None:
    a, b, session, socket = await gateway(open_instance)
    Stumbling({"a": a, "b": b}[of], kind, stumble)
    utter(a, session, socket)
    await wait_until(lambda: socket.of("translation_result"), TIMEOUT_S)
    assert not socket.of("error")
    steps = ["DISPATCHED", "ASR_FINAL", "NMT_DONE"]
    assert [message["event"] for message in socket.of("ui_event")] == steps, "in the order they were said"


async def test_forwarded_utterance_fails_during_a_redis_outage(open_instance: OpenInstance) -> None:
    a, _, session, socket = await gateway(open_instance, speech__placement_wait_ms=300)

    async def away(session: str) -> str:
        raise AWAY

    a.stores.owners.session_owner = away  # type: ignore[method-assign]
    utter(a, session, socket)
    (error,) = await wait_until(lambda: socket.of("error"), TIMEOUT_S)
    assert error["code"] == ErrorCode.SCHEDULER_DEPENDENCY_DOWN
    assert error["details"] == {"utterance_index": 0}


async def test_an_utterance_that_may_have_been_handed_on_is_not_handed_on_twice(open_instance: OpenInstance) -> None:
    a, _, session, socket = await gateway(open_instance)
    Stumbling(a, ForwardedUtterance, UnknownOutcome("its answer is lost"))
    utter(a, session, socket)
    (error,) = await wait_until(lambda: socket.of("error"), TIMEOUT_S)
    assert error["code"] == ErrorCode.SCHEDULER_DEPENDENCY_DOWN


async def test_utterance_for_an_unowned_session_is_refused(open_instance: OpenInstance) -> None:
    a, _, session, socket = await gateway(open_instance)
    known, session.id = session.id, "s-unknown"
    utter(a, session, socket)
    session.id = known
    (error,) = await wait_until(lambda: socket.of("error"), TIMEOUT_S)
    assert error["code"] == ErrorCode.INVALID_SESSION
