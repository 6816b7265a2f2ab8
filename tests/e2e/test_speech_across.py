"""A node on one instance, a session on another: nothing tells a client the difference."""

from collections.abc import Iterator

import pytest

from e2e.raw_node import thorough
from e2e.speech_stage import ACKING, PATIENCE_S, Stage, standing, visiting
from key_leaks import Onlooker
from redis_fixtures import CLUSTER, FIXTURE_OF
from waiting import wait_until

A, B = 0, 1
# Only announcements can tell one instance of the other's nodes in time.
FLAGS: dict[str, object] = {
    "scheduler__phase2__node_snapshot__refresh_interval_ms": 60_000,
    "scheduler__phase2__node_snapshot__presence_ttl_seconds": 90,
}


@pytest.fixture(scope="module", params=["single", CLUSTER])
def stage(
    request: pytest.FixtureRequest, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    redis = request.getfixturevalue(FIXTURE_OF[request.param])
    with standing(redis, tmp_path_factory.mktemp("across"), onlooker, FLAGS, FLAGS) as up:
        yield up


async def test_a_turn_on_one_instance_stays_on_its_node_on_the_other(stage: Stage) -> None:
    async with visiting(stage) as visit:
        nodes = [await visit.node(A, features=ACKING, work=thorough) for _ in range(4)]
        talker = await visit.talker(B)
        for _ in range(3):
            await talker.speak(500)
        await talker.speak(5, final=True)
        for index in range(4):
            assert await talker.result(index, PATIENCE_S)
        assert sorted(len(node.jobs) for node in nodes) == [0, 0, 0, 4]


async def test_sessions_on_both_instances_share_the_nodes_of_both(stage: Stage) -> None:
    async with visiting(stage) as visit:
        nodes = [await visit.node(at, features=(*ACKING, "slots:2"), work=thorough) for at in (A, B)]
        talkers = [await visit.talker(at) for at in (A, B) for _ in range(5)]
        for index in range(10):
            for talker in talkers:
                await visit.say_utterance(talker, index)
            for talker in talkers:
                assert await talker.result(index, PATIENCE_S)
        assert sum(len(node.jobs) for node in nodes) == 100
        assert all(node.jobs for node in nodes)
        await wait_until(lambda: visit.all_free(nodes), PATIENCE_S)
        await wait_until(lambda: visit.inboxes_are_done(), PATIENCE_S)


async def test_a_large_utterance_crosses_to_the_other_instance_unharmed(stage: Stage) -> None:
    async with visiting(stage) as visit:
        node = await visit.node(A, features=ACKING)
        talker = await visit.talker(B)
        audio = "AAAA" * 250_000  # one million characters, close to what a frame may have
        told = {"src_lang": visit.src, "tgt_lang": visit.tgt, "audio_format": "pcm16", "sample_rate": 16000}
        await talker.say(
            "utterance", session_id=talker.session_id, utterance_index=0, manual_cut=True, audio=audio, **told
        )
        await talker.result(0, PATIENCE_S)
        assert node.jobs[0]["audio"] == audio


async def test_an_utterance_by_a_socket_of_its_own_is_answered_there_on_either_instance(stage: Stage) -> None:
    """As API gateways do it: one socket opens the session and goes, others bring the utterances."""
    async with visiting(stage) as visit:
        await visit.node(A, features=ACKING)
        opener = await visit.talker(A, platform="api-gateway")
        await opener.ws.close()
        for index, at in enumerate((A, B, A, B)):
            sender = await visit.bare_talker(at)
            sender.session_id = opener.session_id
            await visit.say_utterance(sender, index)
            result = await sender.result(index, PATIENCE_S)
            assert (result["session_id"], result["utterance_index"]) == (opener.session_id, index)
