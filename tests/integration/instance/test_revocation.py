"""Revoked tokens and principals: their connections end at every instance, and nothing lets them in again."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from dragoman.cli.main import run
from dragoman.domain.revocation import Revocation
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.protocol.codes import Close
from dragoman.tools.verify.clients import token as chat_token
from support.in_process import TIMEOUT_S, InProcessInstance
from support.raw_node import SAMPLES
from support.redis_servers import RedisAt
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single"], indirect=True)

SECRET = "a-secret-of-more-than-thirty-two-bytes"
WITHIN_S = 1.0  # a connection is closed; the machine of a test may be busy
INIT = {"type": "session_init", "client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
COUNTS = (1, 2)


def token(typ: str, sub: str, **claims: Any) -> str:
    told = {"iss": "dragoman", "exp": int(time.time()) + 600, "typ": typ, "sub": sub} | claims
    return jwt.encode({name: value for name, value in told.items() if value is not None}, SECRET, algorithm="HS256")


class Cluster:
    """`instances[-1]` has the connections, `instances[0]` is asked to revoke."""

    def __init__(self, instances: list[InProcessInstance], http: aiohttp.ClientSession) -> None:
        self.instances, self.http = instances, http
        self.operator = token("operator", "olga")

    def url(self, path: str, at: int = -1) -> str:
        return f"http://127.0.0.1:{self.instances[at].instance.ports.listener.port}{path}"

    async def ask(self, method: str, path: str, status: int = 200, body: object = None, by: str = "") -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {by or self.operator}"}
        async with self.http.request(method, self.url(f"/api/v1/{path}", 0), headers=headers, json=body) as answer:
            told: dict[str, Any] = await answer.json()
            assert answer.status == status, told
            return told

    async def revoke(self, status: int = 200, **body: object) -> dict[str, Any]:
        return await self.ask("POST", "revocations", status, body)

    async def socket(
        self, path: str, first: dict[str, Any], at: int = -1
    ) -> tuple[aiohttp.ClientWebSocketResponse, Any]:
        """The socket, and the answer to its first message: a close code if it was closed instead."""
        ws = await self.http.ws_connect(self.url(path, at))
        await ws.send_str(json.dumps(first))
        frame = await ws.receive(TIMEOUT_S)
        return ws, json.loads(frame.data) if frame.type is aiohttp.WSMsgType.TEXT else frame.data

    async def session(self, token: str, at: int = -1, **fields: object) -> tuple[aiohttp.ClientWebSocketResponse, Any]:
        return await self.socket("/ws/session", {**INIT, "token": token, **fields}, at)

    async def node(self, token: str, at: int = -1) -> tuple[aiohttp.ClientWebSocketResponse, Any]:
        register = {**deepcopy(SAMPLES["node_register"]), "token": token}
        register.pop("node_id", None)
        return await self.socket("/ws/node", register, at)

    async def chat(self, token: str, at: int = -1) -> tuple[aiohttp.ClientWebSocketResponse, Any]:
        return await self.socket("/ws", {"type": "AUTH", "token": token}, at)


async def close_code(ws: aiohttp.ClientWebSocketResponse) -> int | None:
    async with asyncio.timeout(TIMEOUT_S):
        while (frame := await ws.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
    return frame.data if frame.type is aiohttp.WSMsgType.CLOSE else None


@asynccontextmanager
async def cluster(redis_at: RedisAt, prefix: str, count: int = 2, **flags: object) -> AsyncIterator[Cluster]:
    flags = {"security__secret": SECRET, "security__chat_tokens_for_speech": True, **flags}
    async with AsyncExitStack() as stack:
        instances = []
        for number in range(count):
            instances.append(await InProcessInstance.open(redis_at, prefix, f"i{number}", **flags))
            stack.push_async_callback(instances[-1].close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.timeout(TIMEOUT_S):
            yield Cluster(instances, http)


@pytest.mark.parametrize("count", COUNTS)
async def test_connections_of_a_revoked_token_are_closed_within_a_second_and_the_token_is_refused(
    redis_at: RedisAt, prefix: str, count: int
) -> None:
    async with cluster(redis_at, prefix, count) as up:
        tokens = {
            "session": token("client", "ann", jti="t-1"),
            "node": token("node", "n1"),  # without a jti: revoked by its digest
            "chat": chat_token(7, secret=SECRET),
        }
        connect = {"session": up.session, "node": up.node, "chat": up.chat}
        sockets = {}
        for kind, text in tokens.items():
            sockets[kind], answer = await connect[kind](text)
            assert isinstance(answer, dict), (kind, answer)
        other, _ = await up.session(token("client", "ann", jti="t-2"))
        for kind, text in tokens.items():
            started = time.monotonic()
            await up.revoke(token=text)
            assert await close_code(sockets[kind]) == Close.UNAUTHORIZED
            assert time.monotonic() - started < WITHIN_S
            for at in range(count):
                _, refusal = await connect[kind](text, at)
                if kind == "chat":
                    assert (refusal["type"], refusal["reason"]) == ("AUTH_FAIL", "invalid_token")
                else:
                    assert refusal == Close.UNAUTHORIZED, (kind, at)
        await other.send_str("{}")
        assert (await other.receive(TIMEOUT_S)).type is aiohttp.WSMsgType.TEXT, "another token of ann is not revoked"


@pytest.mark.parametrize("count", COUNTS)
async def test_all_tokens_of_a_revoked_principal_are_refused_until_it_is_allowed(
    redis_at: RedisAt, prefix: str, count: int
) -> None:
    async with cluster(redis_at, prefix, count) as up:
        ann, bob = token("client", "ann"), token("client", "bob")
        sockets = [(await up.session(ann, at))[0] for at in range(count)]
        assert (await up.revoke(principal="client:ann"))["name"] == "client:default/ann"
        for ws in sockets:
            assert await close_code(ws) in (Close.UNAUTHORIZED, Close.ENDED)
        assert (await up.session(token("client", "ann", jti="made-later")))[1] == Close.UNAUTHORIZED
        assert (await up.session(bob))[1]["type"] == "session_init_ack"
        assert (await up.session(token("client", "ann", tenant="acme")))[1]["type"] == "session_init_ack"
        assert await up.ask("DELETE", "revocations/client:default%2Fann") == {
            "name": "client:default/ann",
            "allowed": True,
        }
        await wait_until(lambda: not any(len(one.services.revocations.copy) for one in up.instances), TIMEOUT_S)
        assert (await up.session(ann))[1]["type"] == "session_init_ack"


@pytest.mark.parametrize("count", COUNTS)
async def test_sessions_of_a_revoked_principal_end_also_those_without_a_connection(
    redis_at: RedisAt, prefix: str, count: int
) -> None:
    async with cluster(redis_at, prefix, count) as up:
        text = token("client", "edge", gateway=True)
        resumable, ack = await up.session(text, resume=True)
        detached, _ = await up.session(text, platform="api-gateway")
        sessions, holder = up.instances[-1].services.sessions, up.instances[-1]
        for ws in (resumable, detached):
            await ws.close()
        await wait_until(lambda: sessions.quota.detached == 2, TIMEOUT_S)
        await up.revoke(principal="client:edge")
        await wait_until(lambda: not len(sessions), TIMEOUT_S)

        async def is_gone() -> bool:
            return not await holder.redis.call("EXISTS", holder.keys.session_state(ack["session_id"]))

        await wait_until(is_gone, TIMEOUT_S)
        resume = {"type": "session_resume", "session_id": ack["session_id"], "resume_token": ack["resume_token"]}
        for at in range(count):
            _, refusal = await up.socket("/ws/session", {**resume, "last_seq": 0, "token": text}, at)
            assert refusal == Close.UNAUTHORIZED
        await up.ask("DELETE", "revocations/client:default/edge")
        await wait_until(lambda: not any(len(one.services.revocations.copy) for one in up.instances), TIMEOUT_S)
        _, refusal = await up.socket("/ws/session", {**resume, "last_seq": 0, "token": text})
        assert refusal["code"] == "INVALID_SESSION", "it has ended"


@pytest.mark.parametrize("count", COUNTS)
async def test_revoked_chat_user_is_disconnected_and_gets_in_by_no_token_and_no_password(
    redis_at: RedisAt, prefix: str, count: int
) -> None:
    async with cluster(redis_at, prefix, count, chat__registration="open") as up:

        async def post(path: str, **body: str) -> dict[str, Any]:
            async with up.http.post(up.url(path), json=body) as answer:
                return dict(await answer.json())

        password = "a password that is long enough"
        login = (await post("/auth/login", username="alice", password=password))["data"]
        chat, _ = await up.chat(login["accessToken"])
        speech, _ = await up.session(login["accessToken"])
        assert (await up.revoke(principal="chat:alice"))["name"] == f"user:{login['userId']}"
        assert await close_code(chat) == Close.UNAUTHORIZED
        assert await close_code(speech) in (Close.UNAUTHORIZED, Close.ENDED)
        assert (await up.chat(login["accessToken"]))[1]["type"] == "AUTH_FAIL"
        assert (await up.session(login["accessToken"]))[1] == Close.UNAUTHORIZED
        assert (await post("/auth/refresh", refreshToken=login["refreshToken"]))["code"] == 40100
        assert (await post("/auth/verify", accessToken=login["accessToken"]))["data"]["reason"] == "invalid_token"
        assert (await post("/auth/login", username="alice", password=password))["code"] == 40300
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await up.http.ws_connect(up.url(f"/ws?token={login['accessToken']}"))
        assert refused.value.status == 401
        await up.ask("DELETE", f"revocations/user:{login['userId']}")
        await wait_until(lambda: not any(len(one.services.revocations.copy) for one in up.instances), TIMEOUT_S)
        assert (await post("/auth/login", username="alice", password=password))["code"] == 0


@pytest.mark.parametrize("count", COUNTS)
async def test_http_connection_of_a_revoked_operator_is_closed_and_its_token_refused(
    redis_at: RedisAt, prefix: str, count: int
) -> None:
    async with cluster(redis_at, prefix, count) as up:
        text = token("operator", "mallory")
        port = up.instances[-1].instance.ports.listener.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = f"GET /api/v1/stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n\r\n".encode()
        writer.write(request)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await up.revoke(principal="operator:mallory")
        await reader.read()  # to its end
        writer.close()
        await up.ask("GET", "stats", 401, by=text)
        await up.ask("POST", "revocations", 401, {"jti": "x"}, by=text)


async def test_revocation_that_was_not_announced_is_found_within_a_second(redis_at: RedisAt, prefix: str) -> None:
    async with cluster(redis_at, prefix, 1) as up:
        ws, _ = await up.session(token("client", "ann", jti="t-1"))
        started = time.monotonic()
        await up.instances[0].stores.revocations.revoke("token:t-1", Revocation(1))
        assert await close_code(ws) == Close.UNAUTHORIZED
        assert time.monotonic() - started < WITHIN_S + 0.5


async def test_revocations_that_redis_has_lost_are_written_again(redis_at: RedisAt, prefix: str) -> None:
    async with cluster(redis_at, prefix, 2) as up:
        await up.revoke(principal="client:ann")
        await up.revoke(jti="t-1")
        keys, redis = up.instances[0].keys, up.instances[0].redis
        for key in (keys.revoked, keys.revoked_expiry, keys.revoked_version):
            await redis.call("DEL", key)
        await wait_until(lambda: redis.call("EXISTS", keys.revoked_version), TIMEOUT_S)
        assert {row["name"] for row in (await up.ask("GET", "revocations"))["entries"]} == {
            "client:default/ann",
            "token:t-1",
        }
        for at in range(2):
            assert (await up.session(token("client", "ann"), at))[1] == Close.UNAUTHORIZED


async def test_copy_stays_in_force_while_redis_is_unavailable_and_nothing_can_be_revoked(
    server_binary: ServerBinary, tmp_path: Path, prefix: str, redis_at: RedisAt
) -> None:
    with RedisServer(server_binary, tmp_path / "data", port=CHOOSE_PORT, fsync="always") as server:
        calm = {"scheduler__phase2__instance_presence_ttl_seconds": 10}
        async with cluster(RedisAt("single", (server.tcp_url,), server=server), prefix, 1, **calm) as up:
            await up.revoke(principal="client:ann")
            await asyncio.to_thread(server.kill)
            await wait_until(lambda: not up.instances[0].redis.connected, TIMEOUT_S)
            assert "Redis" in (await up.revoke(503, principal="client:bob"))["error"]
            assert (await up.session(token("client", "ann")))[1] == Close.UNAUTHORIZED
            assert (await up.session(token("client", "bob")))[1]["type"] == "session_init_ack"
            await asyncio.to_thread(server.start)
            await up.instances[0].redis.wait_connected()
            await up.revoke(principal="client:bob")


async def test_commands_revoke_list_and_allow(
    redis_at: RedisAt, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(redis_at, prefix, 1) as up:
        monkeypatch.setenv("DRAGOMAN_OPERATOR_TOKEN", up.operator)

        async def say(*args: str, code: int = 0) -> str:
            assert await asyncio.to_thread(run, ["token", *args, "--url", up.url("")]) == code
            told = capsys.readouterr()
            lines = (told.err if code else told.out).splitlines()
            return "\n".join(
                turn_queue for turn_queue in lines if "[info " not in turn_queue and "[debug " not in turn_queue
            )

        assert "Nothing is revoked." in await say("revoked")
        text = token("client", "ann", jti="t-1")
        assert (await say("revoke", text)).startswith("token:t-1 is revoked until it expires at ")
        monkeypatch.setattr("sys.stdin", io.StringIO(token("client", "ann", jti="t-2") + "\n"))
        assert (await say("revoke", "-")).startswith("token:t-2 is revoked until")
        assert "until it is allowed again" in await say("revoke", "--jti", "t-3")
        assert "until it expires" in await say("revoke", "--jti", "t-3", "--lifetime", "1h")
        assert "client:acme/a b is revoked until it is allowed again." in await say(
            "revoke", "--principal", "client:acme/a b"
        )
        told = await say("revoked")
        assert text not in told
        assert [turn_queue.split("  ")[1] for turn_queue in told.splitlines() if "by olga" in turn_queue] == [
            "client:acme/a b", "token:t-1", "token:t-2", "token:t-3",
        ]  # fmt: skip
        assert "is allowed again" in await say("allow", "client:acme/a b")
        assert "not on the list" in await say("allow", "client:acme/a b", code=1)
        assert [row["name"] for row in json.loads(await say("revoked", "--json"))] == [
            f"token:t-{n}" for n in (1, 2, 3)
        ]
        for wrong in (["revoke"], ["revoke", "x", "--jti", "y"], ["revoke", "x", "--lifetime", "1h"]):
            await say(*wrong, code=2)


async def test_instance_that_starts_knows_what_is_revoked(redis_at: RedisAt, prefix: str) -> None:
    async with cluster(redis_at, prefix, 1) as up:
        await up.revoke(principal="node:n1")
        later = await InProcessInstance.open(redis_at, prefix, "later", security__secret=SECRET)
        try:
            up.instances.append(later)
            assert (await up.node(token("node", "n1")))[1] == Close.UNAUTHORIZED
        finally:
            await later.close()


async def test_every_change_is_audited_and_listed_without_the_token(redis_at: RedisAt, prefix: str) -> None:
    async with cluster(redis_at, prefix, 1) as up:
        text = token("client", "ann", jti="t-1")
        until_ms = jwt.decode(text, options={"verify_signature": False})["exp"] * 1000 + 10_000  # and the leeway
        assert await up.revoke(token=text) == {"name": "token:t-1", "until_ms": until_ms}
        await up.revoke(jti="t-2")
        await up.ask("DELETE", "revocations/token:t-2")
        await up.ask("DELETE", "revocations/token:t-2", 404)
        (row,) = (await up.ask("GET", "revocations"))["entries"]
        assert (row["name"], row["by"], row["until_ms"]) == ("token:t-1", "olga", until_ms)
        entries = (await up.ask("GET", "audit"))["entries"]
        assert [(entry["action"], entry["target"], entry["result"][:7]) for entry in entries] == [
            ("token.allow", "token:t-2", "refused"),
            ("token.allow", "token:t-2", "done"),
            ("token.revoke", "token:t-2", "done"),
            ("token.revoke", "token:t-1", "done"),
        ]
        assert text not in json.dumps(entries)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "one of"),
        ({"jti": "a", "principal": "client:ann"}, "one of"),
        ({"token": "abc"}, "not signed"),
        ({"token": token("client", "ann", exp=1)}, "expired"),
        ({"token": token("client", "ann", exp=None)}, "not signed"),
        ({"token": jwt.encode({"exp": 2**33}, "x" * 40, algorithm="HS256")}, "not signed"),
        ({"jti": "a b"}, "a jti"),
        ({"jti": "a", "ttl_s": -1}, "ttl_s"),
        ({"principal": "ann"}, "written as"),
        ({"principal": "host:ann"}, "no class"),
        ({"principal": "client:a b/ann"}, "tenant"),
        ({"principal": "user:alice"}, "number"),
        ({"principal": "chat:nobody"}, "no chat user"),
        ({"principals": "client:ann"}, "body"),
    ],
)
async def test_impossible_revocation_is_refused_with_a_reason(
    redis_at: RedisAt, prefix: str, body: dict[str, object], why: str
) -> None:
    async with cluster(redis_at, prefix, 1) as up:
        assert why in (await up.revoke(400, **body))["error"]
        assert not up.instances[0].services.revocations.copy
