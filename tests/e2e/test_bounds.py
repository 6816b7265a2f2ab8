"""What peers may make an instance keep has an end, and who runs into it is told."""

from time import monotonic
from typing import Any

import aiohttp
import pytest
import redis

from dragoman.protocol.codes import Close
from dragoman.protocol.fields import MAX_ENTRIES
from dragoman.services.speech.local_nodes import PUBLISH_INTERVAL_S
from support.raw_node import Message, RawNode
from support.speech import (
    TIMEOUT_S,
    Harness,
    Scenario,
    closed_with,
    module_harness,
    new_scenario,
    scenario_on_harness,
    with_healthy_client,
)
from support.waiting import wait_until

MAX_SESSIONS = 64  # limits.sessions_per_connection


harness = module_harness({})
scenario = scenario_on_harness(with_healthy_client)


# Room for four sessions, and one page that is not its own.
narrow = module_harness({"limits__sessions": 4, "server__allowed_origins": ["https://app.example.com"]})


async def test_connection_has_a_limit_of_sessions_and_may_open_another_after_one_ends(scenario: Scenario) -> None:
    talker = await scenario.talker()
    for _ in range(MAX_SESSIONS - 1):
        await talker.init()
    await talker.say("session_init", client_version="t", platform="web", src_lang="en", tgt_lang="es")
    assert f"has {MAX_SESSIONS} sessions open" in (await talker.refused())["message"]
    await talker.say("session_close", session_id=talker.session_id, reason="done")
    await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
    assert (await talker.init())["session_id"]


async def test_limit_of_sessions_counts_detached_sessions(narrow: Harness) -> None:
    async with new_scenario(narrow) as scenario:
        gone = [await scenario.talker(resume=True) for _ in range(4)]
        for one in gone[:2]:  # each leaves a session behind that could be resumed
            await one.ws.close()
        late = await scenario.bare_talker()
        await late.say("session_init", client_version="t", platform="web", src_lang="en", tgt_lang="es")
        assert await closed_with(late.ws) == Close.OVERLOADED


@pytest.mark.parametrize("field", ["features", "dialect", "pairing_code", "client_version", "auto_langs", "token"])
async def test_session_init_with_a_long_field_is_refused_and_names_the_field(scenario: Scenario, field: str) -> None:
    long: dict[str, Any] = {"features": {"x" * 5000: True}, "auto_langs": ["en"] * 5000}
    talker = await scenario.bare_talker()
    said = {"client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
    await talker.say("session_init", **said | {field: long.get(field, "x" * 5000)})
    assert f"Field `{field}`" in (await talker.refused())["message"]
    await talker.init()


LONG = "x" * 200


async def test_snapshot_of_a_node_in_redis_is_small_whatever_the_node_sends(scenario: Scenario) -> None:
    names = [f"{n}{LONG}"[:200] for n in range(MAX_ENTRIES)]
    node = await scenario.node(node_id="wordy", advanced_features=names)
    languages = [f"{scenario.src}-{n:025}" for n in range(MAX_ENTRIES)]
    await node.beat(
        languages,
        installed_services=[{"service_id": name, "type": LONG} for name in names],
        capability_by_type=[{"type": name, "ready": True} for name in names],
    )

    async def kept() -> bytes:
        return bytes(await scenario.redis.call("GET", scenario.keys.node_snapshot(node.id)) or b"")

    async def known() -> bool:
        return languages[-1].encode() in await kept()

    await wait_until(known, TIMEOUT_S)
    assert len(await kept()) < 100_000


async def test_long_service_name_is_stored_nowhere(scenario: Scenario) -> None:
    async def lacks(node: RawNode, job: Message) -> None:
        await node.lacks(job, "x" * 60_000)

    node = await scenario.node(work=lacks)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    assert await talker.failed(0)
    kept = await scenario.redis.call("HGETALL", scenario.keys.storm(node.id))
    assert kept
    assert max(map(len, kept)) < 1000


async def test_fast_heartbeats_are_announced_as_one(scenario: Scenario) -> None:
    node = await scenario.node(node_id="hasty")
    with redis.Redis.from_url(scenario.harness.redis.urls[0], protocol=2) as client, client.pubsub() as key_inspector:
        key_inspector.subscribe(scenario.keys.announcements)
        began = monotonic()
        for number in range(300):
            services = [{"service_id": f"s{number}", "type": "asr"}]
            await node.beat((scenario.src, scenario.tgt), installed_services=services)

        async def latest() -> bool:
            return b'"s299"' in (await scenario.redis.call("GET", scenario.keys.node_snapshot(node.id)) or b"")

        await wait_until(latest, TIMEOUT_S)
        most = (monotonic() - began) / PUBLISH_INTERVAL_S + 2
        told = 0
        while (message := key_inspector.get_message(timeout=0.2)) is not None:
            told += message["type"] == "message" and b"hasty" in message["data"]
    assert 0 < told <= most


async def test_server_accepts_no_compression(scenario: Scenario) -> None:
    """A small frame could inflate to any size."""
    for path in ("/ws/session", "/ws/node", "/ws"):
        ws = await scenario.socket(path=path, compress=15)
        assert ws.compress == 0
        assert "Sec-WebSocket-Extensions" not in ws._response.headers


@pytest.mark.parametrize("path", ["/ws/session", "/ws/node", "/ws"])
async def test_rebound_host_name_opens_no_socket_where_no_token_is_needed(scenario: Scenario, path: str) -> None:
    evil = {"Host": "evil.example:5010", "Origin": "http://evil.example:5010"}
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await scenario.socket(path=path, headers=evil)
    assert refused.value.status == 421
