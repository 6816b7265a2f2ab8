"""A node's jobs: what it can do, where it runs, and which results it sends."""

import asyncio
import dataclasses
import threading
from typing import Any, cast

import pytest

from dragoman.engines import EngineFailed, EngineTimeout
from dragoman.node import Job, JobFailed, ModelNotAvailable, Result, SimSettings, Timing, run_sim_node
from dragoman.node.capabilities import Capabilities, usage_of_this_machine
from dragoman.node.job import ResultOutbox, encode_draining, encode_failure, encode_result
from dragoman.node.sim import SimEngine, SimulatedFailure
from dragoman.node.threads import Threads
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import BadAudio, ProtocolError
from dragoman.protocol.node import (
    InstalledService,
    JobCancel,
    JobResult,
    JobStarted,
    NodeHeartbeat,
    NodePartial,
    NodeRegister,
    ResourceUsage,
    slots_of,
)
from dragoman.protocol.session import Pipeline
from support.tables import for_each
from support.waiting import wait_until
from unit.node.fake_scheduler import FakeScheduler, assignment, details, job

IDLE = ResourceUsage(0.0, 0.0, 0)


def capabilities(**fields: object) -> Capabilities:
    known = {"asr": ["en"], "semantic": ["es"], "tts": ["es"], "slots": 3, "version": "1.2"}
    return Capabilities(**(known | fields))  # type: ignore[arg-type]


def test_a_registration_says_what_the_node_can() -> None:
    register = capabilities().register(None, "secret", draining=False)
    assert codec.decode_node(codec.encode(register))
    assert register.node_id is None
    assert register.token == "secret"
    assert slots_of(register.advanced_features) == 3
    assert register.language_capabilities is not None
    assert register.language_capabilities.asr_languages == ["en"]
    assert register.language_capabilities.semantic_languages == ["es"]
    assert {entry.type: entry.ready for entry in register.capability_by_type or ()} == {
        "asr": True,
        "nmt": True,
        "semantic": True,
        "tts": True,
    }


def test_a_node_that_cannot_speak_is_not_ready_for_tts() -> None:
    register = capabilities(tts=[]).register(None, None, draining=False)
    assert {entry.type for entry in register.capability_by_type or () if not entry.ready} == {"tts"}
    assert {service.type for service in register.installed_services or ()} == {"asr", "nmt", "semantic"}


def test_registration_may_have_services_and_readiness() -> None:
    services = [InstalledService("whisper", "asr", "gpu", "running", "3")]
    heartbeat = capabilities(services=services, ready={"asr": True, "tone": False}).heartbeat(
        "node-1", IDLE, draining=False
    )
    assert heartbeat.installed_services == services
    assert {entry.type: entry.ready for entry in heartbeat.capability_by_type or ()} == {"asr": True, "tone": False}


def test_a_draining_node_is_ready_for_nothing() -> None:
    for message in (
        capabilities().register("n", None, draining=True),
        capabilities().heartbeat("n", IDLE, draining=True),
    ):
        assert not any(entry.ready for entry in message.capability_by_type or ())


def test_heartbeat_carries_the_load() -> None:
    usage = ResourceUsage(50, 60, 2, gpu_percent=70)
    heartbeat = capabilities().heartbeat("node-1", usage, draining=False)
    assert (heartbeat.node_id, heartbeat.resource_usage) == ("node-1", usage)
    assert codec.decode_node(codec.encode(heartbeat))


def test_short_form_serves_every_pair_of_its_languages() -> None:
    assert Capabilities.of(["en", "es"], 4) == Capabilities(["en", "es"], ["en", "es"], ["en", "es"], slots=4)


def test_the_usage_of_this_machine_is_in_percent() -> None:
    usage = usage_of_this_machine()
    assert 0 <= usage.cpu_percent <= 100
    assert 0 <= usage.mem_percent <= 100


def test_a_job_gives_its_audio_as_bytes() -> None:
    one = job(1)
    assert one.audio == audio.opus_run([audio.SILENCE_PACKET] * 5)
    assert one.audio is one.audio
    assert one.duration_ms == 100


def test_broken_audio_is_found_when_it_is_asked_for() -> None:
    with pytest.raises(BadAudio):
        _ = job(1, audio=codec.raw("A")).audio


def test_features_are_an_object_or_nothing() -> None:
    assert job(1).features == {}
    assert job(1, features=codec.raw({"tone": True})).features == {"tone": True}


def test_a_partial_goes_where_the_worker_said() -> None:
    told: list[tuple[Job, str, bool]] = []
    one = Job(assignment(1), lambda *partial: told.append(partial))
    one.partial("he")
    one.partial("hello", is_final=True)
    assert told == [(one, "he", False), (one, "hello", True)]


def test_a_job_knows_how_much_of_the_servers_time_is_left() -> None:
    now = [100.0]
    one = Job(assignment(1, deadline_ms=12_000), lambda *_: None, clock=lambda: now[0])
    now[0] = 103.0
    assert one.left_s == 9.0
    one.reassign(assignment(1, attempt_id=2, deadline_ms=5000))
    assert one.left_s == 5.0
    now[0] = 110.0
    assert one.left_s == 0.0


def test_a_job_of_a_server_that_sets_no_deadline_has_none() -> None:
    assert job(1).left_s is None


def test_text_job_has_a_text_and_no_audio() -> None:
    asked = job(0, text="Good morning.", vocabulary=["dragoman"], context_text="Hello.", audio=audio.encode_base64(b""))
    assert asked.is_text
    assert (asked.text, asked.vocabulary, asked.context_text) == ("Good morning.", ["dragoman"], "Hello.")
    assert asked.audio == b""
    assert (job(0).is_text, job(0).text, job(0).vocabulary) == (False, "", [])


def test_text_jobs_of_one_asker_do_not_share_a_lane() -> None:
    assert job(0, job_id="job-a", text="a").lane != job(0, job_id="job-b", text="b").lane


def test_jobs_of_one_session_and_language_share_a_lane() -> None:
    assert job(1).lane == job(2).lane
    assert job(1).lane != job(1, tgt_lang="fr").lane
    assert job(1).lane != job(1, session_id="s-2").lane


def test_a_result_is_empty_when_it_says_nothing() -> None:
    assert Result().is_empty
    assert not Result("a").is_empty
    assert not Result(tts_audio=b"a").is_empty


def test_a_missing_model_reads_as_a_sentence() -> None:
    assert str(ModelNotAvailable("nmt", "2", "gone")) == "nmt@2 is not available: gone"
    assert str(ModelNotAvailable("nmt")) == "nmt@any is not available: no reason given"


def test_a_result_is_written_again_until_it_was_read() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=0)
    outbox.add(b"one", now=0)
    assert outbox.to_resend(now=1) == [b"one"]
    assert outbox.to_resend(now=2) == [b"one"]
    outbox.read(outbox.last_mark, now=3)
    assert outbox.to_resend(now=3) == []


def test_read_result_is_kept_for_a_moment_in_case_its_reader_died() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=2)
    outbox.read(outbox.add(b"one", now=0), now=1)
    assert outbox.to_resend(now=2.9) == [b"one"]
    assert outbox.to_resend(now=3) == []
    assert outbox.lost == 0


def test_a_mark_covers_everything_before_it_and_nothing_after() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=0)
    outbox.add(b"one", now=0)
    second = outbox.add(b"two", now=0)
    outbox.add(b"three", now=0)
    outbox.read(second, now=1)
    assert outbox.to_resend(now=1) == [b"three"]
    assert not outbox.all_read


def test_unread_result_is_dropped_and_counted_after_its_timeout() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=2)
    outbox.add(b"one", now=0)
    outbox.add(b"two", now=10)
    assert outbox.to_resend(now=30) == [b"two"]
    assert outbox.lost == 1


def test_the_oldest_go_when_there_is_too_much() -> None:
    outbox = ResultOutbox(max_bytes=10)
    for text in (b"11111", b"22222", b"33333"):
        outbox.add(text, now=0)
    assert outbox.to_resend(now=0) == [b"22222", b"33333"]
    assert outbox.lost == 1
    assert len(outbox) == 2


def test_an_empty_outbox_has_been_read() -> None:
    assert ResultOutbox().all_read


def test_an_outbox_has_been_read_when_its_last_result_was() -> None:
    outbox = ResultOutbox()
    seen = []
    for mark in (outbox.add(b"one", now=0), outbox.add(b"two", now=0)):
        seen.append(outbox.all_read)
        outbox.read(mark, now=1)
    assert [*seen, outbox.all_read] == [False, False, True]


def decoded(data: bytes) -> JobResult:
    message = codec.decode_node(data)
    assert isinstance(message, JobResult)
    return message


def test_a_result_belongs_to_its_job() -> None:
    given = Result("heard", "dicho", b"\x01\x00\x07", extra={"a": 1}, quality_score=0.5, reason_codes=["X"])
    told = decoded(encode_result(job(3, group_id="g", part_index=0), "node-1", given, 12.345))
    assert (told.job_id, told.attempt_id, told.node_id, told.trace_id) == ("job-3", 1, "node-1", "trace-3")
    assert (told.session_id, told.utterance_index, told.group_id, told.part_index) == ("s-1", 3, "g", 0)
    assert told.success
    assert (told.text_asr, told.text_translated, told.tts_format) == ("heard", "dicho", "opus")
    assert audio.decode_base64(told.tts_audio) == b"\x01\x00\x07"
    assert details(told.extra) == {"a": 1}
    assert details(told.reason_codes) == ["X"]
    assert (told.quality_score, told.processing_time_ms) == (0.5, 12.3)


def test_the_recognised_language_goes_into_extra() -> None:
    given = Result("heard", extra={"a": 1}, language="de", language_probability=0.9)
    told = decoded(encode_result(job(3), "node-1", given, 1))
    assert details(told.extra) == {"a": 1, "language": "de", "language_probability": 0.9}


@for_each([None, Result(), Result(extra={"a": 1})])
def test_recognition_without_text_is_an_empty_result(given: Result | None) -> None:
    told = decoded(encode_result(job(3), "node-1", given, 1))
    assert told.success
    assert codec.reason_of(told.extra) == "ASR_EMPTY"
    assert (told.text_asr, told.text_translated, bytes(told.tts_audio)) == ("", "", b'""')


def test_a_reason_of_the_handler_is_kept() -> None:
    told = decoded(encode_result(job(3), "node-1", Result(extra={"reason": "NO_TEXT_ASSIGNED"}), 1))
    assert codec.reason_of(told.extra) == "NO_TEXT_ASSIGNED"


@for_each(["text", Result(text_asr=cast(str, 5)), Result("\ud800"), Result("a", extra={"x": object()})])
def test_a_result_the_server_would_refuse_fails_at_once(given: Any) -> None:
    with pytest.raises((TypeError, ValueError, ProtocolError)):
        encode_result(job(3), "node-1", given, 1)


def test_a_result_too_large_for_a_server_fails_its_job_and_not_the_connection() -> None:
    with pytest.raises(ValueError, match="more than the 1000000"):
        encode_result(job(3), "node-1", Result("a", tts_audio=bytes(800_000)), 1)


def test_an_exception_is_a_processing_error() -> None:
    told = decoded(encode_failure(job(3), "node-1", RuntimeError("no \udcff luck" + "." * 1000), 1))
    assert not told.success
    assert told.error is not None
    assert told.error.code == "PROCESSING_ERROR"
    assert told.error.message.startswith("RuntimeError: no ? luck")
    assert len(told.error.message) == 500


@for_each([(JobFailed("x"), True), (EngineFailed("x"), True), (EngineTimeout("x"), False), (RuntimeError("x"), False)])
def test_only_a_failure_of_the_job_itself_is_final(error: Exception, final: bool) -> None:
    told = decoded(encode_failure(job(3), "node-1", error, 1))
    assert told.error is not None
    assert codec.is_final(told.error) is final


def test_a_missing_model_is_named() -> None:
    told = decoded(encode_failure(job(3), "node-1", ModelNotAvailable("nmt", "2.0", "not_loaded"), 1))
    assert told.error is not None
    assert told.error.code == "MODEL_NOT_AVAILABLE"
    assert codec.unavailable_model(told.error) == codec.ModelDetails("nmt", "2.0", "not_loaded")


def test_a_draining_node_sends_the_job_elsewhere() -> None:
    told = decoded(encode_draining(assignment(3), "node-1"))
    assert told.error is not None
    assert told.error.code == "MODEL_NOT_AVAILABLE"
    assert codec.unavailable_model(told.error) == codec.ModelDetails("drain", "", "draining")


AT_ONCE = SimSettings(delay_ms=0, jitter_ms=0, seed=1)


def ask(settings: SimSettings, **fields: Any) -> Result | None:
    return asyncio.run(SimEngine(settings)(job(3, **fields)))


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
def test_value_outside_zero_to_one_is_no_probability(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        SimSettings(**settings)  # type: ignore[arg-type]


async def test_a_simulated_node_answers_over_a_real_socket(fake: FakeScheduler) -> None:
    node = asyncio.create_task(run_sim_node(fake.url, AT_ONCE))
    await fake.hears(NodeHeartbeat)
    fake.assigns(3)
    assert "utterance 3 of s-1".startswith((await fake.hears(NodePartial)).text)
    result = await fake.hears(JobResult)
    assert result.text_asr == "utterance 3 of s-1"
    assert audio.opus_packets(audio.decode_base64(result.tts_audio)) == 20
    node.cancel()
    await asyncio.wait({node})


async def test_an_empty_answer_says_why(fake: FakeScheduler) -> None:
    node = asyncio.create_task(run_sim_node(fake.url, dataclasses.replace(AT_ONCE, empty=1.0)))
    await fake.hears(NodeHeartbeat)
    fake.assigns(3)
    result = await fake.hears(JobResult)
    assert result.success
    assert codec.reason_of(result.extra) == "ASR_EMPTY"
    node.cancel()
    await asyncio.wait({node})


async def test_a_silent_node_answers_nothing_until_it_is_cancelled(fake: FakeScheduler) -> None:
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


async def test_simulated_death_sends_nothing(fake: FakeScheduler) -> None:
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


async def test_a_function_runs_in_another_thread_and_its_value_comes_back() -> None:
    threads = Threads(1, "test")
    assert await threads.run(divmod, 7, 2) == (3, 1)
    assert (await threads.run(threading.current_thread)).name.startswith("test")
    threads.close()


async def test_exception_in_a_thread_is_raised_in_the_caller() -> None:
    threads = Threads(1, "test")
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    threads.close()


async def test_stop_iteration_which_no_future_can_hold_is_a_runtime_error() -> None:
    threads = Threads(1, "test")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(next, iter(()))
    threads.close()


async def test_no_more_run_at_a_time_than_there_are_threads() -> None:
    threads, gate = Threads(2, "test"), threading.Event()
    seen: list[int] = []

    def wait(number: int) -> None:
        seen.append(number)
        gate.wait(60)

    calls = [asyncio.ensure_future(threads.run(wait, number)) for number in range(3)]
    await wait_until(lambda: len(seen) == 2)
    gate.set()
    await asyncio.gather(*calls)
    assert seen == [0, 1, 2]
    threads.close()


async def test_call_cancelled_before_it_has_a_thread_never_runs() -> None:
    threads, gate = Threads(1, "test"), threading.Event()
    seen: list[str] = []
    first = asyncio.ensure_future(threads.run(gate.wait, 60))
    second = asyncio.ensure_future(threads.run(seen.append, "second"))
    third = asyncio.ensure_future(threads.run(seen.append, "third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    gate.set()
    await asyncio.gather(first, third)
    assert seen == ["third"]
    threads.close()


async def test_idle_threads_end_and_take_no_call() -> None:
    threads = Threads(2, "test")
    mine = await asyncio.gather(threads.run(threading.current_thread), threads.run(threading.current_thread))
    threads.close()
    await wait_until(lambda: not any(thread.is_alive() for thread in mine))
    with pytest.raises(RuntimeError, match="closed"):
        await threads.run(divmod, 7, 2)


async def test_simulated_node_translates_text_with_a_mark(fake: FakeScheduler) -> None:
    node = asyncio.create_task(run_sim_node(fake.url, AT_ONCE, languages=["en", "es"], text_only=True))
    register = await fake.hears(NodeRegister)
    assert register.text_pairs == [("auto", "en"), ("auto", "es")]
    assert "text_jobs" in (register.advanced_features or ())
    assert (can := register.language_capabilities) is not None
    assert (can.asr_languages, can.semantic_languages, can.tts_languages) == ([], [], ["en", "es"])
    await fake.hears(NodeHeartbeat)
    fake.assigns(0, text="Good morning.", pipeline=Pipeline(False, True, False))
    result = await fake.hears(JobResult)
    assert (result.text_asr, result.text_translated) == ("", "[es] Good morning.")
    node.cancel()
    await asyncio.gather(node, return_exceptions=True)
