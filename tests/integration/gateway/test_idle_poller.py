"""Connections that say nothing: watched apart, and as well looked after as the others."""

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from dragoman.gateway import Listener, idle_poller
from dragoman.gateway.idle_poller import MAX_RESUMED, Epoll, IdlePoller, Selector
from dragoman.gateway.websocket import WebSocket
from dragoman.protocol.codes import Close
from support.gateway import TEXT, Echo, connected, frame, serving, until, websocket
from support.waiting import ON_BOTH_LOOPS

pytestmark = ON_BOTH_LOOPS


@pytest.fixture(autouse=True, params=[Epoll, Selector])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux, and as on a system without epoll."""
    monkeypatch.setattr(idle_poller, "POLLER", request.param)


WITHOUT, RESET = struct.pack("ii", 0, 0), struct.pack("ii", 1, 0)  # SO_LINGER


@dataclass(frozen=True)
class Idle:
    resume: Callable[[], None]


def only(listener: Listener) -> WebSocket:
    (connection,) = listener.connections
    assert isinstance(connection, WebSocket)
    return connection


def become_idle(listener: Listener) -> WebSocket:
    """As a sweep finds one that has said nothing since the last."""
    connection = only(listener)
    for _ in range(2):
        connection.check_silence(listener.registry.clock())
    assert len(listener.registry.idle_poller) == 1
    return connection


async def test_idle_connection_is_read_as_soon_as_bytes_arrive() -> None:
    async with serving() as listener, websocket(listener) as client:
        for word in (b"one", b"two"):
            become_idle(listener)
            await client.send(frame(TEXT, word))
            assert await client.message() == word
            assert len(listener.registry.idle_poller) == 0


async def test_active_connection_stays_with_the_event_loop() -> None:
    async with serving() as listener, websocket(listener) as client:
        await client.send(frame(TEXT, b"hello"))
        assert await client.message() == b"hello"
        only(listener).check_silence(listener.registry.clock())
        assert len(listener.registry.idle_poller) == 0


async def test_write_to_an_idle_connection_leaves_it_idle() -> None:
    async with serving() as listener, websocket(listener) as client:
        become_idle(listener).send(b"are you there?")
        assert await client.message() == b"are you there?"
        assert len(listener.registry.idle_poller) == 1


async def test_end_of_an_idle_connection_is_reported() -> None:
    endpoint = Echo()
    async with serving({"/one": lambda: endpoint}) as listener:
        for linger in (WITHOUT, RESET):
            endpoint.events.clear()
            async with websocket(listener, "/one") as client:
                become_idle(listener)
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await until(lambda: not listener.connections)
            assert endpoint.events == ["opened", "closed"]
            assert len(listener.registry.idle_poller) == 0


async def test_connection_lost_during_a_write_is_no_longer_polled() -> None:
    async with serving() as listener:
        async with websocket(listener):
            connection = become_idle(listener)
        connection._transport.abort()
        await until(lambda: not listener.connections)
        assert len(listener.registry.idle_poller) == 0


async def test_idle_connection_with_paused_reading_is_read_after_resume() -> None:
    endpoint = Echo()
    async with serving({"/one": lambda: endpoint}) as listener, websocket(listener, "/one") as client:
        connection = become_idle(listener)
        connection.pause_reading()
        assert len(listener.registry.idle_poller) == 0
        await client.send(frame(TEXT, b"wait"))
        connection.check_silence(listener.registry.clock())
        async with connected(listener) as other:  # time enough to have read it
            await other.send(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
            assert (await other.answer()).status == 200
        assert endpoint.events == ["opened"]
        assert len(listener.registry.idle_poller) == 0
        connection.resume_reading()
        assert await client.message() == b"wait"


async def test_idle_connection_gets_its_close_frame() -> None:
    async with serving() as listener, websocket(listener) as client:
        become_idle(listener).close(Close.IDLE, "too quiet")
        assert await client.close_code() == Close.IDLE
        await until(lambda: not listener.connections)
        assert len(listener.registry.idle_poller) == 0


async def test_thousands_of_closed_idle_connections_are_handled_in_batches_and_once_each() -> None:
    woken, told = [0], [0]

    def count() -> None:
        woken[-1] += 1

    class Counted(IdlePoller):
        def _poll(self) -> None:
            told[0] += 1
            super()._poll()

        def _resume_some(self) -> None:
            woken.append(0)
            super()._resume_some()

    poller = Counted()
    pairs = [socket.socketpair() for _ in range(3 * MAX_RESUMED)]
    for ours, _ in pairs:
        poller.watch(ours.fileno(), Idle(count))
    for _, theirs in pairs:
        theirs.close()
    await until(lambda: not poller)
    poller.close()
    for ours, _ in pairs:
        ours.close()

    assert woken == [0, MAX_RESUMED, MAX_RESUMED, MAX_RESUMED]
    assert told == [1]


async def test_incoming_bytes_are_read_before_closed_connections_are_handled() -> None:
    poller, woken = IdlePoller(), list[int]()
    pairs = [socket.socketpair() for _ in range(5 * MAX_RESUMED)]

    for number, (ours, _) in enumerate(pairs):
        poller.watch(ours.fileno(), Idle(partial(woken.append, number)))
    last = len(pairs) - 1
    for number, (_, theirs) in enumerate(pairs):
        if number != last:
            theirs.close()
    pairs[last][1].send(b"a word")
    await until(lambda: not poller)
    poller.close()
    for both in pairs:
        for one in both:
            one.close()
    assert woken[0] == last
    assert sorted(woken) == list(range(len(pairs)))


async def test_idle_connection_removed_before_its_event_is_not_resumed() -> None:
    poller, woken, forgotten = IdlePoller(), list[int](), list[int]()
    pairs = [socket.socketpair() for _ in range(2 * MAX_RESUMED)]

    def resume(number: int) -> None:
        woken.append(number)
        if not forgotten:
            forgotten.append((number + 1) % len(pairs))
            poller.forget(pairs[forgotten[0]][0].fileno())

    for number, (ours, _) in enumerate(pairs):
        poller.watch(ours.fileno(), Idle(partial(resume, number)))
    for _, theirs in pairs:
        theirs.close()
    await until(lambda: not poller)
    poller.close()
    for ours, _ in pairs:
        ours.close()
    assert sorted(woken + forgotten) == list(range(len(pairs)))
