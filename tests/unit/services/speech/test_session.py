"""A session and its client, without a loop of services around them."""

import json
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.limits.sessions import Holder, SessionLimits
from dragoman.domain.segmenter import SegmenterSettings
from dragoman.protocol.audio import SILENCE_PACKET, opus_run
from dragoman.protocol.codec import decode_client
from dragoman.protocol.session import SessionInit, Utterance
from dragoman.services.metrics import Metrics
from dragoman.services.speech.job_request import JobRequest, SessionTurns
from dragoman.services.speech.remote import RemoteJob
from dragoman.services.speech.session import (
    LATE_S,
    PAUSE_MARGIN_MS,
    PAUSE_MS,
    SILENCE_NOTE_S,
    Session,
    SessionSettings,
)
from dragoman.store.sessions import audio_of
from support.voice import silent, vowel

SPOKEN, SILENCE = opus_run([bytes(40)] * 10), opus_run([SILENCE_PACKET] * 10)


class Dispatcher:
    is_full = False

    def __init__(self) -> None:
        self.orders: list[JobRequest] = []
        self.open = 0

    def open_jobs(self, account: str) -> int:
        return self.open

    def take(self, order: JobRequest, state_written: object = None) -> None:
        self.orders.append(order)

    def remote_job_settled(self, job_id: str, state: object) -> None: ...


class Client:
    id, closed = 1, False

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def send(self, frame: bytes) -> None:
        self.heard.append(json.loads(frame))


def said(index: int) -> Utterance:
    about = {"session_id": "s-1", "utterance_index": index, "src_lang": "en", "tgt_lang": "es"}
    audio = {"audio": "AAAA", "audio_format": "opus", "sample_rate": 16000, "manual_cut": True}
    message = decode_client(json.dumps({"type": "utterance", **about, **audio}).encode())
    assert isinstance(message, Utterance)
    return message


def session_of(client: Any, dispatcher: Any, init: SessionInit | None = None, **settings: Any) -> Session:
    return Session(
        "s-1",
        client,
        init or SessionInit("test", "web", "en", "es"),
        dispatcher,
        Metrics(),
        SessionSettings(SegmenterSettings(), **settings),
        SessionTurns("s-1", Mock(), Mock()),
        None,
        holder=Holder("default/somebody"),
        count_job=lambda: None,
        guard=lambda work, *args: True,
        on_closed=lambda session: None,
    )


async def test_utterance_without_room_fails_at_once_and_the_next_is_sent() -> None:
    dispatcher: Any = Dispatcher()
    client: Any = Client()
    session = session_of(client, dispatcher)
    dispatcher.is_full = True
    session.utterance(said(0), client)
    dispatcher.is_full = False
    session.utterance(said(1), client)
    told = {one["type"]: one for one in client.heard}
    assert (told["backpressure"]["action"], told["backpressure"]["resume_after_ms"]) == ("PAUSE", PAUSE_MS)
    assert (told["error"]["code"], told["error"]["details"]["utterance_index"]) == ("NODE_OVERLOADED", 0)
    (order,) = dispatcher.orders
    assert order.index == 1
    session.stop()


async def test_a_client_is_asked_to_pause_when_its_jobs_are_dispatched_late() -> None:
    dispatcher: Any = Dispatcher()
    client: Any = Client()
    session = session_of(client, dispatcher)
    for index in range(2):
        session.utterance(said(index), client)
    in_time, late = dispatcher.orders
    session.job_dispatched(in_time, "node-1", 1)
    assert [one["type"] for one in client.heard] == ["ui_event"]
    late.cut_at = monotonic() - LATE_S
    session.job_dispatched(late, "node-1", 1)
    assert [one["type"] for one in client.heard] == ["ui_event", "backpressure", "ui_event"]
    assert (client.heard[1]["action"], client.heard[1]["resume_after_ms"]) == ("PAUSE", PAUSE_MS)
    client.heard.clear()
    session.utterance(said(2), client)
    moved = dispatcher.orders[-1]
    moved.cut_at = monotonic() - 10 * LATE_S
    session._asked_to_pause_at = float("-inf")
    session.job_dispatched(moved, "node-2", 2)
    assert [one["type"] for one in client.heard] == ["ui_event"]
    session.stop()


async def test_buffered_audio_is_not_cut_by_the_silence_of_a_client_that_was_asked_to_pause() -> None:
    dispatcher: Any = Dispatcher()
    client: Any = Client()
    session = session_of(client, dispatcher)
    session.chunk(SPOKEN, False, 1)
    before = session.input.segmenter.deadline()
    session._ask_to_pause("all nodes are busy")
    after = session.input.segmenter.deadline()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx((PAUSE_MS + PAUSE_MARGIN_MS) / 1000, abs=0.2)
    assert [one["type"] for one in client.heard] == ["backpressure"]
    session.stop()


async def test_quiet_final_makes_no_job_and_counts_as_received() -> None:
    dispatcher: Any = Dispatcher()
    client: Any = Client()
    session = session_of(client, dispatcher)
    session.chunk(SILENCE, True, 4)
    assert (dispatcher.orders, client.heard) == ([], [])
    assert (session.input.settled.seq, session.input.received_seq, session.state()["next_index"]) == (4, 4, 0)
    session.chunk(SPOKEN, True, 5)
    (order,) = dispatcher.orders
    assert (order.index, session.input.settled.seq) == (0, 5)
    session.stop()


async def test_closing_session_fails_the_remaining_utterances_and_then_reports_its_close() -> None:
    dispatcher: Any = Dispatcher()
    client: Any = Client()
    session = session_of(client, dispatcher, close_wait_ms=0)
    session.remote_jobs[0] = RemoteJob(0, "job-0", "trace-0", monotonic(), monotonic() + 60)
    session.input.reorder.next_index = 1
    for index in (2, 1):
        session.utterance(said(index), client)
    session.close()
    told = [one for one in client.heard if one["type"] != "ui_event"]
    assert [one["type"] for one in told] == ["error", "error", "error", "session_close_ack"]
    assert [one["details"]["utterance_index"] for one in told[:3]] == [0, 1, 2]
    assert {one["code"] for one in told[:3]} == {"SESSION_CLOSED"}
    session.stop()


async def test_open_jobs_of_a_client_are_counted_over_all_its_sessions() -> None:
    dispatcher: Any = Dispatcher()
    client: Any = Client()
    session = session_of(client, dispatcher, limits=SessionLimits(open_jobs_per_principal=2))
    for dispatcher.open in (1, 2, 4):  # of other sessions
        session.utterance(said(session.input.next_index), client)
    assert [order.index for order in dispatcher.orders] == [0, 1]
    heard = [one.get("action") or one["code"] for one in client.heard if one["type"] != "ui_event"]
    assert heard == ["PAUSE", "LIMIT_EXCEEDED"]
    session.stop()


async def test_session_with_too_many_open_jobs_is_paused_and_then_an_utterance_fails_until_one_has_ended() -> None:
    dispatcher: Any = Dispatcher()
    client: Any = Client()
    session = session_of(client, dispatcher, open_jobs=1)
    session.utterance(said(0), client)
    assert not client.heard
    session.utterance(said(1), client)
    assert [one["action"] for one in client.heard if one["type"] == "backpressure"] == ["PAUSE"]
    session.utterance(said(2), client)
    (error,) = [one for one in client.heard if one["type"] == "error"]
    assert (error["code"], error["details"]["utterance_index"]) == ("LIMIT_EXCEEDED", 2)
    assert "wait for some" in error["message"]
    session.job_ended(dispatcher.orders[0], End(Outcome.FAILED, "PROCESSING_ERROR", "x"))
    session.utterance(said(3), client)
    assert [order.index for order in dispatcher.orders] == [0, 1, 3]
    session.stop()


# -- voice detection


def hearing_session(dispatcher: Any, *, audio_format: str = "pcm16", **settings: Any) -> Session:
    init = SessionInit("test", "web", "en", "es", audio_format=audio_format, vad="server")
    return session_of(Client(), dispatcher, init=init, **settings)


async def test_speech_in_a_stream_becomes_a_job_when_it_has_ended() -> None:
    dispatcher: Any = Dispatcher()
    session = hearing_session(dispatcher)
    for seq, audio in enumerate([silent(900), vowel(700), silent(300), silent(300)]):
        session.chunk(audio, False, seq)
        assert len(dispatcher.orders) == (seq == 3)
    (order,) = dispatcher.orders
    assert 1300 <= order.audio_ms <= 1550
    assert (order.assignment.is_timeout_triggered, order.ends_turn) == (True, True)
    session.stop()


async def test_stored_state_says_which_part_of_a_chunk_is_settled() -> None:
    dispatcher: Any = Dispatcher()
    session = hearing_session(dispatcher)
    session.chunk(silent(300) + vowel(700) + silent(2000), False, 1)
    session.chunk(silent(100), False, 2)
    state = session.state()
    seq, split_seq, split_bytes = audio_of({name: str(text) for name, text in state.items()})
    assert (seq, split_seq, state["next_index"]) == (None, 1, 1)
    assert 32 * 2800 <= split_bytes <= 32 * 2950
    session.stop()


async def test_silence_is_noted_once_in_a_while_in_a_session_that_can_resume() -> None:
    dispatcher: Any = Dispatcher()
    session = hearing_session(dispatcher)
    outbox = Mock()
    session.output.use_outbox(outbox)
    for seq in range(20):
        session.chunk(silent(500), False, seq)
    assert outbox.note.call_count == 0
    session._noted_at -= SILENCE_NOTE_S
    for seq in range(20, 40):
        session.chunk(silent(500), False, seq)
    [call] = outbox.note.call_args_list
    assert call.args[0]["audio_seq"] == 19
    session.stop()


async def test_opus_stays_opaque_whatever_the_client_asks_for() -> None:
    dispatcher: Any = Dispatcher()
    session = hearing_session(dispatcher, audio_format="opus")
    assert session.input.vad is None
    session.chunk(SILENCE * 4, True, 0)
    assert len(dispatcher.orders) == 1
    session.stop()
