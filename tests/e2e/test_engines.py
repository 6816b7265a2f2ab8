"""Real speech through everything: client SDK, instance, a node with local engines, and back; and the demo with them."""

import asyncio
import os
from pathlib import Path

import pytest

from dragoman.client import Result, Session
from dragoman.engines import Sound
from support.cluster import running
from support.commands import Dragoman, answer, serve
from support.engines import english, needs_apertium, needs_espeak, needs_wheels
from support.redis_servers import RedisAt
from support.waiting import alive, wait_for, wait_until

pytestmark = [needs_wheels, needs_espeak, needs_apertium]

TIMEOUT_S = 60.0
# The machine may be busy with other tests; how fast a recogniser is, is not what is tested here.
UNHURRIED: dict[str, object] = {"speech__attempt_timeout_ms": 60_000, "speech__job_timeout_ms": 90_000}


async def test_opus_streamed_by_a_client_comes_back_as_spanish_text_and_speech(
    redis_server: RedisAt, tmp_path: Path
) -> None:
    async with running(redis_server, tmp_path) as cluster:
        instance = await cluster.instance(**UNHURRIED)
        local = {"engine": "local", "languages": "en,es", "slots": 1, "job_s": 60}
        cluster.node(instance, **local)
        await wait_until(instance.node_count, TIMEOUT_S)
        session = Session(f"ws://127.0.0.1:{instance.port}/ws/session", src="en", tgt="es", audio_format="opus")
        async with session, asyncio.timeout(TIMEOUT_S):
            await session.send((await english()).opus())
            await session.cut()
            result = await anext(event async for event in session if isinstance(event, Result))
            assert result.text_asr
            assert result.text_translated
            assert result.text_translated != result.text_asr
            assert result.message.tts_format == "opus"
            spoken = Sound.of_wire(result.tts_audio, "opus", 16_000)
            assert spoken.duration_ms > 300
            assert spoken.loudness > 500


def test_demo_uses_real_engines_where_they_are_installed_and_says_so(tmp_path: Path) -> None:
    with serve(tmp_path, "--nodes", "1", "--engine", "auto", "--no-install-engines", command="demo") as demo:
        demo.until("Ctrl-C ends everything.")
        assert "1 local node: offline, English → Spanish, demo quality." in demo.out
        wait_for(lambda: bool(demo.get("/api/v1/cluster")[1]["nodes"]), "the node", TIMEOUT_S)
        code, said, err = answer(tmp_path / "say", "say", "--url", demo.base)
        # On a busy machine the server may also have asked to wait.
        assert (code, err.splitlines()[-1:]) == (0, ["3 utterances translated."]), said
        assert said.count(" → ") == 3
        assert demo.end() == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_local_node_leaves_no_process_when_it_ends(tmp_path: Path, signals: int) -> None:
    with Dragoman(tmp_path, "node", "--engine", "local", "--url", "ws://127.0.0.1:1/ws/node") as node:
        node.until("not connected to ws://127.0.0.1:1/ws/node")
        below = node.below()
        assert below  # the recogniser
        for _ in range(signals):
            os.kill(node.process.pid, 2)
        assert node.exit_code() == 0
        wait_for(lambda: not any(map(alive, below)), "its processes to end", TIMEOUT_S)
