"""Text jobs on the real dispatcher: placed by pair, driven to one end, moved from a node that fails."""

import pytest

from dragoman.domain.job import Outcome
from dragoman.protocol.codes import ErrorCode, TextKind
from dragoman.protocol.node import JobError
from dragoman.services.upkeep.presence import TakeoverResult
from support.in_process import (
    OUR_FEATURES,
    SELDOM_RENEWED,
    TIMEOUT_S,
    OpenInstance,
    RecordingListener,
    TextAsker,
    end_of,
    given,
    job_request,
)
from support.waiting import wait_until

SPEECH_TOO = {"languages": ("en", "es"), "kinds": ("asr", "nmt", "tts", "semantic")}


async def test_text_job_is_translated_by_a_node_that_has_no_recognition(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    node = await instance.text_node("texter", "en-es")
    job_id = asker.ask(
        instance, asker="room-7", context_text="Hello.", vocabulary=("dragoman",), timeout_ms=8000, trace_id="trace-1"
    )
    job = await given(node)
    assert (job["session_id"], job["utterance_index"], job["audio"]) == ("room-7", 0, "")
    assert (job["src_lang"], job["tgt_lang"], job["text"]) == ("en", "es", "Good morning.")
    assert (job["context_text"], job["vocabulary"], job["trace_id"]) == ("Hello.", ["dragoman"], "trace-1")
    flags = {"use_asr": False, "use_nmt": True, "use_tts": False, "use_semantic": False, "use_tone": False}
    assert job["pipeline"] == flags
    assert 3000 < int(str(job["deadline_ms"])) <= 4000
    node.answer(job, text_asr=None, text_translated="Buenos días.")
    end = await asker.end()
    assert (end.outcome, end.node_id) == (Outcome.OK, "texter")
    assert end.result is not None
    assert end.result.text_translated == "Buenos días."
    record = await wait_until(lambda: instance.released(job_id), TIMEOUT_S)
    assert (record["text_kind"], record["session_id"], record["node_id"]) == ("room", "room-7", "texter")
    assert (record["outcome"], record["src_lang"], record["tgt_lang"]) == ("ok", "en", "es")
    assert await instance.reserved("texter") == 0


async def test_text_only_node_gets_no_speech(open_instance: OpenInstance) -> None:
    instance, listener = await open_instance(speech__placement_wait_ms=200), RecordingListener()
    node = await instance.text_node("texter", "en-es", "auto-es")
    instance.services.dispatcher.take(job_request(listener=listener))
    assert await end_of(listener) is Outcome.FAILED
    assert listener.ends[0].code == ErrorCode.NO_AVAILABLE_NODE
    assert node.jobs == []


@pytest.mark.parametrize(
    "options",
    [
        {"languages": ("en", "es"), "kinds": ("asr", "nmt", "tts")},  # a whole node without text pairs
        {"features": OUR_FEATURES, "text": [("en", "es")]},  # pairs without the feature
        {"features": (*OUR_FEATURES, "text_jobs"), "text": [("es", "en")], "languages": ()},  # the other direction
    ],
)
async def test_text_job_ends_at_once_when_no_node_serves_its_pair_by_text(
    open_instance: OpenInstance, options: dict[str, object]
) -> None:
    long_wait = {"speech__placement_wait_ms": 300_000, "speech__job_timeout_ms": 600_000}
    instance, asker = await open_instance(**long_wait), TextAsker()
    node = await instance.node("other", **options)  # type: ignore[arg-type]  # keywords of `node`
    job_id = asker.ask(instance)
    end = await asker.end()
    assert (end.outcome, end.code) == (Outcome.FAILED, ErrorCode.NO_AVAILABLE_NODE)
    assert not node.jobs
    assert not instance.services.view.serves_text("en", "es")
    assert (await wait_until(lambda: instance.released(job_id), TIMEOUT_S))["code"] == ErrorCode.NO_AVAILABLE_NODE


async def test_node_that_detects_the_language_serves_every_source(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    node = await instance.text_node("detects", "auto-es")
    asker.ask(instance, src_lang="auto")
    asker.ask(instance, src_lang="fr")
    assert [(await given(node, number))["src_lang"] for number in (1, 2)] == ["auto", "fr"]
    view = instance.services.view
    assert view.serves_text("auto", "es")
    assert view.serves_text("fr", "es")
    assert not view.serves_text("fr", "en")


async def test_text_job_asks_for_a_voice_only_at_a_node_that_has_one(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    mute = await instance.text_node("mute", "en-es")
    asker.ask(instance, voice=True)
    assert (await given(mute))["pipeline"]["use_tts"] is False  # type: ignore[index]
    speaks = await instance.text_node("speaks", "en-es", **SPEECH_TOO)
    asker.ask(instance, voice=True)
    assert (await given(speaks))["pipeline"]["use_tts"] is True  # type: ignore[index]


async def test_answer_without_a_translation_is_empty(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    node = await instance.text_node("texter", "en-es")
    asker.ask(instance)
    node.answer(await given(node), text_asr="Good morning.", text_translated="")
    assert (await asker.end()).outcome is Outcome.EMPTY


# -- other nodes -----------------------------------------------------------------------------------


async def test_text_job_goes_to_another_node_when_its_node_is_lost(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    doomed = await instance.text_node("doomed", "en-es")
    asker.ask(instance)
    await given(doomed)
    good = await instance.text_node("good", "en-es", working=True)
    doomed.disconnect()
    assert (await asker.end()).node_id == "good"
    assert [job["attempt_id"] for job in good.jobs] == [2]
    assert good.jobs[0]["text"] == "Good morning."


async def test_text_job_goes_to_another_node_when_half_of_its_time_is_over(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    stuck = await instance.text_node("stuck", "en-es")
    job_id = asker.ask(instance, timeout_ms=3000)
    stuck.ack(await given(stuck))
    good = await instance.text_node("good", "en-es")
    job = await given(good)
    assert stuck.cancelled == [job_id]
    assert int(str(job["deadline_ms"])) <= 750
    good.answer(job)
    assert (await asker.end()).outcome is Outcome.OK
    assert instance.count("dragoman_failovers_total", reason="attempt_timeout") == 1


async def test_text_job_that_failed_is_tried_once_more_on_another_node(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    bad = await instance.text_node("bad", "en-es")
    asker.ask(instance)
    job = await given(bad)
    await instance.text_node("good", "en-es", working=True)
    bad.answer(job, success=False, text_translated=None, error=JobError("PROCESSING_ERROR", "it broke"))
    end = await asker.end()
    assert (end.outcome, end.node_id) == (Outcome.OK, "good")


async def test_text_job_expires_when_its_time_is_over(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(speech__max_attempts=1), TextAsker()
    await instance.text_node("stuck", "en-es")
    job_id = asker.ask(instance, timeout_ms=600)
    end = await asker.end()
    assert (end.outcome, end.code) == (Outcome.FAILED, ErrorCode.JOB_TIMEOUT)
    await wait_until(lambda: instance.released(job_id), TIMEOUT_S)
    assert await instance.reserved("stuck") == 0


# -- requests --------------------------------------------------------------------------------------


async def test_request_becomes_one_job_however_many_instances_ask(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    first, second = TextAsker(), TextAsker()
    node = await a.text_node("texter", "en-es")
    await wait_until(lambda: b.knows("texter"), TIMEOUT_S)
    first.ask(a, request_id="room:caption:es:1")
    job = await given(node)
    second.ask(b, request_id="room:caption:es:1")
    end = await second.end()
    assert (end.outcome, end.code) == (Outcome.CANCELLED, "DUPLICATE_REQUEST")
    node.answer(job)
    assert (await first.end()).outcome is Outcome.OK
    assert len(node.jobs) == 1


async def test_cancelled_asker_loses_its_own_jobs_only(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    node = await instance.text_node("texter", "en-es")
    cancelled = [asker.ask(instance, asker="closed"), asker.ask(instance, asker="closed")]
    kept = asker.ask(instance, asker="open")
    await given(node, 3)
    instance.services.text_jobs.cancel("closed", "room_closed")
    ends = [await asker.end(1), await asker.end(2)]
    assert {(end.outcome, end.code) for end in ends} == {(Outcome.CANCELLED, "room_closed")}
    assert sorted(node.cancelled) == sorted(cancelled)
    node.answer(next(job for job in node.jobs if job["job_id"] == kept))
    assert (await asker.end(3)).outcome is Outcome.OK


async def test_text_job_is_refused_when_too_many_jobs_wait(open_instance: OpenInstance) -> None:
    instance, asker, listener = await open_instance(limits__waiting_jobs=1), TextAsker(), RecordingListener()
    instance.services.dispatcher.take(job_request(listener=listener))
    asker.ask(instance)
    assert asker.ends == {}
    assert (await asker.end()).code == ErrorCode.NODE_OVERLOADED


async def test_askers_take_turns_for_a_free_slot(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(speech__placement_wait_ms=50_000), TextAsker()
    node = await instance.text_node("texter", "en-es", slots=1)
    for room in ("busy", "busy", "busy", "busy", "quiet"):
        asker.ask(instance, asker=room)
    for number in range(1, 6):
        node.answer(await given(node, number))
    await asker.end(5)
    assert [job["session_id"] for job in node.jobs].index("quiet") <= 2


# -- chat leaves a slot to speech ------------------------------------------------------------------


async def test_text_of_chat_leaves_one_slot_of_a_node_of_speech_free(open_instance: OpenInstance) -> None:
    instance, asker, listener = await open_instance(), TextAsker(), RecordingListener()
    node = await instance.text_node("both", "en-es", slots=2, **SPEECH_TOO)
    for _ in range(2):
        asker.ask(instance, kind=TextKind.CHAT, asker="chat")
    first = await given(node)
    instance.services.dispatcher.take(job_request(listener=listener))
    speech = await given(node, 2)
    assert speech["session_id"] == "s-1"
    node.answer(speech)
    node.answer(first)
    assert (await given(node, 3))["session_id"] == "chat"
    assert await end_of(listener) is Outcome.OK


async def test_text_of_chat_that_is_refused_a_slot_does_not_keep_speech_from_the_node(
    open_instance: OpenInstance,
) -> None:
    """One instance does not know of the slots that another has."""
    a, b = await open_instance("a"), await open_instance("b", speech__placement_wait_ms=50_000)
    asker, listener = TextAsker(), RecordingListener()
    node = await a.text_node("both", "en-es", slots=2, **SPEECH_TOO)
    await wait_until(lambda: b.knows("both"), TIMEOUT_S)
    asker.ask(a, kind=TextKind.CHAT, asker="chat")
    first = await given(node)
    waits = asker.ask(b, kind=TextKind.CHAT, asker="chat")
    await wait_until(lambda: len(b.services.view._waiting) > 0, TIMEOUT_S)
    b.services.dispatcher.take(job_request(listener=listener))
    speech = await given(node, 2)
    assert speech["session_id"] == "s-1"
    for job in (speech, first):
        node.answer(job)
    assert await end_of(listener) is Outcome.OK
    assert (await given(node, 3))["job_id"] == waits


async def test_text_of_chat_uses_every_slot_of_a_node_without_speech(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    node = await instance.text_node("texter", "en-es", slots=2)
    for _ in range(2):
        asker.ask(instance, kind=TextKind.CHAT, asker="chat")
    await given(node, 2)


# -- a driver that dies ----------------------------------------------------------------------------


async def test_text_job_of_a_dead_driver_is_cancelled_and_frees_its_slot(open_instance: OpenInstance) -> None:
    a, b, asker = await open_instance("a"), await open_instance("b", **SELDOM_RENEWED), TextAsker()
    node = await a.text_node("texter", "en-es")
    await wait_until(lambda: b.knows("texter"), TIMEOUT_S)
    job_id = asker.ask(b)
    await given(node)
    await a.redis.call("DEL", a.keys.presence("b"))
    assert await a.services.takeover.take_over("b") is TakeoverResult.DONE
    record = await wait_until(lambda: a.released(job_id), TIMEOUT_S)
    assert (record["outcome"], record["code"]) == ("failed", ErrorCode.INSTANCE_LOST)
    await wait_until(lambda: node.cancelled == [job_id], TIMEOUT_S)
    assert await a.reserved("texter") == 0
    assert await a.redis.call("EXISTS", a.keys.session_parked("room-1")) == 0


async def test_asker_is_notified_when_its_instance_is_declared_dead(open_instance: OpenInstance) -> None:
    instance, asker = await open_instance(), TextAsker()
    node = await instance.text_node("texter", "en-es")
    asker.ask(instance)
    await given(node)
    instance.services.dispatcher.abandon_all()
    assert (await asker.end()).code == ErrorCode.INSTANCE_LOST
