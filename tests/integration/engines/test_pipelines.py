"""Whole pipelines: the local engines on real speech, and servers mixed with them, behind a real node."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from dragoman.engines import Sound
from dragoman.engines.catalog import PRESETS, Setup, Step, open_engines
from dragoman.node import Capabilities, Node, Timing
from dragoman.protocol.audio import decode_base64, encode_base64
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.extra import detected_language
from dragoman.protocol.node import JobResult, NodeHeartbeat, NodePartial, NodeRegister
from dragoman.protocol.session import Pipeline as Steps
from support.engines import KEY, Fault, beep, english, model_server, needs_apertium, needs_espeak, needs_wheels
from unit.node.fake_scheduler import FakeScheduler, running, scheduler

pytestmark = needs_wheels

HEAR, TRANSLATE, SPEAK = (Step(name) for name in PRESETS["local"])


async def served(setup: Setup, fake: FakeScheduler, sound: Sound, format: str = "opus") -> JobResult:
    """What a node with these engines answers."""
    async with open_engines(setup) as engines:
        hears, writes, speaks = map(sorted, engines.served)
        timing = Timing(heartbeat_s=0.2)
        capabilities = Capabilities(hears, writes, speaks, services=engines.services)
        node = Node(fake.url, engines.pipeline, capabilities, timing=timing)
        async with running(node):
            await fake.hears(NodeHeartbeat)
            data = sound.opus() if format == "opus" else sound.pcm
            fake.assigns(1, audio=encode_base64(data), audio_format=format, sample_rate=sound.rate)
            while True:
                try:
                    return await fake.hears(JobResult)
                except TimeoutError:
                    continue


@needs_apertium
@needs_espeak
@pytest.mark.parametrize("format", ["opus", "pcm16"])
async def test_english_speech_comes_back_as_spanish_text_and_speech_and_the_heart_beats_on(format: str) -> None:
    async with scheduler() as fake:
        result = await served(Setup(HEAR, TRANSLATE, SPEAK, job_s=60), fake, await english(), format)
        assert result.success, result.error
        assert result.text_asr
        assert result.text_translated
        assert result.text_translated != result.text_asr
        spoken = Sound.of_wire(decode_base64(result.tts_audio), "opus", 16_000)
        assert spoken.duration_ms > 300
        assert spoken.loudness > 500
        assert any(isinstance(message, NodePartial) and not message.is_final for message in fake.received)
        assert sum(isinstance(message, NodeHeartbeat) for message in fake.received) >= 2
        registered = next(message for message in fake.received if isinstance(message, NodeRegister))
        assert registered.language_capabilities is not None
        assert registered.language_capabilities.asr_languages == ["en"]
        assert "es" in (registered.language_capabilities.semantic_languages or ())


@needs_apertium
@needs_espeak
async def test_recognised_there_translated_and_spoken_here() -> None:
    async with scheduler() as fake, model_server() as server:
        setup = Setup(Step("openai", server.v1, key=KEY), TRANSLATE, SPEAK)
        result = await served(setup, fake, beep())
        assert (result.text_asr, result.text_translated) == ("we need a doctor", "Necesitamos un doctor")
        assert Sound.of_wire(decode_base64(result.tts_audio), "opus", 16_000).loudness > 500


async def test_all_of_it_on_servers() -> None:
    async with scheduler() as fake, model_server() as server:
        step = Step("openai", server.v1, key=KEY)
        setup = Setup(step, Step("libretranslate", server.url), step, languages=frozenset(("en", "es")))
        result = await served(setup, fake, beep())
        assert (result.text_asr, result.text_translated) == ("we need a doctor", "Necesitamos un médico.")
        assert Sound.of_wire(decode_base64(result.tts_audio), "opus", 16_000).loudness > 500


async def translated(setup: Setup, fake: FakeScheduler, text: str, **fields: object) -> JobResult:
    """What a node with these engines, which needs no recogniser, makes of a text."""
    async with open_engines(setup) as engines:
        _, _, speaks = map(sorted, engines.served)
        capabilities = Capabilities(tts=speaks, services=engines.services, text_pairs=engines.text_pairs)
        async with running(Node(fake.url, engines.pipeline, capabilities)):
            await fake.hears(NodeHeartbeat)
            asked = {"text": text, "audio": encode_base64(b""), "pipeline": Steps(False, True, False)} | fields
            fake.assigns(1, **asked)
            return await fake.hears(JobResult)


@needs_apertium
@needs_espeak
async def test_local_node_without_a_recogniser_translates_and_speaks_text_in_both_directions() -> None:
    setup = Setup(Step("none"), TRANSLATE, SPEAK)
    async with scheduler() as fake:
        result = await translated(setup, fake, "We need a doctor.", pipeline=Steps(False, True, True))
        registered = next(message for message in fake.received if isinstance(message, NodeRegister))
        assert {("en", "es"), ("es", "en")} <= set(registered.text_pairs or ())
        assert (result.text_asr, result.text_translated) == ("", "Necesitamos un doctor.")
        assert Sound.of_wire(decode_base64(result.tts_audio), "opus", 16_000).loudness > 500
    async with scheduler() as fake:
        back = {"src_lang": "es", "tgt_lang": "en"}
        assert "doctor" in str((await translated(setup, fake, "Necesitamos un doctor.", **back)).text_translated)


@pytest.mark.parametrize("name", ["openai", "libretranslate"])
async def test_server_translates_text_of_any_language(name: str) -> None:
    async with scheduler() as fake, model_server(detected="en") as server:
        step = Step(name, server.v1 if name == "openai" else server.url, key=KEY)
        setup = Setup(Step("none"), step, Step("none"), languages=frozenset(("en", "es")))
        result = await translated(setup, fake, "we need a doctor", src_lang="auto")
        registered = next(message for message in fake.received if isinstance(message, NodeRegister))
        assert registered.text_pairs == [("auto", "en"), ("auto", "es")]
        assert result.text_translated == "Necesitamos un médico."
        assert detected_language(result.extra) == (None if name == "openai" else ("en", 1.0))


@pytest.mark.parametrize(
    ("fault", "code", "sentence"),
    [
        (Fault(429, {"Retry-After": "60"}), ErrorCode.MODEL_NOT_AVAILABLE, "asks to wait 60 s"),
        (Fault(401), ErrorCode.MODEL_NOT_AVAILABLE, "HTTP 401"),
        (Fault(400, body="no"), ErrorCode.PROCESSING_ERROR, "refused the request with HTTP 400: no"),
        (Fault(pause_s=60), ErrorCode.PROCESSING_ERROR, "did not answer in time"),
    ],
)
async def test_fault_of_an_engine_server_reaches_the_scheduler(fault: Fault, code: ErrorCode, sentence: str) -> None:
    async with scheduler() as fake, model_server(faults=[fault]) as server:
        step = Step("openai", server.v1, key=KEY)
        result = await served(Setup(step, step, step, languages=frozenset(("en", "es")), job_s=1.5), fake, beep())
        assert not result.success
        assert result.error is not None
        assert result.error.code == code
        assert sentence in result.error.message
        assert KEY not in result.error.message


async def test_the_command_takes_its_key_from_the_environment_and_never_tells_it(tmp_path: Path) -> None:
    async with scheduler() as fake, model_server(faults=[Fault(401, body=KEY)]) as server:
        command = [sys.executable, "-m", "dragoman.cli.main", "node", "--url", fake.url, "--engine", "openai"]
        log = (tmp_path / "log").open("wb")
        with log:
            node = await asyncio.create_subprocess_exec(
                *(*command, "--languages", "en,es"),
                env={**os.environ, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.v1},
                stderr=log,
            )
            try:
                await fake.hears(NodeHeartbeat)
                for number in range(2):
                    fake.assigns(number, audio=encode_base64(beep().opus()))
                failed, done = await fake.hears(JobResult), await fake.hears(JobResult)
            finally:
                node.terminate()
                await node.wait()
        assert failed.error is not None
        assert failed.error.code == ErrorCode.MODEL_NOT_AVAILABLE
        assert (done.text_asr, done.text_translated) == ("we need a doctor", "Necesitamos un médico.")
        assert f"Bearer {KEY}" in server.authorizations
        told = (tmp_path / "log").read_text()
        assert f"Note: speech is sent to {server.v1}." in told
        assert "HTTP 401" in told
        assert KEY not in told
