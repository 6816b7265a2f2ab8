"""What operators do to instances, nodes, sessions and chat users, asked of an instance that does not have them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import pytest

from dragoman.domain.fleet import Fleet
from dragoman.instance import services
from dragoman.instance.instance import Instance
from dragoman.instance.redis_check import CannotStart
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import Peer
from dragoman.services.routing.router import INBOX_KINDS
from support.chat import ChatSpeaker
from support.cluster import Speaker, config
from support.in_process import TIMEOUT_S, InProcessInstance
from support.redis_servers import RedisAt
from support.waiting import wait_until


class Pair:
    """Two instances: `here` is asked, `there` has what is asked about."""

    def __init__(self, instance: InProcessInstance, there: InProcessInstance, http: aiohttp.ClientSession) -> None:
        self.here, self.there, self._http = instance, there, http

    def url(self, instance: InProcessInstance, path: str) -> str:
        return f"http://127.0.0.1:{instance.instance.ports.listener.port}{path}"

    async def ask(self, method: str, path: str, status: int = 200, **headers: str) -> dict[str, Any]:
        async with self._http.request(method, self.url(self.here, f"/api/v1/{path}"), headers=headers) as answer:
            told: dict[str, Any] = await answer.json()
            assert answer.status == status, told
            return told

    async def socket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        return await self._http.ws_connect(self.url(self.there, path))

    async def audited(self) -> list[tuple[str, str, str]]:
        entries = (await self.ask("GET", "audit"))["entries"]
        return [(entry["action"], entry["target"], entry["result"]) for entry in entries]


def drains(fleet: Fleet, draining: bool) -> bool:
    node = fleet.get("n1")
    return node is not None and node.draining is draining


@asynccontextmanager
async def two_instances(redis_at: RedisAt, prefix: str) -> AsyncIterator[Pair]:
    instance, there = (
        await InProcessInstance.open(redis_at, prefix, "here"),
        await InProcessInstance.open(redis_at, prefix, "there"),
    )
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(TIMEOUT_S):
            yield Pair(instance, there, http)
    finally:
        await there.close()
        await instance.close()


async def test_a_drained_instance_accepts_nothing_new_and_stays_until_its_process_is_ended(
    redis_at: RedisAt, prefix: str
) -> None:
    async with two_instances(redis_at, prefix) as pair:
        assert await pair.ask("POST", "instances/there/drain") == {"draining": True}
        await wait_until(lambda: pair.there.instance.draining, TIMEOUT_S)

        async def told() -> bool:
            rows = (await pair.ask("GET", "overview"))["instances"]
            return {row["instance"]: row.get("draining", False) for row in rows} == {"here": False, "there": True}

        await wait_until(told, TIMEOUT_S)
        await wait_until(lambda: not pair.there.instance.ports.listener._servers[0].is_serving(), TIMEOUT_S)
        assert pair.there.instance.why_not_ready() == "draining"
        assert await pair.audited() == [("instance.drain", "there", "done")]


async def test_a_drained_node_gets_no_new_job_until_the_drain_is_taken_back(redis_at: RedisAt, prefix: str) -> None:
    async with two_instances(redis_at, prefix) as pair:
        node = await pair.there.node("n1")
        await wait_until(lambda: pair.here.knows("n1"), TIMEOUT_S)
        fleet = pair.here.services.view.fleet
        for method, draining in (("POST", True), ("DELETE", False)):
            assert await pair.ask(method, "nodes/n1/drain") == {"draining": draining}
            await wait_until(partial(drains, fleet, draining), TIMEOUT_S)
            await node.beat()
            assert node.local.snapshot.draining is draining, "a heartbeat does not change it"
        assert await pair.audited() == [("node.undrain", "n1", "done"), ("node.drain", "n1", "done")]


@pytest.mark.parametrize("resume", [False, True], ids=["plain", "resumable"])
async def test_client_is_notified_of_an_ended_session_and_cannot_resume_it(
    redis_at: RedisAt, prefix: str, resume: bool
) -> None:
    async with two_instances(redis_at, prefix) as pair:
        speaker = Speaker(await pair.socket("/ws/session"))
        await speaker.init(resume=resume)
        path, owner = f"sessions/{speaker.session_id}", pair.here.keys.session_owner(speaker.session_id)
        await wait_until(lambda: pair.here.redis.call("EXISTS", owner), TIMEOUT_S)
        assert await pair.ask("DELETE", path) == {"ended": True}
        error = await speaker.until(lambda message: message["type"] == "error")
        assert (error["code"], "operator" in error["message"]) == ("SESSION_CLOSED", True)
        last = await speaker.ws.receive()
        assert (last.type, last.data) == (aiohttp.WSMsgType.CLOSE, Close.ENDED)
        keys = pair.here.keys

        async def gone() -> bool:
            found = await pair.here.redis.call("EXISTS", keys.session_state(speaker.session_id))
            return not found and not pair.there.services.sessions.find(speaker.session_id)

        await wait_until(gone, TIMEOUT_S)
        assert await pair.audited() == [("session.end", speaker.session_id, "done")]


async def test_the_other_sessions_of_a_socket_go_on_when_one_is_ended(redis_at: RedisAt, prefix: str) -> None:
    async with two_instances(redis_at, prefix) as pair:
        speaker = Speaker(await pair.socket("/ws/session"))
        first = (await speaker.init())["session_id"]
        second = (await speaker.init())["session_id"]
        await wait_until(lambda: pair.here.redis.call("EXISTS", pair.here.keys.session_owner(first)), TIMEOUT_S)
        await pair.ask("DELETE", f"sessions/{first}")
        await speaker.until(lambda message: message["type"] == "error")
        await speaker.say("session_close", session_id=second, reason="done")
        await speaker.until(lambda message: message["type"] == "session_close_ack")


async def test_a_session_that_waits_for_its_client_is_ended(redis_at: RedisAt, prefix: str) -> None:
    async with two_instances(redis_at, prefix) as pair:
        stores = pair.here.stores
        await stores.sessions.open("s-alone", "token", "default/local", {"init": b"{}"})
        assert await pair.ask("DELETE", "sessions/s-alone") == {"ended": True}
        assert not await pair.here.redis.call("EXISTS", pair.here.keys.session_state("s-alone"))


async def test_disconnected_chat_user_is_notified_and_does_not_reconnect(redis_at: RedisAt, prefix: str) -> None:
    async with two_instances(redis_at, prefix) as pair:
        speaker = ChatSpeaker(7, await pair.socket("/ws"))
        await speaker.auth()
        assert await pair.ask("DELETE", "chat/users/7/connection") == {"disconnected": True}
        await speaker.expect("ERROR", reason="kicked")
        assert await speaker.until_closed() == Close.REPLACED
        assert await pair.audited() == [("chat.disconnect", "7", "done")]


@pytest.mark.parametrize(
    ("method", "path", "action", "target"),
    [
        ("POST", "instances/nobody/drain", "instance.drain", "nobody"),
        ("POST", "nodes/nobody/drain", "node.drain", "nobody"),
        ("DELETE", "nodes/nobody/drain", "node.undrain", "nobody"),
        ("DELETE", "sessions/s-nobody", "session.end", "s-nobody"),
        ("DELETE", "chat/users/99/connection", "chat.disconnect", "99"),
    ],
)
async def test_operation_on_an_unknown_target_is_refused_and_audited(
    redis_at: RedisAt, prefix: str, method: str, path: str, action: str, target: str
) -> None:
    async with two_instances(redis_at, prefix) as pair:
        why = (await pair.ask(method, path, 404))["error"]
        foreign = await pair.ask(method, path, 403, Origin="http://evil.example")
        assert "pages of other hosts" in foreign["error"]
        first, second = await pair.audited()
        assert second == (action, target, f"refused: {why}")
        assert first[0] == action


class Unhandled(Peer, tag="unhandled", frozen=True):
    """A kind that a later change added without a handler."""


async def test_an_instance_without_a_handler_for_a_kind_does_not_start(
    redis_at: RedisAt, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "INBOX_KINDS", (*INBOX_KINDS, Unhandled))
    with pytest.raises(CannotStart, match="no handler for these kinds of inbox message: Unhandled"):
        await Instance.start(config(redis_at, prefix, server__port=0))
