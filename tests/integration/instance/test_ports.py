"""The ports of an instance: WebSockets on a connection that has served HTTP, and the end of the admin port."""

import asyncio
import json
import socket
import time
from contextlib import AsyncExitStack
from copy import deepcopy

import aiohttp
import jwt
import pytest

from dragoman.embedded.engine import free_port
from dragoman.protocol.codes import Close
from support.in_process import TIMEOUT_S, InProcessInstance, OpenInstance
from support.raw_node import SAMPLES
from support.redis_servers import RedisAt
from support.waiting import wait_until

NOT_LONG_S = 30.0  # the minute that the HTTP server would give everybody by itself is too long for a supervisor
QUESTIONS = 2000  # whose answers are more than any buffer holds


def has_to_wait(instance: InProcessInstance) -> bool:
    """Whether an answer at the admin port waits for its reader."""
    admin = instance.instance.ports._admin
    assert admin is not None
    assert admin.server is not None
    return any(connection._paused for connection in admin.server.connections)


async def test_client_that_does_not_read_metrics_does_not_delay_shutdown(redis_at: RedisAt, prefix: str) -> None:
    loop = asyncio.get_running_loop()
    instance = await InProcessInstance.open(redis_at, prefix, "i", server__admin_port=free_port() - 1)
    with socket.socket() as asker:
        try:
            asker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asker.setblocking(False)
            await loop.sock_connect(asker, ("127.0.0.1", instance.instance.admin_port))
            asking = loop.create_task(
                loop.sock_sendall(asker, b"GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n" * QUESTIONS)
            )
            await wait_until(lambda: has_to_wait(instance), TIMEOUT_S)
        finally:
            closing = loop.create_task(instance.close())
            await asyncio.wait([closing], timeout=NOT_LONG_S)
            was_closed = closing.done()
            await closing
        asking.cancel()
    assert was_closed


INIT = {"type": "session_init", "client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}


async def test_every_websocket_opens_on_the_connection_of_the_login(open_instance: OpenInstance) -> None:
    instance = await open_instance("i")
    listener = instance.instance.ports.listener
    register = deepcopy(SAMPLES["node_register"])
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
            async with http.ws_connect(path) as ws, asyncio.timeout(TIMEOUT_S):
                await ws.send_str(json.dumps(first))
                assert json.loads(await ws.receive_str())["type"] == expected
    assert listener.counters.accepted == listener.counters.opened == 3


@pytest.mark.parametrize("secret", ["", "a secret of the test that is long enough"], ids=["no secret", "secret"])
async def test_a_page_from_another_port_of_this_machine_may_connect_if_no_secret_is_set(
    open_instance: OpenInstance, secret: str
) -> None:
    instance = await open_instance("i", **{"security__secret": secret} if secret else {})
    port = instance.instance.ports.listener.port
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for path in ("/ws", "/ws/session", "/ws/node"):
            for origin, allowed in {"http://localhost:9001": not secret, "http://other.example": False}.items():
                headers = {"Origin": origin, "Connection": "Upgrade", "Upgrade": "websocket"}
                headers |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
                async with http.get(path, headers=headers) as answer:
                    assert answer.status == (101 if allowed else 403)
                    assert allowed or origin in (await answer.json())["error"]


SECRET = "a secret of the test that is long enough"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
PATHS = {
    "/api/v1/cluster": {},
    "/health/live": {},
    "/": {},
    "/ws/session": UPGRADE,
    "/ws/node": UPGRADE,
    "/ws": UPGRADE,
}
FORWARDED = {
    "Forwarded": "for=203.0.113.7",
    "X-Forwarded-For": "203.0.113.7",
    "X-Forwarded-Proto": "https",
    "X-Real-IP": "203.0.113.7",
    "Via": "1.1 proxy",
}


async def answers(instance: InProcessInstance, **headers: str) -> set[tuple[int, bool]]:
    """To every kind of request: the status, and whether it names the settings to change."""
    found = set()
    port = instance.instance.ports.listener.port
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for path, usual in PATHS.items():
            async with http.get(path, headers={**usual, **headers}) as answer:
                text = "" if answer.status == 101 else await answer.text()
                found.add((answer.status, "security.secret" in text and "server.trusted_proxies" in text))
    return found


async def test_proxied_request_is_refused_without_a_secret(open_instance: OpenInstance) -> None:
    instance = await open_instance("i", server__admin_port=free_port() - 1)
    assert await answers(instance) == {(200, False), (101, False)}
    for name, value in FORWARDED.items():
        assert await answers(instance, **{name: value}) == {(403, True)}, name
    admin = f"http://127.0.0.1:{instance.instance.admin_port}/metrics"
    async with aiohttp.ClientSession() as http, http.get(admin, headers=FORWARDED) as answer:
        assert (answer.status, "security.secret" in await answer.text()) == (403, True)


async def test_a_trusted_proxy_serves_this_machine_alone_if_no_secret_is_set(open_instance: OpenInstance) -> None:
    instance = await open_instance("i", server__trusted_proxies=["127.0.0.1"])
    here = {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https", "Via": "1.1 proxy"}
    assert await answers(instance, **here) == {(200, False), (101, False)}
    for far in ({"X-Forwarded-For": "203.0.113.7"}, {"Via": "1.1 proxy"}, {"X-Real-IP": "127.0.0.1"}):
        assert await answers(instance, **far) == {(403, True)}, far


@pytest.mark.parametrize(
    "flags", [{"security__secret": SECRET}, {"security__insecure_allow_anonymous": True}], ids=["secret", "anonymous"]
)
async def test_proxied_request_is_served_with_tokens_or_trusted_proxies(
    open_instance: OpenInstance, flags: dict[str, object]
) -> None:
    instance = await open_instance("i", **flags)
    assert 403 not in {status for status, _ in await answers(instance, **FORWARDED)}


async def test_tries_to_log_in_count_for_the_client_behind_a_trusted_proxy(open_instance: OpenInstance) -> None:
    instance = await open_instance(
        "i",
        security__secret=SECRET,
        server__trusted_proxies=["127.0.0.1"],
        limits__login_attempts_per_minute=1,
    )
    async with aiohttp.ClientSession(instance.base) as http:
        statuses = []
        for client in ("203.0.113.7", "203.0.113.7", "198.51.100.9"):
            headers, login = {"X-Forwarded-For": client}, {"username": "alice", "password": "pw"}
            async with http.post("/auth/login", json=login, headers=headers) as answer:
                statuses.append(answer.status)
    assert statuses == [401, 429, 401]


async def test_the_audit_names_the_address_of_an_operator_behind_a_trusted_proxy(open_instance: OpenInstance) -> None:
    instance = await open_instance("i", security__secret=SECRET, server__trusted_proxies=["127.0.0.1"])
    claims = {"iss": "dragoman", "typ": "operator", "sub": "olga", "exp": int(time.time()) + 600}
    headers = {
        "Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}",
        "X-Forwarded-For": "198.51.100.9, 203.0.113.7",
    }
    async with aiohttp.ClientSession(instance.base) as http:
        async with http.delete("/api/v1/dlq/a/9-9", headers=headers) as answer:
            assert answer.status == 404
        async with http.get("/api/v1/audit", headers=headers) as answer:
            (entry,) = (await answer.json())["entries"]
    assert (entry["who"], entry["address"]) == ("olga", "203.0.113.7")


@pytest.mark.parametrize("accepted", [False, True])
async def test_speech_accepts_a_chat_token_only_if_it_is_configured(
    open_instance: OpenInstance, accepted: bool
) -> None:
    flags = {"security__chat_tokens_for_speech": True} if accepted else {}
    instance = await open_instance("i", security__secret=SECRET, **flags)
    access = instance.instance.services.chat.tokens.access(7, 0, time.time())
    base = instance.base
    async with aiohttp.ClientSession(base) as http, http.ws_connect("/ws/session") as ws:
        async with asyncio.timeout(TIMEOUT_S):
            await ws.send_str(json.dumps({**INIT, "token": access}))
            frame = await ws.receive()
    if accepted:
        assert json.loads(frame.data)["type"] == "session_init_ack"
    else:
        assert frame.data == 4501
        assert "chat_tokens_for_speech" in (frame.extra or "")


async def registered(
    stay: AsyncExitStack, http: aiohttp.ClientSession, instance: InProcessInstance, **fields: object
) -> tuple[str, int | None]:
    """What a node that registers so is answered, and the code if it is closed; it stays connected."""
    port = instance.instance.ports.listener.port
    ws = await stay.enter_async_context(http.ws_connect(f"ws://127.0.0.1:{port}/ws/node"))
    await ws.send_str(json.dumps({**SAMPLES["node_register"], **fields}))
    frame = await ws.receive(timeout=TIMEOUT_S)
    text = frame.type is aiohttp.WSMsgType.TEXT
    return (json.loads(frame.data)["type"], None) if text else ("", ws.close_code)


async def test_an_anonymous_node_does_not_replace_one_with_a_token_on_any_instance(open_instance: OpenInstance) -> None:
    mixed = {"security__secret": SECRET, "security__insecure_allow_anonymous": True}
    one, other = (
        await open_instance("i", **mixed),
        await open_instance("j", **mixed),
    )
    claims = {"iss": "dragoman", "typ": "node", "sub": "gpu-1", "exp": int(time.time()) + 600}
    token = jwt.encode(claims, SECRET, "HS256")
    welcome = ("node_register_ack", None)
    async with aiohttp.ClientSession() as http, AsyncExitStack() as stay:
        assert await registered(stay, http, one, node_id="gpu-1", token=token) == welcome
        for instance in (one, other):
            assert await registered(stay, http, instance, node_id="gpu-1") == ("", Close.NODE_ID_CONFLICT)
        assert list(one.services.local_nodes.ids()) == ["gpu-1"]
        assert await registered(stay, http, other, node_id="spare") == welcome
        assert await registered(stay, http, one, node_id="spare") == welcome  # anonymous ones replace each other
        assert await registered(stay, http, other, node_id="gpu-1", token=token) == welcome
        await wait_until(lambda: "gpu-1" not in one.services.local_nodes.ids(), TIMEOUT_S)


async def test_the_share_of_connections_without_a_session_is_one_of_the_client_behind_the_proxy(
    open_instance: OpenInstance,
) -> None:
    flags = {"security__secret": SECRET, "server__trusted_proxies": ["127.0.0.1"], "limits__pre_session_connections": 8}
    instance = await open_instance("i", **flags)
    url = f"ws://127.0.0.1:{instance.instance.ports.listener.port}/ws/session"
    async with aiohttp.ClientSession() as http, AsyncExitStack() as stay:
        sockets = [
            await stay.enter_async_context(http.ws_connect(url, headers={"X-Forwarded-For": client}))
            for client in (*["203.0.113.7"] * 3, "198.51.100.9")
        ]
        third, other = sockets[2:]
        assert (await third.receive(timeout=TIMEOUT_S)).data == Close.OVERLOADED
        await other.send_str(json.dumps({**INIT, "token": "x"}))
        assert (await other.receive(timeout=TIMEOUT_S)).data == Close.UNAUTHORIZED  # it was let in to be asked


async def test_login_flood_from_one_address_does_not_refuse_other_addresses(open_instance: OpenInstance) -> None:
    instance = await open_instance("i", security__secret=SECRET, server__trusted_proxies=["127.0.0.1"])
    names = [f"honest{n}" for n in range(4)]
    many = aiohttp.TCPConnector(limit=0)
    for name in names:
        assert await instance.instance.services.chat.accounts.add(name, "long enough for anybody")
    base = instance.base
    async with aiohttp.ClientSession(base, connector=many) as http:

        async def status(client: str, name: str) -> int:
            login = {"username": name, "password": "long enough for anybody"}
            async with http.post("/auth/login", json=login, headers={"X-Forwarded-For": client}) as answer:
                return answer.status

        flood = [asyncio.ensure_future(status("203.0.113.7", f"invented{n}")) for n in range(100)]
        for one in asyncio.as_completed(flood):
            if await one == 503:  # the queue is full
                break
        honest = await asyncio.gather(*(status(f"198.51.100.{n}", name) for n, name in enumerate(names)))
        for login in flood:
            login.cancel()
    assert honest == [200] * len(names)
