"""How an instance ends while somebody is at its admin port."""

import asyncio
import socket

import pytest

from dragoman.embedded.engine import free_port
from integration.speech.house import PATIENCE_S, House
from redis_servers import RedisAt
from waiting import wait_until

NOT_LONG_S = 30.0  # the minute that the HTTP server would give everybody by itself is too long for a supervisor
QUESTIONS = 2000  # whose answers are more than any buffer holds


def has_to_wait(house: House) -> bool:
    """Whether an answer at the admin port waits for its reader."""
    admin = house.instance.doors._admin
    assert admin is not None
    assert admin.server is not None
    return any(connection._paused for connection in admin.server.connections)


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
async def test_who_asks_for_metrics_and_does_not_read_them_holds_up_no_end(redis_at: RedisAt, prefix: str) -> None:
    loop = asyncio.get_running_loop()
    house = await House.open(redis_at, prefix, "i", server__admin_port=free_port() - 1)
    with socket.socket() as asker:
        try:
            asker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asker.setblocking(False)
            await loop.sock_connect(asker, ("127.0.0.1", house.instance.admin_port))
            asking = loop.create_task(loop.sock_sendall(asker, b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" * QUESTIONS))
            await wait_until(lambda: has_to_wait(house), PATIENCE_S)
        finally:
            closing = loop.create_task(house.close())
            await asyncio.wait([closing], timeout=NOT_LONG_S)
            was_closed = closing.done()
            await closing
        asking.cancel()
    assert was_closed
