"""A node on one instance, a session on another: nothing tells a client the difference."""

import subprocess
import sys

from support.raw_node import thorough
from support.redis_servers import CLUSTER
from support.speech import ACKING, TIMEOUT_S, Scenario, module_harness
from support.waiting import wait_until

A, B = 0, 1
# Only announcements can tell one instance of the other's nodes in time.
FLAGS: dict[str, object] = {
    "scheduler__phase2__node_snapshot__refresh_interval_ms": 60_000,
    "scheduler__phase2__node_snapshot__presence_ttl_seconds": 90,
}


harness = module_harness(FLAGS, FLAGS, on=("single", CLUSTER))


async def test_sessions_on_both_instances_share_the_nodes_of_both(scenario: Scenario) -> None:
    nodes = [await scenario.node(at, features=(*ACKING, "slots:2"), work=thorough) for at in (A, B)]
    talkers = [await scenario.talker(at) for at in (A, B) for _ in range(5)]
    for index in range(10):
        for talker in talkers:
            await scenario.say_utterance(talker, index)
        for talker in talkers:
            assert await talker.result(index, TIMEOUT_S)
    assert sum(len(node.jobs) for node in nodes) == 100
    assert all(node.jobs for node in nodes)
    await wait_until(lambda: scenario.all_free(nodes), TIMEOUT_S)
    await wait_until(lambda: scenario.inboxes_are_done(), TIMEOUT_S)


async def test_large_utterance_reaches_the_other_instance_unchanged(scenario: Scenario) -> None:
    node = await scenario.node(A, features=ACKING)
    talker = await scenario.talker(B)
    audio = "AAAA" * 250_000  # one million characters, close to what a frame may have
    told = {"src_lang": scenario.src, "tgt_lang": scenario.tgt, "audio_format": "pcm16", "sample_rate": 16000}
    await talker.say("utterance", session_id=talker.session_id, utterance_index=0, manual_cut=True, audio=audio, **told)
    await talker.result(0, TIMEOUT_S)
    assert node.jobs[0]["audio"] == audio


async def test_utterance_from_another_socket_is_answered_there_on_either_instance(scenario: Scenario) -> None:
    """As API gateways do it: one socket opens the session and goes, others bring the utterances."""
    await scenario.node(A, features=ACKING)
    opener = await scenario.talker(A, platform="api-gateway")
    await opener.ws.close()
    for index, at in enumerate((A, B, A, B)):
        sender = await scenario.bare_talker(at)
        sender.session_id = opener.session_id
        await scenario.say_utterance(sender, index)
        result = await sender.result(index, TIMEOUT_S)
        assert (result["session_id"], result["utterance_index"]) == (opener.session_id, index)


def test_smoke_shows_the_path_of_a_result_across_two_instances() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli.main", "smoke"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "smoke-b ─▶ smoke-a's inbox" in done.stdout
    assert "OK: the result crossed both instances." in done.stdout
