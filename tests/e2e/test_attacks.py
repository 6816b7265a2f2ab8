"""Attacks by one client on a server with a secret: each is refused, and other clients notice nothing.

Every attack runs on one and on two instances, with SQLite and with PostgreSQL. A reverse proxy is trusted, so each
request carries the address of its client.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from dragoman.domain.limits.rates import cost
from dragoman.protocol.audio import encode_base64
from dragoman.tools.postgres import PostgresServer
from dragoman.tools.processes import InstanceProcess
from dragoman.tools.verify.clients import token as chat_token
from support.chat import ChatSpeaker, url
from support.cluster import Speaker
from support.databases import ask
from support.raw_node import SAMPLES
from support.redis_servers import KeyInspector, RedisAt, connected
from support.speech import SECRET, Harness, start_harness, token
from support.waiting import wait_until

TIMEOUT_S = 60.0
PASSWORD = "correct horse battery staple"
ATTACKER, OWNER = "203.0.113.7", "198.51.100.9"
LIMITS: dict[str, object] = {
    "security__secret": SECRET,
    "server__trusted_proxies": ["127.0.0.1"],
    "limits__sessions": 60,
    "limits__sessions_per_principal": 10,
    "limits__chat_bytes_per_day": 20 * cost("x" * 1000),
    "limits__login_attempts_per_name_per_hour": 20,
    "chat__idempotency_ttl_s": 1.0,
    "chat__two_phase__enabled": True,
}
DEPLOYMENTS = [
    pytest.param((2, "sqlite"), id="two-sqlite"),
    *(
        pytest.param((number, database), id=f"{name}-{database}", marks=pytest.mark.long)
        for number, name, database in ((1, "one", "sqlite"), (1, "one", "postgres"), (2, "two", "postgres"))
    ),
]


class Site:
    """Instances behind a trusted proxy, as clients at different addresses use them."""

    def __init__(self, harness: Harness, database: str) -> None:
        self.harness, self.instances, self.database = harness, harness.instances, database

    @asynccontextmanager
    async def client(self, address: str, at: int = 0) -> AsyncIterator[aiohttp.ClientSession]:
        base = f"http://127.0.0.1:{self.instances[at].port}"
        async with aiohttp.ClientSession(base, headers={"X-Forwarded-For": address}) as http:
            yield http

    async def login(self, name: str, password: str, address: str, at: int = 0) -> dict[str, Any]:
        async with self.client(address, at) as http:
            async with http.post("/auth/login", json={"username": name, "password": password}) as answer:
                return dict(await answer.json())

    async def add_account(self, name: str) -> None:
        headers = {"Authorization": f"Bearer {token('operator', 'olga')}"}
        async with self.client(OWNER) as http:
            account = {"username": name, "password": PASSWORD}
            async with http.post("/api/v1/chat/users", json=account, headers=headers) as answer:
                assert answer.status == 200, await answer.text()

    @asynccontextmanager
    async def session(self, sub: str, at: int = 0, address: str = OWNER) -> AsyncIterator[Speaker]:
        """A client with a session of its own."""
        async with self.client(address, at) as http, http.ws_connect("/ws/session", max_msg_size=0) as ws:
            speaker = Speaker(ws)
            await speaker.init(token=token(sub=sub))
            yield speaker

    @asynccontextmanager
    async def chat_user(self, uid: int, at: int = 0) -> AsyncIterator[ChatSpeaker]:
        async with self.client(OWNER, at) as http, http.ws_connect("/ws", max_msg_size=0) as ws:
            speaker = ChatSpeaker(uid, ws)
            await speaker.auth(chat_token(uid, secret=SECRET))
            yield speaker

    async def keys(self, part: str, *, without_ttl: bool = False) -> list[str]:
        """The keys with this part in their names."""
        async with connected(self.harness.redis) as redis:
            found = [key.decode() for key in await redis.call("KEYS", f"*{self.harness.prefix}*{part}*")]
            return [key for key in found if not without_ttl or await redis.call("PTTL", key) == -1]


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def site(
    request: pytest.FixtureRequest,
    redis_server: RedisAt,
    key_inspector: KeyInspector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    number, kind = request.param
    folder = tmp_path_factory.mktemp("attacks")
    database = url(folder)
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        database = server.new_database()
    flags = [{**LIMITS, "archive__url": database}] * number
    with start_harness(redis_server, folder, key_inspector, *flags) as harness:
        yield Site(harness, database)


def rss_mb(process: InstanceProcess) -> float:
    pages = int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def log_bytes(folder: Path) -> int:
    return sum(log.stat().st_size for log in folder.glob("*.log"))


async def test_invented_names_get_no_account_and_leave_no_key(site: Site) -> None:
    for at in range(len(site.instances)):
        for password in ("", "x", "eve-of-this-machine", PASSWORD):
            answer = await site.login(f"eve-{at}", password, f"203.0.113.{at}{len(password)}", at)
            assert answer["data"] is None, answer
    accounts = await ask(site.database, """SELECT count(*) FROM "user" WHERE name LIKE 'eve-%'""")
    assert accounts == [(0,)]
    assert await site.keys("login"), "attempts are counted"
    assert await site.keys("login", without_ttl=True) == []


async def test_flood_of_logins_from_one_address_refuses_no_owner_of_an_account(site: Site) -> None:
    await site.add_account("ann")
    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(site.login(f"nobody-{number}", "x" * 12, ATTACKER, number % len(site.instances)))
        honest = [
            group.create_task(site.login("ann", PASSWORD, f"198.51.100.{number}", number % len(site.instances)))
            for number in range(12)
        ]
    assert [task.result()["code"] for task in honest] == [0] * 12


async def test_wrong_passwords_from_other_addresses_do_not_lock_an_owner_out(site: Site) -> None:
    await site.add_account("lou")
    assert (await site.login("lou", PASSWORD, OWNER))["code"] == 0
    answers = [
        await site.login("lou", "wrong", f"203.0.113.{number}", number % len(site.instances)) for number in range(30)
    ]
    assert {answer["code"] for answer in answers} == {40100, 42900}
    for at in range(len(site.instances)):
        assert (await site.login("lou", PASSWORD, OWNER, at))["code"] == 0


async def test_sessions_of_one_client_leave_room_for_the_others(site: Site) -> None:
    """It says that it is a gateway, so that its sessions would outlive its connections."""
    refused = 0
    for number in range(40):
        async with site.client(ATTACKER, number % len(site.instances)) as http:
            async with http.ws_connect("/ws/session") as ws:
                speaker = Speaker(ws)
                fields = {"client_version": "t", "platform": "api-gateway", "src_lang": "en", "tgt_lang": "es"}
                await speaker.say("session_init", **fields, resume=True, token=token(sub="gateway"))
                answer = await speaker.until(lambda m: m["type"] in ("session_init_ack", "error"), TIMEOUT_S)
                refused += answer.get("code") == "LIMIT_EXCEEDED"
    assert refused == 40 - 10 * len(site.instances)
    for at in range(len(site.instances)):
        async with site.session("ann", at):
            pass


async def test_large_tokens_in_later_messages_cost_no_memory(site: Site) -> None:
    async with site.session("eve", address=ATTACKER) as speaker:
        before = rss_mb(site.instances[0])
        init = {"client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
        for number in range(64):
            await speaker.say("session_init", **init, token=chr(ord("a") + number % 26) * 900_000)
            answer = await speaker.until(lambda m: m["type"] == "error", TIMEOUT_S)
            assert (answer["code"], "token" in answer["message"]) == ("INVALID_MESSAGE", True)
        assert rss_mb(site.instances[0]) - before < 20
        async with site.session("ann"):
            pass


async def test_chunk_of_tiny_packets_is_refused_and_its_connection_stays(site: Site) -> None:
    async with site.session("eve", address=ATTACKER) as speaker:
        payload = bytes(encode_base64(b"\x01\x00\xf8" * 200_000)).decode().strip('"')
        await speaker.say("audio_chunk", session_id=speaker.session_id, seq=0, is_final=True, payload=payload)
        assert (await speaker.until(lambda m: m["type"] == "error", TIMEOUT_S))["code"] == "INVALID_MESSAGE"
        await speaker.say("client_heartbeat", session_id=speaker.session_id, timestamp=1)
        await speaker.until(lambda m: m["type"] == "server_heartbeat", TIMEOUT_S)


async def test_reused_client_msg_id_is_answered_and_makes_no_dead_letter(site: Site) -> None:
    last = len(site.instances) - 1
    async with site.chat_user(1001) as first:
        name = await first.chat(1002, "first")
        id = await first.saved(name)

    async def claim_lapsed() -> bool:
        return not await site.keys(name)

    await wait_until(claim_lapsed, TIMEOUT_S)
    async with site.chat_user(1001, last) as again:
        await again.chat(1002, "another body", name)
        assert await again.saved(name) == id
        await again.chat(1003, "another receiver", name)
        await again.refused("duplicate_msg_id_mismatch", clientMsgId=name)
    assert await site.keys("dead") == []
    assert await ask(site.database, "SELECT count(*) FROM message WHERE from_user_id = 1001") == [(1,)]


async def test_user_that_stores_too_much_is_refused_at_every_instance(site: Site) -> None:
    body = "x" * 1000
    async with site.chat_user(2001) as eve:
        for _ in range(20):
            await eve.saved(await eve.chat(2002, body))
        await eve.refused("quota_exceeded", clientMsgId=await eve.chat(2002, body))
    async with site.chat_user(2001, len(site.instances) - 1) as eve:
        await eve.refused("quota_exceeded", clientMsgId=await eve.chat(2002, body))
    async with site.chat_user(2002, len(site.instances) - 1) as bob:
        await bob.saved(await bob.chat(2001, body))


async def test_node_with_many_languages_and_long_errors_costs_the_others_little(site: Site) -> None:
    many = [f"x{number}" for number in range(512)]
    languages = {"asr_languages": many, "tts_languages": many, "semantic_languages": many}
    register = {**SAMPLES["node_register"], "node_id": "node-eve", "token": token("node", "node-eve")}
    async with site.client(ATTACKER) as http, http.ws_connect("/ws/node") as ws:
        await ws.send_str(json.dumps({**register, "language_capabilities": languages}))
        await ws.receive(timeout=TIMEOUT_S)
        with suppress(ConnectionError):  # the server may close the connection
            for _ in range(200):
                error = {"type": "node_error", "node_id": "node-eve", "code": uuid4().hex * 20_000, "message": "m"}
                await ws.send_str(json.dumps(error))
        async with http.get("/api/v1/public/languages") as answer:
            assert len(await answer.read()) < 256 * 1024
    assert log_bytes(site.harness.folder) < 2**20
    async with site.session("ann"):
        pass
