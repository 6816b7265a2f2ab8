"""What peers may make an instance keep has an end, and who runs into it is told."""

import json
from collections.abc import Iterator
from time import monotonic
from typing import Any

import aiohttp
import pytest
import redis

from dragoman.gateway.session_endpoint import MOST_SESSIONS
from dragoman.protocol.codes import Close
from dragoman.protocol.fields import MAX_ENTRIES
from dragoman.services.speech.local_nodes import TELL_S
from e2e.bystander import closed_with, unharmed
from e2e.raw_node import SAMPLES, Message, RawNode
from e2e.speech_stage import PATIENCE_S, Stage, standing, visiting
from key_leaks import Onlooker
from redis_servers import RedisAt
from waiting import wait_until


@pytest.fixture(scope="module")
def stage(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with standing(redis_server, tmp_path_factory.mktemp("bounds"), onlooker, {}) as up:
        yield up


@pytest.fixture(scope="module")
def narrow(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Room for four sessions, and one page that is not its own."""
    flags: dict[str, object] = {"speech__max_sessions": 4, "server__allowed_origins": ["https://app.example.com"]}
    with standing(redis_server, tmp_path_factory.mktemp("narrow"), onlooker, flags) as up:
        yield up


async def test_one_connection_has_so_many_sessions_and_may_open_another_when_one_is_over(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        talker = await visit.talker()
        for _ in range(MOST_SESSIONS - 1):
            await talker.init()
        await talker.say("session_init", client_version="t", platform="web", src_lang="en", tgt_lang="es")
        assert f"has {MOST_SESSIONS} sessions open" in (await talker.refused())["message"]
        await talker.say("session_close", session_id=talker.session_id, reason="done")
        await talker.until(lambda m: m["type"] == "session_close_ack", PATIENCE_S)
        assert (await talker.init())["session_id"]


async def test_an_instance_has_so_many_sessions_also_of_those_who_went(narrow: Stage) -> None:
    async with visiting(narrow) as visit:
        gone = [await visit.talker(resume=True) for _ in range(4)]
        for one in gone[:2]:  # each leaves a session behind that could be resumed
            await one.ws.close()
        late = await visit.bare_talker()
        await late.say("session_init", client_version="t", platform="web", src_lang="en", tgt_lang="es")
        assert await closed_with(late.ws) == Close.OVERLOADED


@pytest.mark.parametrize("field", ["features", "dialect", "pairing_code", "client_version", "auto_langs", "token"])
async def test_a_session_init_with_a_field_that_is_too_long_is_refused_by_its_name(stage: Stage, field: str) -> None:
    long: dict[str, Any] = {"features": {"x" * 5000: True}, "auto_langs": ["en"] * 5000}
    async with unharmed(stage) as visit:
        talker = await visit.bare_talker()
        said = {"client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
        await talker.say("session_init", **said | {field: long.get(field, "x" * 5000)})
        assert f"Field `{field}`" in (await talker.refused())["message"]
        await talker.init()


async def test_an_utterance_has_long_audio_and_short_features(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        await visit.node()
        talker = await visit.talker()
        await visit.say_utterance(talker, 0, features={"x" * 5000: True})
        assert "Field `features`" in (await talker.refused())["message"]
        await visit.say_utterance(talker, 0, 2000)
        assert await talker.result(0, PATIENCE_S)


def boasts() -> dict[str, dict[str, Any]]:
    languages = SAMPLES["node_register"]["language_capabilities"]
    service = SAMPLES["node_register"]["installed_services"][0]
    return {
        "languages": {"language_capabilities": languages | {"asr_languages": ["en"] * (MAX_ENTRIES + 1)}},
        "a language": {"language_capabilities": languages | {"tts_languages": ["x" * 36]}},
        "services": {"installed_services": [service] * (MAX_ENTRIES + 1)},
        "a service": {"installed_services": [service | {"service_id": "x" * 201}]},
    }


@pytest.mark.parametrize("what", boasts())
async def test_a_node_tells_of_itself_in_few_words_when_it_comes_and_while_it_is_there(stage: Stage, what: str) -> None:
    async with unharmed(stage) as visit:
        boaster = await visit.socket(path="/ws/node")
        await boaster.send_str(json.dumps(SAMPLES["node_register"] | {"node_id": "boaster"} | boasts()[what]))
        told = await boaster.receive(timeout=PATIENCE_S)
        assert json.loads(told.data)["code"] == "INVALID_MESSAGE"
        node = await visit.node(node_id="modest")
        await node.ws.send_str(json.dumps(SAMPLES["node_heartbeat"] | {"node_id": "modest"} | boasts()[what]))
        assert (await node.until("error"))["code"] == "INVALID_MESSAGE"


LONG = "x" * 200


async def test_what_redis_keeps_of_a_node_is_small_whatever_it_says_of_itself(stage: Stage) -> None:
    names = [f"{n}{LONG}"[:200] for n in range(MAX_ENTRIES)]
    async with unharmed(stage) as visit:
        node = await visit.node(node_id="wordy", advanced_features=names)
        languages = [f"{visit.src}-{n:025}" for n in range(MAX_ENTRIES)]
        await node.beat(
            languages,
            installed_services=[{"service_id": name, "type": LONG} for name in names],
            capability_by_type=[{"type": name, "ready": True} for name in names],
        )

        async def kept() -> bytes:
            return bytes(await visit.redis.call("GET", visit.keys.node_snapshot(node.id)) or b"")

        async def known() -> bool:
            return languages[-1].encode() in await kept()

        await wait_until(known, PATIENCE_S)
        assert len(await kept()) < 100_000


async def test_a_name_of_a_service_that_is_too_long_is_kept_nowhere(stage: Stage) -> None:
    async def lacks(node: RawNode, job: Message) -> None:
        await node.lacks(job, "x" * 60_000)

    async with unharmed(stage) as visit:
        node = await visit.node(work=lacks)
        talker = await visit.talker()
        await visit.say_utterance(talker, 0)
        assert await talker.failed(0)
        kept = await visit.redis.call("HGETALL", visit.keys.storm(node.id))
        assert kept
        assert max(map(len, kept)) < 1000


async def test_heartbeats_that_come_faster_than_others_have_to_know_are_told_as_one(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node(node_id="hasty")
        with redis.Redis.from_url(stage.redis.urls[0], protocol=2) as client, client.pubsub() as onlooker:
            onlooker.subscribe(visit.keys.announcements)
            began = monotonic()
            for number in range(300):
                services = [{"service_id": f"s{number}", "type": "asr"}]
                await node.beat((visit.src, visit.tgt), installed_services=services)

            async def latest() -> bool:
                return b'"s299"' in (await visit.redis.call("GET", visit.keys.node_snapshot(node.id)) or b"")

            await wait_until(latest, PATIENCE_S)
            most = (monotonic() - began) / TELL_S + 2
            told = 0
            while (message := onlooker.get_message(timeout=0.2)) is not None:
                told += message["type"] == "message" and b"hasty" in message["data"]
        assert 0 < told <= most


async def test_codes_that_a_node_makes_up_do_not_become_metrics(stage: Stage) -> None:
    async def fails(node: RawNode, job: Message) -> None:
        await node.fail(job, f"MADE_UP_{job['utterance_index']}")

    async with unharmed(stage) as visit:
        await visit.node(work=fails)
        talker = await visit.talker()
        for index in range(5):
            await visit.say_utterance(talker, index)
            assert await talker.failed(index)
        told = await visit.get("/api/v1/metrics")
        assert [name for name in told if name.startswith("dragoman_jobs_total") and "outcome=failed" in name]
        assert "MADE_UP" not in json.dumps(told)


async def test_nothing_is_compressed_whatever_is_offered(stage: Stage) -> None:
    """A small frame could inflate to any size."""
    async with visiting(stage) as visit:
        for path in ("/ws/session", "/ws/node", "/ws"):
            ws = await visit.socket(path=path, compress=15)
            assert ws.compress == 0
            assert "Sec-WebSocket-Extensions" not in ws._response.headers


@pytest.mark.parametrize("path", ["/ws/session", "/ws/node", "/ws"])
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://127.0.0.1.evil.example", "http://localhost.evil.example"]
)
async def test_a_page_that_is_not_listed_opens_no_socket(stage: Stage, path: str, origin: str) -> None:
    async with visiting(stage) as visit:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await visit.socket(path=path, headers={"Origin": origin})
        assert refused.value.status == 403
        own = await visit.socket(path=path, headers={"Origin": f"http://127.0.0.1:{stage.port}"})
        assert not own.closed


@pytest.mark.parametrize("path", ["/ws/session", "/ws/node", "/ws"])
async def test_a_name_that_was_made_to_point_here_opens_no_socket_where_nobody_is_asked(
    stage: Stage, path: str
) -> None:
    async with visiting(stage) as visit:
        evil = {"Host": "evil.example:5010", "Origin": "http://evil.example:5010"}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await visit.socket(path=path, headers=evil)
        assert refused.value.status == 421


async def test_a_listed_page_opens_a_socket_and_one_that_looks_like_it_does_not(narrow: Stage) -> None:
    async with visiting(narrow) as visit:
        listed = await visit.socket(headers={"Origin": "https://app.example.com"})
        assert not listed.closed
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await visit.socket(headers={"Origin": "https://app.example.com.evil.example"})
