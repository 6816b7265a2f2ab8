"""What the console asks: pages of nodes, sessions and jobs of any cluster, and who changed what."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import jwt
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from dragoman.domain.job import Event, Outcome
from dragoman.gateway import operator_api
from dragoman.gateway.authentication import Authenticator
from dragoman.gateway.http_application import application
from dragoman.gateway.operator_api import Auditor, HttpContext
from dragoman.instance.services import Stores
from dragoman.services.history import History
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.operations import Operations
from dragoman.services.report import Listings, Report
from dragoman.services.routing.router import Announcer
from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.instances import GONE_MS, LOST, Presence
from dragoman.store.jobs import MAX_RECENT, TRIM_EVERY, Jobs
from dragoman.store.nodes import Snapshot
from dragoman.store.redis import Redis
from dragoman.store.sessions import window_fields
from support.cluster import config
from support.redis_servers import LONG_CLUSTER, Connect, RedisAt
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)

SECRET = "a-secret-of-more-than-thirty-two-bytes"


@dataclass
class Seen:
    report: Report
    listings: Listings
    history: History
    operations: Operations


class Site:
    """The HTTP of an instance that is nothing else."""

    def __init__(self, stores: Stores) -> None:
        self.stores, metrics = stores, Metrics()
        self.view = FleetView(stores.nodes, stores.storm, metrics, presence_ttl_s=60)
        report = Report(
            "here",
            stores.instances,
            stores.inboxes,
            stores.letters,
            self.view.fleet,
            stores.nodes,
            stores.reservations,
            stores.storm,
            4,
        )
        auditor = Auditor(stores.audit, "here")
        context = HttpContext(
            "here", metrics.registry, report, stores.letters, stores.jobs, dict, lambda: None, auditor
        )
        listings = Listings(stores.instances, stores.jobs, stores.sessions, stores.owners, stores.turns)
        history = History("here", metrics, stores.samples, stores.instances)
        seen = Seen(report, listings, history, Mock(Operations))  # what it does is tested with instances that do it
        operators = operator_api.console_routes(seen, auditor)
        keeper = Authenticator((SECRET,), "us")
        self.app = application(context, keeper, operator_api.console_files(), operators)
        self.client: TestClient[Any, Any]

    async def get(self, path: str, status: int = 200, **query: object) -> Any:
        asked = {name: str(value) for name, value in query.items()}
        return await told(await self.client.get(f"/api/v1/{path}", params=asked, headers=token()), status)


@pytest.fixture
def site(redis: Redis, redis_at: RedisAt, prefix: str, runner: asyncio.Runner) -> Iterator[Site]:
    made, stack = Site(Stores(config(redis_at, prefix), redis)), AsyncExitStack()

    async def up() -> None:
        made.client = await stack.enter_async_context(TestClient(TestServer(made.app)))

    runner.run(up())
    yield made
    runner.run(stack.aclose())


async def told(answer: ClientResponse, status: int) -> Any:
    assert answer.status == status, await answer.text()
    return await answer.json()


def token(subject: str = "olga", tenant: str = "default") -> dict[str, str]:
    claims = {"iss": "us", "exp": time.time() + 60, "typ": "operator", "sub": subject, "tenant": tenant}
    return {"Authorization": f"Bearer {jwt.encode(claims, SECRET)}"}


async def job(jobs: Jobs, name: str, node: str = "n1", session: str = "s1", outcome: Outcome | None = None) -> None:
    await asyncio.gather(*jobs.note(name), jobs.create(name, {"session_id": session, "driver": "a"}, node, 1))
    if outcome is not None:
        assert await jobs.advance(name, Event.RESULT, attempt=1, node=node, outcome=outcome) == "OK"


def names(page: dict[str, Any]) -> list[str]:
    return [row["job_id"] for row in page["jobs"]]


# -- who may ask ---------------------------------------------------------------------------------


async def test_console_files_are_public_and_its_data_needs_an_operator(site: Site) -> None:
    page = await site.client.get("/console")
    assert page.status == 200
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert (await site.client.get("/console/console.js")).status == 200
    for path in ("overview", "nodes", "jobs", "sessions", "audit", "history"):
        assert (await site.client.get(f"/api/v1/{path}")).status == 401


@pytest.mark.parametrize(
    "asked",
    [
        "nodes?count=0",
        "nodes?count=201",
        "sessions?count=x",
        "jobs?before=1",
        "jobs?since=x",
        "audit?before=x",
        "history?since=x",
    ],
)
async def test_operator_api_refuses_unanswerable_requests_with_a_sentence(site: Site, asked: str) -> None:
    answer = await site.client.get(f"/api/v1/{asked}", headers=token())
    assert "is not" in (await told(answer, 400))["error"]


# -- a large cluster -----------------------------------------------------------------------------


async def test_thousand_nodes_are_listed_in_pages_each_once(site: Site) -> None:
    for number in range(1000):
        site.view.seen(Snapshot(f"n{number:04}", 1, "a", asr=["en"], semantic=["es"], seen_ms=1))
    seen: list[str] = []
    after, pages = "", 0
    while pages == 0 or after:
        page = await site.get("nodes", count=200, after=after)
        seen += [row["node_id"] for row in page["nodes"]]
        after, pages = page["next"], pages + 1
    assert (pages, len(seen), seen) == (5, 1000, sorted(set(seen)))
    assert [row["node_id"] for row in (await site.get("nodes", part="n0999"))["nodes"]] == ["n0999"]
    assert (await site.get("overview"))["node_count"] == 1000


async def test_ten_thousand_sessions_are_listed_in_pages_quickly(site: Site) -> None:
    redis, keys = site.stores.redis, site.stores.keys
    await redis.call("SADD", keys.instances, "a", "b")
    for name in ("a", "b"):
        await redis.call("SADD", keys.sessions_of(name), *(f"s-{name}{number:05}" for number in range(5000)))
    before = time.process_time()
    first = await site.get("sessions", count=50)
    second = await site.get("sessions", count=50, after=first["next"])
    assert time.process_time() - before < 1
    assert first["count"] == 10_000
    ids = [row["session_id"] for row in first["sessions"] + second["sessions"]]
    assert ids == [f"s-a{number:05}" for number in range(100)]
    last = await site.get("sessions", count=50, after="s-b04990")
    assert (len(last["sessions"]), last["next"]) == (9, "")


async def test_list_of_jobs_is_bounded_and_listed_in_pages(site: Site) -> None:
    jobs, redis, recent = site.stores.jobs, site.stores.redis, site.stores.keys.jobs_recent
    now = int(time.time() * 1000)
    # Those of one millisecond are split between pages as well.
    flat = [part for number in range(MAX_RECENT + 500) for part in (now - number // 100, f"old-{number:05}")]
    await redis.call("ZADD", recent, *flat)
    for number in range(TRIM_EVERY + 1):
        await asyncio.gather(*jobs.note(f"new-{number}"))
    assert await redis.call("ZCARD", recent) <= MAX_RECENT + TRIM_EVERY
    made = [f"old-{number:05}" for number in range(250)]
    await asyncio.gather(*(jobs.create(name, {"session_id": "s"}, "n", 1) for name in made))
    found: list[str] = []
    page = await site.get("jobs", count=30)
    found += names(page)
    while page["next"]:
        page = await site.get("jobs", count=30, before=page["next"])
        found += names(page)
    assert (len(found), sorted(found)) == (250, made), "those of which nothing is left are not told"


# -- what is told of each ------------------------------------------------------------------------


async def test_jobs_are_filtered_by_outcome_node_and_session(site: Site) -> None:
    jobs = site.stores.jobs
    await job(jobs, "j1", "n1", "s1", Outcome.OK)
    await job(jobs, "j2", "n2", "s1", Outcome.FAILED)
    await job(jobs, "j3", "n2", "s2")
    assert sorted(names(await site.get("jobs"))) == ["j1", "j2", "j3"]
    assert names(await site.get("jobs", outcome="ok")) == ["j1"]
    assert names(await site.get("jobs", outcome="open")) == ["j3"]
    assert sorted(names(await site.get("jobs", node="n2"))) == ["j2", "j3"]
    assert names(await site.get("jobs", node="n2", session="s1")) == ["j2"]
    assert names(await site.get("jobs", since=int(time.time() * 1000) + 60_000)) == []


async def test_session_report_has_its_turn_and_release_window(site: Site) -> None:
    stores = site.stores
    await stores.redis.call("SADD", stores.keys.instances, "a")
    await stores.owners.claim_session("s1", "a")
    window = window_fields(2, {3: "sent"}, {2: ("j2", "t"), 4: ("j4", "t")})
    state = {"init": b'{"src_lang":"en","tgt_lang":"es"}', "next_index": 5, **window}
    await stores.sessions.open("s1", "secret", "olga", state)
    await stores.owners.claim_session("s2", "a")
    first, second = (await site.get("sessions"))["sessions"]
    assert (first["owner"], first["src_lang"], first["tgt_lang"], first["next_index"]) == ("a", "en", "es", 5)
    assert first["release"] == {"expected": 2, "settled": {"3": "sent"}, "open": {"2": "j2", "4": "j4"}}
    assert (second["resumable"], second["release"]) == (False, None)
    await stores.turns.bind("s2", f"t-{stores.keys.prefix}", "n1")
    second = (await site.get("sessions", part="s2"))["sessions"][0]
    assert second["turn_node"] == "n1"
    await stores.turns.end("s2", f"t-{stores.keys.prefix}")


async def test_an_instance_whose_connection_to_redis_ended_is_not_answering_before_its_presence_lapses(
    site: Site, connect: Connect
) -> None:
    stores, tasks = site.stores, Tasks()
    await stores.instances.open("b", "incarnation", "g")
    await stores.instances.renew(Presence("b", "incarnation"), 60_000)
    announcer = Announcer(await connect(), stores.keys, tasks, "b")
    running = asyncio.create_task(announcer.run())
    await wait_until(lambda: announcer.subscriber.listening)
    assert await states(site) == {"b": (True, True)}
    running.cancel()
    await asyncio.wait([running])
    await wait_until(lambda: not announcer.subscriber.listening)

    async def noticed() -> bool:
        return await states(site) == {"b": (True, False)}

    await wait_until(noticed)


async def states(site: Site) -> dict[str, tuple[bool, bool]]:
    return {row["instance"]: (row["alive"], row["answering"]) for row in (await site.get("overview"))["instances"]}


async def test_stopped_instance_is_listed_as_gone_until_it_restarts(site: Site) -> None:
    instances = site.stores.instances
    await instances.open("b", "1", "g")
    await instances.forget("b", "1")
    await instances.open("c", "1", "g")
    await instances.strike_out("c", LOST)
    overview = await site.get("overview")
    gone = {row["instance"]: row for row in overview["gone_instances"]}
    assert {name: row["how"] for name, row in gone.items()} == {"b": "left", "c": "lost"}
    assert all(0 <= overview["now_ms"] - row["at_ms"] < 60_000 for row in gone.values())
    await instances.open("c", "2", "g")
    assert [row["instance"] for row in (await site.get("overview"))["gone_instances"]] == ["b"]


async def test_an_instance_that_ended_long_ago_is_not_listed(site: Site) -> None:
    instances, redis, gone = site.stores.instances, site.stores.redis, site.stores.keys.instances_gone
    await instances.strike_out("b", LOST)
    await redis.call("ZADD", gone, await instances.now_ms() - GONE_MS - 1, "lost b")
    assert (await site.get("overview"))["gone_instances"] == []
    await instances.strike_out("c", LOST)
    assert await redis.call("ZCARD", gone) == 1
    assert 0 < await redis.call("PTTL", gone) <= GONE_MS


async def test_report_lists_gone_nodes_and_nodes_in_cool_down(site: Site) -> None:
    stores = site.stores
    for name in ("n1", "n2"):
        await stores.nodes.write(Snapshot(name, 1, "a", services={"asr-1": "asr"}))
    await stores.storm.report("n1", "asr-1@1")
    await site.view.run_once()
    await stores.nodes.gone("n2")
    await site.view.run_once()
    overview = await site.get("overview")
    assert [row["node_id"] for row in overview["gone"]] == ["n2"]
    node = (await site.get("nodes"))["nodes"][0]
    assert node["cooling_until_ms"]["asr-1@1"] > overview["now_ms"]


# -- the audit -----------------------------------------------------------------------------------


async def test_audit_records_each_change_with_its_operator(site: Site) -> None:
    stores = site.stores
    for id in ("1-0", "2-0"):
        await stores.redis.call("XADD", stores.keys.dlq("a"), id, "v", "1", "type", "x", "reason", "why", "data", "")
    await stores.redis.call("SADD", stores.keys.dlq_instances, "a")
    for id in ("1-0", "2-0"):
        await site.client.delete(f"/api/v1/dlq/a/{id}", headers=token("olga" if id == "1-0" else "per", tenant="acme"))
    page = await site.get("audit", count=1)
    entry = page["entries"][0]
    assert (entry["who"], entry["action"], entry["target"], entry["instance"]) == ("per", "dlq.drop", "a/2-0", "here")
    assert (entry["tenant"], entry["result"]) == ("acme", "done")
    assert abs(entry["at_ms"] - time.time() * 1000) < 60_000
    rest = await site.get("audit", before=page["next"])
    assert [entry["who"] for entry in rest["entries"]] == ["olga"]
    assert rest["next"] == ""


@pytest.mark.parametrize(
    ("method", "path", "headers", "action", "result"),
    [
        ("DELETE", "dlq/a/9-9", {}, "dlq.drop", "refused: no such dead letter"),
        ("POST", "dlq/a/9-9/replay", {}, "dlq.replay", "refused: no such dead letter"),
        ("DELETE", "dlq/a/x", {}, "dlq.drop", "refused: "),
        ("DELETE", "dlq/a/9-9", {"Origin": "http://evil"}, "dlq.drop", "refused: pages of other hosts may not change"),
    ],
)
async def test_audit_records_failed_operations(
    site: Site, method: str, path: str, headers: dict[str, str], action: str, result: str
) -> None:
    await site.client.request(method, f"/api/v1/{path}", headers={**token("per"), **headers})
    (entry,) = (await site.get("audit"))["entries"]
    assert (entry["who"], entry["action"]) == ("per", action)
    assert entry["target"] == path.removeprefix("dlq/").removesuffix("/replay")
    assert entry["result"].startswith(result)


async def test_requests_without_operator_rights_write_no_audit_entry(site: Site) -> None:
    for headers in ({}, {"Authorization": "Bearer x"}):
        await site.client.delete("/api/v1/dlq/a/1-0", headers=headers)
    assert (await site.get("audit"))["entries"] == []


async def test_audit_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.store.console.MAX_ENTRIES", 100)
    for number in range(400):
        await site.stores.audit.add("olga", "dlq.drop", str(number), "", "here")
    assert await site.stores.redis.call("XLEN", site.stores.keys.audit) < 300  # Redis cuts whole nodes of the stream
