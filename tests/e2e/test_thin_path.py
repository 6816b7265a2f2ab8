"""One sentence, all the way: a client, an instance, a node, and back."""

from pathlib import Path

from instances import running
from redis_servers import RedisAt
from waiting import wait_until


async def test_an_utterance_goes_to_a_node_and_comes_back_translated(redis_server: RedisAt, tmp_path: Path) -> None:
    async with running(redis_server, tmp_path) as cluster:
        here = await cluster.instance()
        cluster.node(here)
        await wait_until(here.node_count, patience_s=30)
        speaker = await cluster.speaker(here)
        await speaker.utterance(0)
        result = await speaker.result(0)
        assert result["text_translated"].startswith("[es]")
        assert result["group_id"] == f"group_{speaker.session_id}_0"
        job = await here.get(f"/api/v1/jobs/{result['job_id']}")
        assert (job["outcome"], job["attempt"]) == ("ok", "1")
        assert job["receipt"]["chosen"] == job["node_id"]


async def test_a_node_on_one_instance_serves_a_session_on_another(redis_server: RedisAt, tmp_path: Path) -> None:
    async with running(redis_server, tmp_path) as cluster:
        a, b = await cluster.instance(), await cluster.instance()
        cluster.node(a)
        await wait_until(b.node_count, patience_s=30)
        speaker = await cluster.speaker(b)
        for index in range(5):
            await speaker.utterance(index)
        for index in range(5):
            assert (await speaker.result(index))["utterance_index"] == index
