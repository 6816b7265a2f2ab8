"""The ports of an instance: WebSockets on a connection that has served HTTP, and the end of the admin port."""

import asyncio
import json
import socket
from copy import deepcopy

import aiohttp
import pytest

from dragoman.embedded.engine import free_port
from e2e.raw_node import SAMPLES
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


INIT = {"type": "session_init", "client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
async def test_every_websocket_opens_on_the_connection_of_the_login(redis_at: RedisAt, prefix: str) -> None:
    house = await House.open(redis_at, prefix, "i")
    listener = house.instance.doors.listener
    register = deepcopy(SAMPLES["node_register"])
    try:
        for path, first, expected in [
            ("/ws", {"type": "AUTH"}, "AUTH_OK"),
            ("/ws/session", INIT, "session_init_ack"),
            ("/ws/node", register, "node_register_ack"),
        ]:
            one_connection = aiohttp.TCPConnector(limit=1)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}", connector=one_connection) as http:
                async with http.post("/auth/login", json={"username": "alice", "password": "pw"}) as login:
                    access = (await login.json())["data"]["accessToken"]
                if path == "/ws":
                    first = {**first, "token": access}
                async with http.ws_connect(path) as ws, asyncio.timeout(PATIENCE_S):
                    await ws.send_str(json.dumps(first))
                    assert json.loads(await ws.receive_str())["type"] == expected
        assert listener.counters.accepted == listener.counters.opened == 3
    finally:
        await house.close()


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("secret", ["", "a secret of the test that is long enough"], ids=["no secret", "secret"])
async def test_a_page_from_another_port_of_this_machine_may_connect_if_no_secret_is_set(
    redis_at: RedisAt, prefix: str, secret: str
) -> None:
    house = await House.open(redis_at, prefix, "i", **{"security__secret": secret} if secret else {})
    port = house.instance.doors.listener.port
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            for path in ("/ws", "/ws/session", "/ws/node"):
                for origin, allowed in {"http://localhost:9001": not secret, "http://other.example": False}.items():
                    headers = {"Origin": origin, "Connection": "Upgrade", "Upgrade": "websocket"}
                    headers |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
                    async with http.get(path, headers=headers) as answer:
                        assert answer.status == (101 if allowed else 403)
                        assert allowed or origin in (await answer.json())["error"]
    finally:
        await house.close()
