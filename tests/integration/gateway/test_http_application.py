"""The HTTP beside the WebSockets: health for anybody, metrics and the API for operators."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import jwt
import msgspec
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from dragoman.domain.job import Event
from dragoman.gateway.authentication import Authenticator
from dragoman.gateway.http_application import admin_application, application
from dragoman.gateway.operator_api import Auditor, HttpContext
from dragoman.instance.services import Stores
from dragoman.protocol.peer import Bounced, ChatPush, FromNode, InboxMessage, ToSocket, UserPush, encode_peer
from dragoman.services.metrics import Metrics
from dragoman.services.report import Report
from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.errors import RedisAway
from dragoman.store.redis import Redis
from support.cluster import config
from support.redis_servers import RedisAt

SECRET = "a-secret-of-more-than-thirty-two-bytes"
MESSAGE = encode_peer(Bounced("n", 1, "j", 1))


class Site:
    """Both ports of one instance that is only its HTTP."""

    def __init__(self, stores: Stores) -> None:
        self.stores, self.metrics = stores, Metrics()
        self.why_not_ready: str | None = None
        self._letters = 0
        view = FleetView(stores.nodes, stores.storm, self.metrics, presence_ttl_s=60)
        self.context = HttpContext(
            "here",
            self.metrics.registry,
            Report(
                "here",
                stores.instances,
                stores.inboxes,
                stores.letters,
                view.fleet,
                stores.nodes,
                stores.reservations,
                stores.storm,
                4,
            ),
            stores.letters,
            stores.jobs,
            lambda: {"instance": "here"},
            lambda: self.why_not_ready,
            Auditor(stores.audit, "here"),
        )

    @asynccontextmanager
    async def public(self, *secrets: str) -> AsyncIterator[TestClient[Any, Any]]:
        async with TestClient(TestServer(application(self.context, Authenticator(secrets, "us")))) as client:
            yield client

    @asynccontextmanager
    async def admin(self, *secrets: str) -> AsyncIterator[TestClient[Any, Any]]:
        """With secrets: as where others can reach it."""
        keeper = Authenticator(secrets, "us") if secrets else None
        async with TestClient(TestServer(admin_application(self.context, keeper))) as client:
            yield client

    async def letter(self, instance: str = "a", data: bytes = MESSAGE) -> str:
        """A dead letter; its id."""
        fields = ("v", "1", "type", "bounced", "reason", "why not", "deliveries", "6", "size", len(data), "data", data)
        self._letters += 1
        id = f"{self._letters}-0"  # two streams may take the same millisecond
        await self.stores.redis.call("XADD", self.stores.keys.dlq(instance), id, *fields)
        await self.stores.redis.call("SADD", self.stores.keys.dlq_instances, instance)
        return id


@pytest.fixture
def site(redis: Redis, redis_at: RedisAt, prefix: str) -> Site:
    return Site(Stores(config(redis_at, prefix), redis))


@pytest.fixture
def client(site: Site, runner: asyncio.Runner) -> Iterator[TestClient[Any, Any]]:
    """A client of the public port where no secret is set."""
    stack = AsyncExitStack()
    yield runner.run(stack.enter_async_context(site.public()))
    runner.run(stack.aclose())


async def told(answer: ClientResponse, status: int = 200) -> Any:
    assert answer.status == status, await answer.text()
    assert answer.content_type == "application/json"
    return await answer.json()


def token(**claims: Any) -> dict[str, str]:
    made = jwt.encode({"iss": "us", "exp": time.time() + 60, "typ": "operator", "sub": "o"} | claims, SECRET)
    return {"Authorization": f"Bearer {made}"}


# -- health and metrics --------------------------------------------------------------------------


async def test_health_says_ok_and_ready_says_why_not(site: Site) -> None:
    async with site.public(SECRET) as public, site.admin() as admin:
        for client in (public, admin):
            site.why_not_ready = None
            for path in ("/health", "/health/live"):
                answer = await client.get(path)
                assert (answer.status, await answer.text()) == (200, "OK")
            assert await told(await client.get("/health/ready")) == {"ready": True, "reason": None, "instance": "here"}
            site.why_not_ready = "Redis is away"
            answer = await client.get("/health/ready")
            assert (await told(answer, 503))["reason"] == "Redis is away"
            assert (await client.get("/health/live")).status == 200


async def test_metrics_are_served_in_both_formats_and_on_both_ports(site: Site, client: TestClient[Any, Any]) -> None:
    site.metrics.dlq_moved.inc()
    async with site.admin() as admin:
        for each in (client, admin):
            answer = await each.get("/metrics")
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "\nscheduler_phase2_dlq_moved_total 1.0\n" in await answer.text()
    assert (await told(await client.get("/api/v1/metrics")))["scheduler_phase2_dlq_moved_total"] == 1.0


async def test_api_reports_the_cluster_and_the_instance(client: TestClient[Any, Any]) -> None:
    assert (await told(await client.get("/api/v1/cluster")))["reported_by"] == "here"
    assert await told(await client.get("/api/v1/stats")) == {"instance": "here"}


async def test_job_report_has_its_placement_receipt(site: Site, client: TestClient[Any, Any]) -> None:
    await site.stores.jobs.create("j", {"driver": "a", "receipt": '{"chosen":"n"}'}, "n", 1)
    found = await told(await client.get("/api/v1/jobs/j"))
    assert (found["state"], found["receipt"]) == ("DISPATCHED", {"chosen": "n"})
    await site.stores.jobs.create("odd", {"driver": "a", "receipt": "{"})
    assert (await told(await client.get("/api/v1/jobs/odd")))["receipt"] == "{"
    answer = await client.get("/api/v1/jobs/none")
    assert await told(answer, 404) == {"error": "no such job, or it ended too long ago"}


async def test_job_report_has_its_cancelled_attempts(site: Site, client: TestClient[Any, Any]) -> None:
    await site.stores.jobs.create("again", {"driver": "a"}, "n", 1)
    await site.stores.jobs.advance("again", Event.REASSIGN, attempt=1, code="ack_timeout")
    found = await told(await client.get("/api/v1/jobs/again"))
    (past,) = found["attempts"]
    assert (past["attempt"], past["node_id"], past["reason"]) == ("1", "n", "ack_timeout")
    assert not [name for name in found if name.startswith("attempt_")]


# -- who may ask ---------------------------------------------------------------------------------

GUARDED = [
    ("GET", "/metrics"),
    ("GET", "/api/v1/cluster"),
    ("GET", "/api/v1/stats"),
    ("GET", "/api/v1/metrics"),
    ("GET", "/api/v1/jobs/j"),
    ("GET", "/api/v1/dlq"),
    ("GET", "/api/v1/dlq/a/1-1"),
    ("POST", "/api/v1/dlq/a/1-1/replay"),
    ("DELETE", "/api/v1/dlq/a/1-1"),
    ("GET", "/%61pi/v1/cluster"),
]


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_with_a_secret_only_an_operator_gets_an_answer(site: Site, method: str, path: str) -> None:
    async with site.public(SECRET) as client:
        assert await told(await client.request(method, path), 401) == {"error": "a token is needed"}
        answer = await client.request(method, path, headers=token(typ="client"))
        assert await told(answer, 401) == {"error": "the token is not one for an operator"}
        assert (await client.request(method, path, headers=token())).status != 401


@pytest.mark.parametrize("headers", [{}, token(typ="client"), token()], ids=["no token", "client", "operator"])
async def test_an_unknown_path_is_not_found_whatever_the_token(site: Site, headers: dict[str, str]) -> None:
    async with site.public(SECRET) as client, site.admin(SECRET) as admin:
        answer = await client.get("/anything", headers=headers)
        assert await told(answer, 404) == {"error": "there is nothing at this path"}
        assert (await admin.get("/anything", headers=headers)).status == 404
        assert (await client.put("/metrics")).status == 401


async def test_texts_that_are_no_tokens_get_the_same_answer(site: Site) -> None:
    async with site.public(SECRET) as client:
        for headers in ({"Authorization": "Bearer é"}, {"Authorization": "Bearer x.y.z"}):
            assert await told(await client.get("/metrics", headers=headers), 401) == {"error": "the token is not valid"}
        answer = await client.get("/metrics", headers=token(iss="them"))
        assert await told(answer, 401) == {"error": "the token is of another issuer"}
        answer = await client.get("/metrics", headers=token(exp=1))
        assert await told(answer, 401) == {"error": "the token has expired"}


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_pages_of_other_hosts_change_nothing(site: Site, client: TestClient[Any, Any], origin: str) -> None:
    """Without a secret any page in the operator's browser could ask: it sends its Origin along."""
    id = await site.letter()
    for method, path in (("DELETE", f"/api/v1/dlq/a/{id}"), ("POST", f"/api/v1/dlq/a/{id}/replay")):
        answer = await client.request(method, path, headers={"Origin": origin})
        assert await told(answer, 403) == {"error": "pages of other hosts may not change anything here"}
    assert len(await told(await client.get("/api/v1/dlq"))) == 1
    own = f"http://{client.host}:{client.port}"
    assert (await client.delete(f"/api/v1/dlq/a/{id}", headers={"Origin": own})).status == 200


async def test_reachable_admin_port_serves_only_health_without_a_token(site: Site) -> None:
    async with site.admin(SECRET) as admin:
        assert (await admin.get("/health/ready")).status == 200
        assert (await admin.get("/metrics")).status == 401
        assert (await admin.get("/metrics", headers=token(typ="node"))).status == 401
        assert (await admin.get("/metrics", headers=token())).status == 200


async def test_rebound_host_name_is_refused_where_no_token_is_required(site: Site) -> None:
    """DNS rebinding: to the browser the page is of our own origin."""
    app = application(site.context, Authenticator((), "us"), loopback_hosts_only=True)
    async with TestClient(TestServer(app)) as client:
        evil = {"Host": "evil.example:5010", "Origin": "http://evil.example:5010"}
        for path in ("/api/v1/cluster", "/health", "/metrics"):
            answer = await client.get(path, headers=evil)
            assert "localhost" in (await told(answer, 421))["error"]
        assert (await client.delete("/api/v1/dlq/a/1-1", headers=evil)).status == 421
        assert (await client.get("/api/v1/cluster")).status == 200
        assert (await client.get("/api/v1/cluster", headers={"Host": "localhost:5010"})).status == 200


async def test_admin_port_without_tokens_answers_only_loopback_host_names(site: Site) -> None:
    async with site.admin() as admin:
        for path in ("/metrics", "/health", "/health/ready", "/nothing"):
            answer = await admin.get(path, headers={"Host": "evil.example:5111"})
            assert "server.admin_host" in (await told(answer, 421))["error"]
        for name in ("localhost:5111", "127.0.0.1", "[::1]:5111"):
            assert (await admin.get("/metrics", headers={"Host": name})).status == 200
    async with site.admin(SECRET) as admin:
        assert (await admin.get("/metrics", headers={"Host": "metrics.example:5111", **token()})).status == 200


async def test_health_does_not_name_the_instance_without_a_token(site: Site) -> None:
    far = {"X-Forwarded-For": "203.0.113.7"}
    async with site.public(SECRET) as public, site.admin(SECRET) as admin:
        for client in (public, admin):
            assert await told(await client.get("/health/ready", headers=far)) == {"ready": True, "reason": None}
            for bad in (token(typ="node"), {"Authorization": "Bearer x"}):
                assert "instance" not in await told(await client.get("/health/ready", headers={**far, **bad}))
            assert (await told(await client.get("/health/ready", headers={**far, **token()})))["instance"] == "here"


@pytest.mark.parametrize(
    "request_line", ["GET /health HTTP/1.1", "GET /nothing HTTP/1.1", "GET /metrics HTTP/1.1", "GET / / HTTP/9.x"]
)
async def test_no_answer_names_a_version(site: Site, request_line: str) -> None:
    async with site.public(SECRET) as public, site.admin(SECRET) as admin:
        for client in (public, admin):
            reader, writer = await asyncio.open_connection(client.host, client.port)
            writer.write(f"{request_line}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            head = (await reader.read()).partition(b"\r\n\r\n")[0].decode()
            writer.close()
            assert [line for line in head.splitlines() if line.startswith("Server:")] == ["Server: Dragoman"]
            assert "aiohttp" not in head
            assert "Python" not in head


@pytest.mark.parametrize("path", ["/health", "/metrics", "/api/v1/cluster", "/api/v1/dlq/a/x", "/nothing"])
async def test_every_response_has_the_security_headers(site: Site, path: str) -> None:
    async with site.public(SECRET) as public, site.admin(SECRET) as admin:
        for client in (public, admin):
            for headers in ({}, token(), {"Origin": "https://evil.example"}):
                answer = await client.get(path, headers=headers)
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert answer.headers["Cache-Control"] == "no-store"
                assert "Set-Cookie" not in answer.headers
                assert not [name for name in answer.headers if name.startswith("Access-Control-")]


async def test_cors_preflight_of_another_origin_is_not_allowed(site: Site) -> None:
    async with site.public(SECRET) as client:
        asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "DELETE", **token()}
        answer = await client.options("/api/v1/dlq/a/1-1", headers=asked)
        assert answer.status >= 400
        assert not [name for name in answer.headers if name.startswith("Access-Control-")]


# -- dead letters --------------------------------------------------------------------------------


async def test_letters_of_all_are_listed_oldest_first(site: Site, client: TestClient[Any, Any]) -> None:
    assert await told(await client.get("/api/v1/dlq")) == []
    ids = [await site.letter(instance) for instance in ("b", "a", "b")]
    letters = await told(await client.get("/api/v1/dlq"))
    assert [letter["id"] for letter in letters] == ids
    assert letters[0] | {"id": "", "dead_ms": 0} == {
        "id": "", "instance": "b", "kind": "bounced", "reason": "why not", "deliveries": 6, "trace_id": "",
        "added_ms": 0, "dead_ms": 0, "size": len(MESSAGE),
    }  # fmt: skip
    assert len(await told(await client.get("/api/v1/dlq?count=2"))) == 2
    only = await told(await client.get(f"/api/v1/dlq?instance=b&after={ids[0]}"))
    assert [letter["id"] for letter in only] == [ids[2]]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("count=²", "count is not a number from 1 to 1000"),
        ("count=0", "count is not a number from 1 to 1000"),
        ("count=1001", "count is not a number from 1 to 1000"),
        ("after=1-1", "after needs instance as well"),
        ("instance=a&after=x", "'x' is not the id of a dead letter"),
    ],
)
async def test_bad_request_is_answered_with_a_sentence(client: TestClient[Any, Any], query: str, sentence: str) -> None:
    assert await told(await client.get(f"/api/v1/dlq?{query}"), 400) == {"error": sentence}


async def test_a_letter_is_shown_without_its_audio(site: Site, client: TestClient[Any, Any]) -> None:
    id = await site.letter(data=b'{"type":"assign","job_id":"j","frame":{"audio":"UklGR"}}')
    shown = await told(await client.get(f"/api/v1/dlq/a/{id}"))
    assert json.loads(shown["data"]) == {"type": "assign", "job_id": "j", "frame": "17 bytes"}
    assert "UklGR" not in str(shown)


@pytest.mark.parametrize(
    "message",
    [
        FromNode("n", 1, "j", [msgspec.Raw(b'{"type":"job_result","text_asr":"what was said"}')]),
        ChatPush([UserPush(1, 2, 3, msgspec.Raw(b'{"type":"SINGLE_CHAT","body":"what was said"}'))]),
        ToSocket(1, "s", msgspec.Raw(b'{"text":"what was said"}')),
        b'{"frame": "what was said',
    ],
)
async def test_letter_is_shown_without_its_text(
    site: Site, client: TestClient[Any, Any], message: InboxMessage | bytes
) -> None:
    id = await site.letter(data=message if isinstance(message, bytes) else encode_peer(message))
    shown = await told(await client.get(f"/api/v1/dlq/a/{id}"))
    assert "bytes" in shown["data"]
    assert "what was said" not in str(shown)


@pytest.mark.parametrize("id", ["7-7", "9999999999999-0"])
@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("DELETE", ""), ("POST", "/replay")])
async def test_a_letter_that_is_not_there_is_not_found(
    client: TestClient[Any, Any], method: str, tail: str, id: str
) -> None:
    answer = await client.request(method, f"/api/v1/dlq/a/{id}{tail}")
    assert await told(answer, 404) == {"error": "no such dead letter"}


async def test_unreadable_dead_letter_cannot_be_replayed(site: Site, client: TestClient[Any, Any]) -> None:
    id = await site.letter(data=b"{")
    error = (await told(await client.post(f"/api/v1/dlq/a/{id}/replay"), 409))["error"]
    assert error.startswith("it cannot be replayed, only dropped: ")


# -- what goes wrong -----------------------------------------------------------------------------


async def test_unknown_paths_and_methods_are_answered_with_json(client: TestClient[Any, Any]) -> None:
    assert await told(await client.get("/nothing"), 404) == {"error": "there is nothing at this path"}
    assert await told(await client.put("/api/v1/dlq"), 405) == {"error": "this path allows only GET, HEAD"}


async def test_redis_that_loads_its_data_is_named_as_such(
    site: Site, client: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def loading() -> None:
        raise RedisAway("no connection to Redis at x: LOADING Valkey is loading the dataset in memory")

    monkeypatch.setattr(site.context.report, "cluster", loading)
    sentence = (await told(await client.get("/api/v1/cluster"), 503))["error"]
    assert sentence.startswith("Redis was restarted and is loading its data")


async def test_redis_outage_is_a_503_and_a_bug_a_500_without_details(
    site: Site, client: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise RedisAway("connection refused")

    async def bug() -> None:
        raise KeyError("secret inside")

    monkeypatch.setattr(site.context.report, "cluster", away)
    answer = await client.get("/api/v1/cluster")
    assert await told(answer, 503) == {"error": "Redis is away: connection refused"}
    monkeypatch.setattr(site.context.report, "cluster", bug)
    with capture_logs() as logged:
        answer = await client.get("/api/v1/cluster")
        assert await told(answer, 500) == {"error": "internal error"}
    assert [(line["event"], line["path"]) for line in logged] == [("a request failed", "/api/v1/cluster")]
