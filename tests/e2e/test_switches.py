"""Switches of the configuration that no other test turns: what each of them changes, on real instances."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.processes import InstanceProcess
from support.cluster import Cluster, running
from support.redis_servers import RedisAt, connected
from support.waiting import wait_until

TIMEOUT_S = 60.0
SECRET = "a-secret-of-more-than-thirty-two-bytes"


@asynccontextmanager
async def environment(redis: RedisAt, folder: Path, prefix: str) -> AsyncIterator[tuple[Cluster, Redis, Keys]]:
    async with running(redis, folder, prefix) as cluster, connected(redis) as client:
        yield cluster, client, Keys(prefix)


async def nodes(instance: InstanceProcess) -> set[str]:
    return {row["node_id"] for row in (await instance.get("/api/v1/cluster"))["nodes"]}


# -- scheduler.phase2.node_snapshot.enabled ------------------------------------------------------


async def test_instance_with_node_snapshots_off_neither_uses_nor_publishes_nodes(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with environment(redis_at, tmp_path, prefix) as (cluster, redis, keys):
        shared, other = await cluster.instance(), await cluster.instance()
        cluster.node(shared, node_id="shared")
        await wait_until(lambda: other.has_nodes(1), TIMEOUT_S)
        alone = await cluster.instance(scheduler__phase2__node_snapshot__enabled=False)
        cluster.node(alone, node_id="alone")
        await wait_until(alone.node_count, TIMEOUT_S)
        assert await nodes(alone) == {"alone"}
        # Announcements come in order: what `alone` told of its node, if it did, is known before this one.
        cluster.node(shared, node_id="later")
        await wait_until(lambda: other.has_nodes(2), TIMEOUT_S)
        assert await nodes(other) == await nodes(shared) == {"shared", "later"}
        assert await redis.call("EXISTS", keys.node_snapshot("alone"), keys.node_presence("alone")) == 0
        assert await nodes(alone) == {"alone"}
        speaker = await cluster.speaker(alone)
        await speaker.utterance(0)
        assert await speaker.result(0, TIMEOUT_S)


async def test_instance_with_node_snapshots_off_finds_no_node_for_a_job_when_all_are_elsewhere(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with environment(redis_at, tmp_path, prefix) as (cluster, _, _):
        shared = await cluster.instance()
        cluster.node(shared)
        await wait_until(shared.node_count, TIMEOUT_S)
        alone = await cluster.instance(scheduler__phase2__node_snapshot__enabled=False, speech__placement_wait_ms=100)
        speaker = await cluster.speaker(alone)
        await speaker.utterance(0)
        told = await speaker.until(lambda m: m["type"] in ("error", "translation_result"))
        assert (told["type"], told["code"]) == ("error", "NO_AVAILABLE_NODE")


# -- scheduler.phase2.dlq_enabled ----------------------------------------------------------------


async def test_unreadable_entry_stays_pending_while_dead_letters_are_off(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with environment(redis_at, tmp_path, prefix) as (cluster, redis, keys):
        inboxes = Inboxes(redis, keys, InboxSettings())
        flags = {"scheduler__phase2__dlq_enabled": False, "scheduler__phase2__dlq_max_deliveries": 1}
        here = await cluster.instance(scheduler__phase2__instance_id="here", **flags)
        id = (await redis.call("XADD", keys.inbox("here"), "*", "rub", "bish")).decode()

        async def deliveries() -> int:
            found = await inboxes.pending("here", 0, 10)
            return found[0].deliveries if found and found[0].id == id else 0

        async def tried_often() -> bool:
            return await deliveries() > 3

        await wait_until(tried_often, TIMEOUT_S)
        assert await here.get("/api/v1/dlq") == []
        assert await redis.call("EXISTS", keys.dlq("here")) == 0
        here.signal(signal.SIGKILL)
        here.process.wait()
        # One with dead letters on that takes its place finds it.
        other = await cluster.instance(scheduler__phase2__instance_id="other")
        [letter] = await wait_until(lambda: other.get("/api/v1/dlq"), TIMEOUT_S)
        assert letter["instance"] == "here"


async def test_entries_of_a_dead_instance_stay_in_its_inbox_while_dead_letters_are_off(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with environment(redis_at, tmp_path, prefix) as (cluster, redis, keys):
        here = await cluster.instance(scheduler__phase2__instance_id="here")
        survivor = await cluster.instance(scheduler__phase2__dlq_enabled=False)
        here.signal(signal.SIGSTOP)
        await redis.call("XADD", keys.inbox("here"), "*", "rub", "bish")
        here.signal(signal.SIGKILL)

        def rounds() -> int:
            return survivor.log.read_text().count("dead letters are off")

        await wait_until(lambda: rounds() > 1, TIMEOUT_S)
        assert await redis.call("XLEN", keys.inbox("here")) == 1
        assert await redis.call("EXISTS", keys.dlq("here")) == 0
        assert await survivor.metric("dragoman_takeovers_total") == 0


# -- security.insecure_allow_anonymous -----------------------------------------------------------


@pytest.mark.parametrize("allowed", [True, False])
async def test_client_without_a_token_is_accepted_only_where_anonymous_clients_are_allowed(
    redis_at: RedisAt, prefix: str, tmp_path: Path, allowed: bool
) -> None:
    async with environment(redis_at, tmp_path, prefix) as (cluster, _, _):
        here = await cluster.instance(security__secret=SECRET, security__insecure_allow_anonymous=allowed)
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"ws://127.0.0.1:{here.port}/ws/session") as ws,
        ):
            await ws.send_json(
                {"type": "session_init", "client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
            )
            answer = await ws.receive()
            told = answer.json() if answer.type is aiohttp.WSMsgType.TEXT else {}
            assert (told.get("type") == "session_init_ack") is allowed
            if not allowed:
                while not ws.closed:
                    await ws.receive()
                assert ws.close_code == 4501
