import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dragoman.node import Result, SimSettings, Timing, run_sim_node
from dragoman.node.sim import SimEngine, SimulatedFailure
from dragoman.protocol import audio, codec
from dragoman.protocol.node import JobCancel, JobResult, JobStarted, NodeHeartbeat, NodePartial
from dragoman.protocol.session import Pipeline
from unit.node.fake_scheduler import FakeScheduler, job, scheduler

AT_ONCE = SimSettings(delay_ms=0, jitter_ms=0, seed=1)


def ask(settings: SimSettings, **fields: Any) -> Result | None:
    return asyncio.run(SimEngine(settings)(job(3, **fields)))


def run(scenario: Callable[[FakeScheduler], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), scheduler() as fake:
            await scenario(fake)

    asyncio.run(main())


def test_an_answer_says_which_job_it_is_for() -> None:
    result = ask(AT_ONCE, session_id="s-42")
    assert result is not None
    assert result.text_asr == "utterance 3 of s-42"
    assert result.text_translated == "[es] utterance 3 of s-42"
    assert audio.duration_ms("opus", result.tts_audio, 16000) == 400


def test_a_pipeline_without_a_voice_gets_none() -> None:
    result = ask(AT_ONCE, pipeline=Pipeline(True, False, False))
    assert result is not None
    assert (result.tts_audio, result.text_translated) == (b"", "")


def test_failures_and_empty_answers_come_as_asked() -> None:
    with pytest.raises(SimulatedFailure):
        ask(dataclasses.replace(AT_ONCE, failure=1.0))
    assert ask(dataclasses.replace(AT_ONCE, empty=1.0)) is None


def test_the_same_seed_gives_the_same_run() -> None:
    async def outcomes() -> list[bool]:
        engine = SimEngine(dataclasses.replace(AT_ONCE, empty=0.5))
        return [await engine(job(number)) is None for number in range(50)]

    first = asyncio.run(outcomes())
    assert first == asyncio.run(outcomes())
    assert {True, False} == set(first)


@pytest.mark.parametrize("settings", [{"failure": -0.1}, {"failure": 0.6, "empty": 0.6}])
def test_what_is_no_probability_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        SimSettings(**settings)  # type: ignore[arg-type]


def test_a_simulated_node_answers_over_a_real_socket() -> None:
    async def scenario(fake: FakeScheduler) -> None:
        node = asyncio.create_task(run_sim_node(fake.url, AT_ONCE))
        await fake.hears(NodeHeartbeat)
        fake.assigns(3)
        assert "utterance 3 of s-1".startswith((await fake.hears(NodePartial)).text)
        result = await fake.hears(JobResult)
        assert result.text_asr == "utterance 3 of s-1"
        assert audio.opus_packets(audio.decode_base64(result.tts_audio)) == 20
        node.cancel()
        await asyncio.wait({node})

    run(scenario)


def test_an_empty_answer_says_why() -> None:
    async def scenario(fake: FakeScheduler) -> None:
        node = asyncio.create_task(run_sim_node(fake.url, dataclasses.replace(AT_ONCE, empty=1.0)))
        await fake.hears(NodeHeartbeat)
        fake.assigns(3)
        result = await fake.hears(JobResult)
        assert result.success
        assert codec.reason_of(result.extra) == "ASR_EMPTY"
        node.cancel()
        await asyncio.wait({node})

    run(scenario)


def test_a_silent_node_answers_nothing_until_it_is_cancelled() -> None:
    async def scenario(fake: FakeScheduler) -> None:
        silent = dataclasses.replace(AT_ONCE, silence=1.0, partials=0)
        node = asyncio.create_task(run_sim_node(fake.url, silent, slots=1))
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        fake.assigns(2)
        assert (await fake.hears(JobStarted)).job_id == "job-1"
        fake.says(JobCancel("job-1"))
        assert (await fake.hears(JobStarted)).job_id == "job-2"
        assert not any(isinstance(message, JobResult) for message in fake.received)
        node.cancel()
        await asyncio.wait({node})

    run(scenario)


def test_a_node_that_is_to_die_dies_without_a_word() -> None:
    async def scenario(fake: FakeScheduler) -> None:
        timing = Timing(backoff_first_s=0.01)
        mortal = dataclasses.replace(AT_ONCE, die_after=2)
        node = asyncio.create_task(run_sim_node(fake.url, mortal, slots=1, timing=timing))
        await fake.hears(NodeHeartbeat)
        for number in range(3):
            fake.assigns(number)
        for number in range(2):
            assert (await fake.hears(JobResult)).job_id == f"job-{number}"
        await node
        await fake.connections[-1].gone.wait()
        assert fake.goodbyes == 0
        assert len([message for message in fake.received if isinstance(message, JobResult)]) == 2

    run(scenario)
