"""The programs of the README and of the guides run against a real instance.

Only the port is changed. The models of docs/guides/write-a-node.md have stand-ins, as modules of the same names.
"""

import asyncio
import json
import re
import sys
import textwrap
import wave
from asyncio.subprocess import PIPE
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from dragoman.client import Result, Room, Session
from dragoman.client.chat import Chat, login
from dragoman.engines import Sound
from dragoman.protocol.audio import opus_run
from dragoman.tools.processes import InstanceProcess
from support.cluster import SPOKEN_PACKET, running
from support.engines import needs_wheels
from support.redis_servers import RedisAt
from support.voice import vowel
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
UNHURRIED: dict[str, object] = {
    "scheduler__phase2__instance_presence_ttl_seconds": 10,
    "speech__job_ack_timeout_ms": 25_000,
    "speech__attempt_timeout_ms": 25_000,
}
MODELS = {
    "faster_whisper": """
        from types import SimpleNamespace

        class WhisperModel:
            def __init__(self, model): ...

            def transcribe(self, file, language):
                assert file.read(4) == b"RIFF"
                return [SimpleNamespace(text="we need"), SimpleNamespace(text="a doctor")], None
    """,
    "piper": """
        from types import SimpleNamespace

        class PiperVoice:
            config = SimpleNamespace(sample_rate=22_050)

            @classmethod
            def load(cls, path):
                return cls()

            def synthesize(self, text):
                return [SimpleNamespace(audio_int16_bytes=(bytes([0, 16]) * 25 + bytes([0, 240]) * 25) * 441)]
    """,
    "transformers": """
        def pipeline(task, model, src_lang, tgt_lang):
            return lambda text: [{"translation_text": f"{text} ({src_lang} → {tgt_lang})"}]
    """,
}


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def program(page: str, with_text: str) -> str:
    (found,) = [body for body in programs(page) if with_text in body]
    return found


def write_a_node() -> str:
    return programs("docs/guides/write-a-node.md")[0]


@asynccontextmanager
async def serving(redis: RedisAt, folder: Path, *, node: bool) -> AsyncIterator[InstanceProcess]:
    async with running(redis, folder) as cluster:
        instance = await cluster.instance(**UNHURRIED)
        if node:
            cluster.node(instance)
            await wait_until(instance.node_count, TIMEOUT_S)
        yield instance


@asynccontextmanager
async def started(body: str, instance: InstanceProcess, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    script = folder / "sample.py"
    script.write_text(body.replace("127.0.0.1:5010", f"127.0.0.1:{instance.port}"), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), cwd=folder, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def output(body: str, instance: InstanceProcess, folder: Path, stdin: bytes = b"") -> str:
    async with asyncio.timeout(TIMEOUT_S), started(body, instance, folder) as process:
        out, err = await process.communicate(stdin)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def result_of(instance: InstanceProcess, tgt: str) -> Result:
    async with asyncio.timeout(TIMEOUT_S):
        await wait_until(instance.node_count, TIMEOUT_S)
        url = f"ws://127.0.0.1:{instance.port}/ws/session"
        async with Session(url, src="en", tgt=tgt) as session:
            await session.utterance(opus_run([SPOKEN_PACKET] * 20))
            return await anext(session.results())


async def test_session_of_the_readme_prints_translations(redis_at: RedisAt, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "hello.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(vowel(1000))
    async with serving(redis_at, tmp_path, node=True) as instance:
        printed = await output(program("README.md", "stream_file"), instance, tmp_path)
    assert re.fullmatch(r"0 \[es\] utterance 0 of s-\w+\n", printed)


async def test_live_session_of_the_python_guide_prints_translations(redis_at: RedisAt, tmp_path: Path) -> None:
    body = program("docs/guides/python-client.md", "stdin")
    async with serving(redis_at, tmp_path, node=True) as instance:
        printed = await output(body, instance, tmp_path, vowel(1000))
    assert re.fullmatch(r"(… .*\n)*0 \[es\] utterance 0 of s-\w+\n", printed)


async def test_session_without_the_sdk_receives_the_messages_of_its_transcript(
    redis_at: RedisAt, tmp_path: Path
) -> None:
    async with serving(redis_at, tmp_path, node=True) as instance:
        printed = await output(program("docs/guides/python-client.md", "ws_connect"), instance, tmp_path)
    ack, *rest = printed.splitlines()
    received = [("session_init_ack", None)] + [
        (message["type"], message.get("event")) for message in map(json.loads, rest)
    ]
    assert "session_init_ack" in ack
    shown = re.findall(
        r'^< \{"type":"(\w+)"(?:.*"event":"(\w+)")?', (ROOT / "docs/guides/python-client.md").read_text(), re.M
    )
    assert set(received) == {(type, event or None) for type, event in shown}
    assert received[-1] == ("session_close_ack", None)


async def test_errors_of_the_protocol_page_are_those_of_the_server(redis_at: RedisAt, tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/speech-protocol.md").read_text(encoding="utf-8")
    shown = re.findall(r'^< \{"type":"error","code":"\w+","message":"([^"]+)"', page, re.M)
    opening = {"type": "session_init", "client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
    spoken = {"payload": b64encode(opus_run([SPOKEN_PACKET] * 50)).decode(), "seq": 0, "is_final": True}
    async with serving(redis_at, tmp_path, node=False) as instance, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"ws://127.0.0.1:{instance.port}/ws/session") as ws, asyncio.timeout(TIMEOUT_S):
            await ws.send_json(opening)
            id = (await ws.receive_json())["session_id"]
            await ws.send_json({"type": "audio_chunk", "session_id": id, **spoken})
            utterance = {"type": "utterance", "session_id": id, "utterance_index": 0, "manual_cut": True}
            audio = {"audio": spoken["payload"], "audio_format": "opus", "sample_rate": 16_000}
            await ws.send_json({**utterance, **audio, "src_lang": "en", "tgt_lang": "es"})
            await ws.send_json({"type": "sing"})
            await ws.send_json({"type": "audio_chunk", "session_id": "s-nobody", **spoken})
            received: set[str] = set()
            while len(received) < len(shown):
                message = await ws.receive_json()
                received |= {message["message"]} if message["type"] == "error" else set()
    assert received == set(shown)


async def test_node_of_the_readme_translates(redis_at: RedisAt, tmp_path: Path) -> None:
    async with serving(redis_at, tmp_path, node=False) as instance:
        async with started(program("README.md", "from dragoman.node import"), instance, tmp_path):
            result = await result_of(instance, "fr")
    assert (result.text_asr, result.text_translated) == ("400 ms of en", "400 ms de fr")


def test_program_of_write_a_node_has_fifteen_lines() -> None:
    assert len([line for line in write_a_node().splitlines() if line.strip()]) <= 15


@needs_wheels
@pytest.mark.parametrize("voice", [True, False], ids=["voice", "captions"])
async def test_node_of_write_a_node_translates(redis_at: RedisAt, tmp_path: Path, voice: bool) -> None:
    for name, source in MODELS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    body = write_a_node()
    if not voice:
        captions = programs("docs/guides/write-a-node.md")[1]
        body = body[: body.index('Node("')] + captions
    async with serving(redis_at, tmp_path, node=False) as instance:
        async with started(body, instance, tmp_path):
            result = await result_of(instance, "es")
    assert (result.text_asr, result.text_translated) == ("we need a doctor", "we need a doctor (eng_Latn → spa_Latn)")
    if voice:
        assert Sound.of_wire(result.tts_audio, "opus", 16_000).loudness > 1000
    else:
        assert result.tts_audio == b""


async def test_program_of_the_chat_page_sends_and_receives(redis_at: RedisAt, tmp_path: Path) -> None:
    body = "import asyncio\n\n\nasync def main():\n" + textwrap.indent(programs("docs/guides/chat.md")[0], "    ")
    async with serving(redis_at, tmp_path, node=False) as instance:
        base = f"127.0.0.1:{instance.port}"
        alice = await login(f"http://{base}", "alice", "secret")
        bob = await login(f"http://{base}", "bob", "secret")
        body = body.replace("to=2", f"to={bob.user_id}") + "\n\nasyncio.run(main())\n"
        body = body.replace("print(", "print(flush=True, *[").replace("message.body)", "message.body])")
        async with asyncio.timeout(TIMEOUT_S), Chat(f"ws://{base}/ws", token=bob.token) as chat:
            async with started(body, instance, tmp_path) as process:
                assert process.stdout is not None
                messages = chat.messages()
                assert (await anext(messages)).body == "hi"
                sent = await chat.send(alice.user_id, "hello")
                assert (await process.stdout.readline()).decode() == f"{bob.user_id} hello\n"
                await sent.read


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/guides/rooms.md"])
async def test_room_of_the_pages_writes_and_reads(redis_server: RedisAt, tmp_path: Path, page: str) -> None:
    async with serving(redis_server, tmp_path, node=False) as instance:
        url = f"ws://127.0.0.1:{instance.port}/ws/session"
        async with Room(url, name="Ann", speaks="es") as ann:
            body = program(page, "import Room").replace("123456", ann.code)
            async with asyncio.timeout(TIMEOUT_S), started(body, instance, tmp_path) as process:
                async for caption in ann:
                    assert (caption.speaker, caption.text) == ("Ana", "Hola a todos")
                    break
                await ann.close()
                out, err = await process.communicate()
            assert (out.decode(), process.returncode) == ("Ana Hola a todos\n", 0), err.decode()
