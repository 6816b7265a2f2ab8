"""A room through a lost connection: the member joins again first, once, and then asks again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.client import Room, RoomRefused
from dragoman.protocol.codes import RoomErrorCode
from dragoman.protocol.rooms import RoomError, RoomJoin, RoomJoined, RoomOk, RoomRequest, RoomText
from dragoman.protocol.session import SessionResume
from support.waiting import Enter
from unit.client.fake_server import QUICK, FakeServer


def welcome(server: FakeServer, hello: RoomJoin) -> None:
    server.says(RoomJoined("room", "123456", "s-1", "speaker", "epoch", 0, True))
    if hello.request_id is not None:
        server.says(RoomOk(hello.request_id))


@asynccontextmanager
async def member_at(server: FakeServer) -> AsyncIterator[Room]:
    room = Room(server.url, room="room", name="Ann", speaks="en", timing=QUICK)
    joining = asyncio.create_task(room.join())
    welcome(server, await server.hears(RoomJoin))
    await joining
    try:
        yield room
    finally:
        await room._stop()


@pytest.fixture
def room(enter: Enter, server: FakeServer) -> Room:
    return enter(member_at(server))


def asked_since_the_resume(server: FakeServer) -> list[type[RoomRequest]]:
    resumed = max(at for at, one in enumerate(server.received) if isinstance(one, SessionResume))
    return [type(one) for one in server.received[resumed:] if isinstance(one, RoomRequest)]


async def test_request_made_while_the_connection_is_lost_is_sent_after_joining_again(
    room: Room, server: FakeServer
) -> None:
    server.silent = True
    server.drops()
    resume = await server.hears(SessionResume)
    writing = asyncio.create_task(room.write("hello"))
    await asyncio.sleep(0)
    server._resume(server.connections[-1], resume)
    welcome(server, await server.hears(RoomJoin))
    server.says(RoomOk((await server.hears(RoomText)).request_id or ""))
    await writing
    assert asked_since_the_resume(server) == [RoomJoin, RoomText]


async def test_request_without_an_answer_is_sent_again_after_joining_again(room: Room, server: FakeServer) -> None:
    writing = asyncio.create_task(room.write("hello"))
    first = await server.hears(RoomText)
    server.drops()
    welcome(server, await server.hears(RoomJoin))
    again = await server.hears(RoomText)
    server.says(RoomOk(again.request_id or ""))
    await writing
    assert (again.client_msg_id, again.request_id) == (first.client_msg_id, first.request_id)
    assert asked_since_the_resume(server) == [RoomJoin, RoomText]


async def test_member_joins_on_the_next_connection_when_redis_was_unavailable_to_join_again(
    room: Room, server: FakeServer
) -> None:
    server.drops()
    await server.hears(RoomJoin)
    server.says(RoomError(RoomErrorCode.SCHEDULER_DEPENDENCY_DOWN, "Redis is unavailable."))
    welcome(server, await server.hears(RoomJoin))
    writing = asyncio.create_task(room.write("hello"))
    server.says(RoomOk((await server.hears(RoomText)).request_id or ""))
    await writing


async def test_sentence_without_an_answer_is_not_written_again_under_another_session(
    room: Room, server: FakeServer
) -> None:
    writing = asyncio.create_task(room.write("hello"))
    await server.hears(RoomText)
    server.forgets = True
    server.drops()
    with pytest.raises(RoomRefused, match="may be in the log or not") as error:
        await writing
    assert error.value.code == "UNKNOWN_OUTCOME"
    server.forgets = False
    welcome(server, await server.hears(RoomJoin))
    writing = asyncio.create_task(room.write("another"))
    another = await server.hears(RoomText)
    server.says(RoomOk(another.request_id or ""))
    await writing
    assert [one.text for one in server.received if isinstance(one, RoomText)] == ["hello", "another"]
