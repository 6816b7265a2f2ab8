"""A session in this process: every index ends in exactly one way; the client is asked to wait only when it helps."""

import asyncio
import random
from collections import Counter
from time import monotonic
from typing import Any

import pytest

from dragoman.domain.limits.sessions import Holder
from dragoman.domain.release import Settled
from dragoman.protocol.audio import SILENCE_PACKET, encode_base64, opus_run
from dragoman.protocol.codes import Close
from dragoman.protocol.node import JobError
from dragoman.protocol.session import SessionInit, Utterance
from dragoman.services.speech.session import Session
from dragoman.store.errors import RedisAway
from support.cluster import SPOKEN_PACKET
from support.in_process import TIMEOUT_S, InProcessInstance, InProcessNode, OpenInstance, RecordingSocket
from support.waiting import wait_until

OPUS = encode_base64(opus_run([SILENCE_PACKET] * 10))
WHO = Holder("~anonymous/local", anonymous=True, gateway=True)


def speak(instance: InProcessInstance, **init: Any) -> tuple[Session, RecordingSocket]:
    socket = RecordingSocket()
    return instance.services.sessions.open(socket, SessionInit("1", "web", "en", "es", **init), WHO), socket


def utter(session: Session, socket: RecordingSocket, index: int, tgt: str = "es") -> None:
    message = Utterance(session.id, index, True, "en", tgt, OPUS, "opus", 16000)
    session.utterance(message, socket)


def states(instance: InProcessInstance) -> dict[str, float]:
    counted = {how: instance.count("dragoman_release_total", state=how) for how in Settled}
    return {how: count for how, count in counted.items() if count}


async def two_utterances(
    open_instance: OpenInstance, ack_timeout_ms: int
) -> tuple[InProcessInstance, InProcessNode, Session, RecordingSocket]:
    """Both are on the node, which answers when a test says so."""
    instance = await open_instance(speech__release__ack_timeout_ms=ack_timeout_ms)
    node = await instance.node("n", slots=4)
    session, socket = speak(instance)
    for index in (0, 1):
        utter(session, socket, index)
    await wait_until(lambda: len(node.jobs) == 2, TIMEOUT_S)
    return instance, node, session, socket


async def test_every_index_ends_in_exactly_one_counted_state(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__release__ack_timeout_ms=300, speech__max_attempts=1)
    node = await instance.node("n", slots=100)
    session, socket = speak(instance)
    rng = random.Random(7)
    for index in range(60):
        utter(session, socket, index)
    await wait_until(lambda: len(node.jobs) == 60, TIMEOUT_S)
    jobs = sorted(node.jobs, key=lambda job: job["utterance_index"] + rng.uniform(0, 8))
    for job in jobs:
        way = rng.random()
        if way < 0.6:
            node.answer(job)
        elif way < 0.75:
            node.answer(job, text_asr="", text_translated="")
        elif way < 0.9:
            node.answer(job, success=False, error=JobError("PROCESSING_ERROR", "x"))
        # and some never
    await wait_until(lambda: session.window.expected >= 55, TIMEOUT_S)
    session.close()
    instance.services.sessions.socket_closed(socket)
    await wait_until(lambda: not instance.services.dispatcher._by_session, TIMEOUT_S)
    assert sum(states(instance).values()) == 60
    sent = Counter(message["utterance_index"] for message in socket.of("translation_result"))
    assert set(sent.values()) == {1}
    counted = states(instance)
    assert sum(sent.values()) == counted[Settled.SENT] + counted[Settled.BACKFILLED]
    failed = {m["details"]["utterance_index"] for m in socket.of("error")}
    assert not failed & set(sent)
    assert len(socket.of("error")) == len(failed)


async def test_the_job_of_a_skipped_utterance_ends_cancelled_and_frees_its_slot_without_a_message_to_the_client(
    open_instance: OpenInstance,
) -> None:
    instance, node, _session, socket = await two_utterances(open_instance, ack_timeout_ms=100)
    skipped, sent = node.jobs
    node.answer(sent)
    await wait_until(lambda: instance.released(skipped["job_id"]), TIMEOUT_S)
    record = await instance.job(skipped["job_id"])
    assert (record["outcome"], record["code"], record["release_state"]) == ("cancelled", "SKIPPED", "skipped")
    assert node.socket.of("job_cancel")[0]["reason"] == "SKIPPED"
    assert await instance.reserved("n") == 0
    assert (await instance.released(sent["job_id"]))["release_state"] == "sent"
    assert not socket.of("error") + socket.of("utterance_end") + socket.of("backpressure")
    assert "ERROR" not in [event["event"] for event in socket.of("ui_event")]


async def test_a_result_of_a_skipped_utterance_is_recorded_and_counted_as_late(open_instance: OpenInstance) -> None:
    instance, node, _session, socket = await two_utterances(open_instance, ack_timeout_ms=100)
    node.answer(node.jobs[1])
    await wait_until(lambda: instance.released(node.jobs[0]["job_id"]), TIMEOUT_S)
    node.answer(node.jobs[0])
    await wait_until(lambda: instance.count("dragoman_release_total", state="late") == 1, TIMEOUT_S)
    record = await instance.job(node.jobs[0]["job_id"])
    assert (record["outcome"], record["late_node_id"]) == ("cancelled", "n")
    assert int(record["late_ms"]) >= int(record["finished_ms"])
    assert [result["utterance_index"] for result in socket.of("translation_result")] == [1]


async def test_a_result_that_is_read_after_its_index_was_skipped_is_recorded_as_late(
    open_instance: OpenInstance,
) -> None:
    instance, node, _session, _socket = await two_utterances(open_instance, ack_timeout_ms=0)
    node.answer(node.jobs[1])
    node.answer(node.jobs[0])  # waits for its driver when the window skips it
    await wait_until(lambda: instance.released(node.jobs[0]["job_id"]), TIMEOUT_S)
    record = await instance.job(node.jobs[0]["job_id"])
    assert (record["outcome"], record["release_state"]) == ("ok", "late")


async def test_the_job_of_a_skipped_utterance_is_not_run_again_when_its_node_is_lost(
    open_instance: OpenInstance,
) -> None:
    instance, node, session, _socket = await two_utterances(open_instance, ack_timeout_ms=100)
    other = await instance.node("other", slots=4)
    node.answer(node.jobs[1])
    await wait_until(lambda: session.window.is_settled(0), TIMEOUT_S)
    node.disconnect()
    await wait_until(lambda: instance.released(node.jobs[0]["job_id"]), TIMEOUT_S)
    record = await instance.job(node.jobs[0]["job_id"])
    assert (record["code"], record["attempt"], other.jobs) == ("SKIPPED", "1", [])


async def test_parked_audio_of_a_skipped_utterance_stays_on_its_old_node_and_frees_its_slot(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(speech__release__ack_timeout_ms=100, speech__max_duration_ms=200)
    node = await instance.node("old", slots=4, features=())
    session, _ = speak(instance)
    for seq in range(2):
        session.chunk(opus_run([SILENCE_PACKET] * 10), False, seq)
    await wait_until(lambda: len(node.jobs) == 2, TIMEOUT_S)
    assert all(job["is_max_duration_triggered"] for job in node.jobs)
    node.answer(node.jobs[1])
    await wait_until(lambda: instance.released(node.jobs[0]["job_id"]), TIMEOUT_S)
    assert (await instance.job(node.jobs[0]["job_id"]))["code"] == "SKIPPED"
    assert (node.cancelled, await instance.reserved("old")) == ([], 0)


async def test_a_client_that_asked_for_it_is_sent_the_end_of_every_index(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__release__ack_timeout_ms=300, speech__reorder_ms=0, speech__max_attempts=1)
    node = await instance.node("n", slots=10)
    session, socket = speak(instance, utterance_end=True)
    for index in (0, 2, 3, 4, 5, 6):  # 1 never comes
        utter(session, socket, index)
    await wait_until(lambda: len(node.jobs) == 6, TIMEOUT_S)
    jobs = {job["utterance_index"]: job for job in node.jobs}
    node.answer(jobs[2], text_asr="", text_translated="")
    node.answer(jobs[3], success=False, error=JobError("PROCESSING_ERROR", "x"))
    node.answer(jobs[6])
    node.answer(jobs[5])
    await wait_until(lambda: len(socket.of("utterance_end")) == 7, TIMEOUT_S)
    states = {end["utterance_index"]: (end["state"], end.get("job_id")) for end in socket.of("utterance_end")}
    assert states == {
        0: ("skipped", jobs[0]["job_id"]),
        1: ("skipped", None),
        2: ("empty", jobs[2]["job_id"]),
        3: ("failed", jobs[3]["job_id"]),
        4: ("skipped", jobs[4]["job_id"]),
        5: ("backfilled", jobs[5]["job_id"]),
        6: ("sent", jobs[6]["job_id"]),
    }
    last = {index: [m["type"] for m in socket.sent if _index_of(m) == index][-2:] for index in (3, 6)}
    assert last == {3: ["error", "utterance_end"], 6: ["translation_result", "utterance_end"]}


def _index_of(message: dict[str, Any]) -> Any:
    return message.get("utterance_index", message.get("details", {}).get("utterance_index"))


async def test_a_client_is_asked_to_pause_when_its_placement_takes_long_and_once_a_second(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(speech__placement_wait_ms=900)
    session, socket = speak(instance)
    for index in range(5):
        utter(session, socket, index)
    await wait_until(lambda: len(socket.of("error")) == 5, TIMEOUT_S)
    (pressed,) = socket.of("backpressure")
    assert (pressed["action"], pressed["message"], pressed["resume_after_ms"]) == ("PAUSE", "waiting for a node", 1000)


async def test_a_client_is_not_asked_to_pause_for_a_short_wait(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__placement_wait_ms=100)
    session, socket = speak(instance)
    utter(session, socket, 0)
    await wait_until(lambda: socket.of("error"), TIMEOUT_S)
    assert not socket.of("backpressure")


async def test_client_gets_backpressure_at_once_when_all_nodes_are_busy(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__placement_wait_ms=5000)
    node = await instance.node("n", slots=1)
    session, socket = speak(instance)
    utter(session, socket, 0)
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    utter(session, socket, 1)
    await wait_until(lambda: socket.of("backpressure"), TIMEOUT_S)
    pressed = socket.of("backpressure")[0]
    assert (pressed["action"], pressed["message"], pressed["resume_after_ms"]) == ("PAUSE", "all nodes are busy", 1000)
    node.answer(node.jobs[0])
    await wait_until(lambda: len(node.jobs) == 2, TIMEOUT_S)
    node.answer(node.jobs[1])
    await wait_until(lambda: len(socket.of("translation_result")) == 2, TIMEOUT_S)


async def test_a_failure_to_place_one_utterance_does_not_hold_up_the_next(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__placement_wait_ms=20_000)
    await instance.node("n", working=True)
    session, socket = speak(instance)
    utter(session, socket, 0, tgt="xx")  # for which nobody is there
    utter(session, socket, 1)
    await wait_until(lambda: socket.of("translation_result"), TIMEOUT_S)
    assert socket.of("translation_result")[0]["utterance_index"] == 1
    instance.services.sessions.socket_closed(socket)


async def test_a_session_that_is_gone_orders_nothing_more(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__reorder_ms=100)
    node = await instance.node("n")
    session, socket = speak(instance)
    utter(session, socket, 0)
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    utter(session, socket, 2)  # waits for 1
    instance.services.sessions.socket_closed(socket)
    await wait_until(lambda: node.cancelled, TIMEOUT_S)
    over = monotonic() + 0.5
    await wait_until(lambda: monotonic() > over, TIMEOUT_S)
    assert len(node.jobs) == 1


async def test_closing_session_reports_unanswered_utterances_as_failed_before_its_close(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(speech__close_wait_ms=50)
    node = await instance.node("n", slots=2)
    session, socket = speak(instance)
    for index in (0, 1):
        utter(session, socket, index)
    await wait_until(lambda: len(node.jobs) == 2, TIMEOUT_S)
    node.answer(next(job for job in node.jobs if job["utterance_index"] == 1))
    await wait_until(lambda: socket.of("translation_result"), TIMEOUT_S)
    session.close()
    await wait_until(lambda: socket.of("session_close_ack"), TIMEOUT_S)
    (told,) = socket.of("error")
    assert (told["code"], told["details"]["utterance_index"]) == ("SESSION_CLOSED", 0)
    assert socket.sent.index(told) < socket.sent.index(socket.of("session_close_ack")[0])
    await wait_until(lambda: node.cancelled, TIMEOUT_S)
    await wait_until(lambda: not instance.services.dispatcher._by_session, TIMEOUT_S)
    assert states(instance) == {Settled.SENT: 1, Settled.FAILED: 1}
    assert len(socket.of("error")) == 1


async def test_a_session_that_says_goodbye_leaves_nothing(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    await instance.node("n", working=True)
    session, socket = speak(instance)
    utter(session, socket, 0)
    await wait_until(lambda: socket.of("translation_result"), TIMEOUT_S)
    session.close()
    assert [message["type"] for message in socket.sent][-1] == "session_close_ack"
    assert instance.services.sessions.find(session.id) is None

    async def nobody_owns_it() -> bool:
        return await instance.stores.owners.session_owner(session.id) is None

    await wait_until(nobody_owns_it, TIMEOUT_S)


async def test_a_session_that_cannot_go_elsewhere_makes_no_new_jobs_once_its_instance_drains(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    session, socket = speak(instance)
    utter(session, socket, 0)
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    draining = asyncio.ensure_future(instance.instance.drain())
    await wait_until(lambda: socket.of("backpressure"), TIMEOUT_S)
    assert socket.of("backpressure")[0]["action"] == "PAUSE"
    utter(session, socket, 1)
    (error,) = socket.of("error")
    assert (error["code"], error["details"]["utterance_index"]) == ("SESSION_CLOSED", 1)
    assert len(instance.services.dispatcher) == 1
    assert not socket.closed, "what runs may finish"
    node.answer(node.jobs[0])
    await draining
    assert [message["utterance_index"] for message in socket.of("translation_result")] == [0]
    assert (socket.closed, socket.code, len(node.jobs)) == (True, Close.SHUTDOWN, 1)


async def test_jobs_above_the_queue_limit_fail_at_once_until_nodes_take_some(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(
        limits__waiting_jobs=2, speech__placement_wait_ms=60_000, speech__job_timeout_ms=120_000
    )
    session, socket = speak(instance)
    for seq in (1, 2, 3):
        session.chunk(opus_run([SPOKEN_PACKET]), True, seq)
    (error,) = await wait_until(lambda: socket.of("error"), TIMEOUT_S)
    assert (error["code"], error["details"]["utterance_index"]) == ("NODE_OVERLOADED", 2)
    node = await instance.node("n")
    await wait_until(lambda: len(node.jobs) == 2, TIMEOUT_S)
    session.chunk(opus_run([SPOKEN_PACKET]), True, 4)
    await wait_until(lambda: len(node.jobs) == 3, TIMEOUT_S)


async def test_no_job_is_made_from_the_first_moment_of_a_drain_on(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    node = await instance.node("n")
    session, socket = speak(instance)
    session.chunk(opus_run([SPOKEN_PACKET]), True, 1)
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    draining = asyncio.ensure_future(instance.instance.drain())
    await asyncio.sleep(0)  # it has begun, and waits for Redis
    session.chunk(opus_run([SPOKEN_PACKET]), True, 2)
    (error,) = await wait_until(lambda: socket.of("error"), TIMEOUT_S)
    assert (error["code"], error["details"]["utterance_index"]) == ("SESSION_CLOSED", 1)
    node.answer(node.jobs[0])
    await draining
    assert len(node.jobs) == 1


async def test_an_idle_client_is_sent_elsewhere_as_soon_as_its_instance_drains(open_instance: OpenInstance) -> None:
    instance = await open_instance()
    _, socket = speak(instance)
    await instance.instance.drain()
    assert (socket.closed, socket.code) == (True, Close.SHUTDOWN)


async def test_session_that_redis_cannot_record_is_refused_without_delay(
    open_instance: OpenInstance,
) -> None:
    instance, socket = await open_instance(), RecordingSocket()

    async def away(*args: object) -> None:
        raise RedisAway("gone")

    instance.stores.sessions.open = away  # type: ignore[assignment,method-assign]
    session = instance.services.sessions.open(socket, SessionInit("1", "web", "en", "es", resume=True), WHO)
    await wait_until(lambda: socket.closed, TIMEOUT_S)
    assert socket.code == Close.OVERLOADED
    assert instance.services.sessions.find(session.id) is None
    assert not socket.sent


async def test_cut_of_a_session_that_can_resume_writes_as_much_with_many_open_jobs_as_with_few(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await open_instance()
    node = await instance.node("n", slots=100)
    session, socket = speak(instance, resume=True)
    await wait_until(lambda: socket.of("session_init_ack"), TIMEOUT_S)
    store, sizes = instance.services.sessions.resumable, list[int]()
    write = store.write

    def measured(*told: Any, **more: Any) -> "asyncio.Future[bytes]":
        fields = next(part for part in told if isinstance(part, dict))
        sizes.append(sum(len(f"{name}{value}") for name, value in fields.items()))
        return write(*told, **more)

    monkeypatch.setattr(store, "write", measured)
    for index in range(60):
        utter(session, socket, index)
        await wait_until(lambda: len(node.jobs) > index, TIMEOUT_S)  # noqa: B023
    cuts = [size for size in sizes if size]
    assert len(cuts) >= 60
    assert max(cuts[1:]) < 200, "one index with its job and trace, and the next index"
