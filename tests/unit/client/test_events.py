import asyncio

import pytest

from dragoman.client import Result, SessionClosed, SessionError, SessionLost, Unreachable
from dragoman.client.events import Detected, EventQueue, Partial
from dragoman.protocol.audio import encode_base64
from unit.client.fake_server import result


def test_result_decodes_its_audio() -> None:
    made = Result(result("s-1", 3, "hello", tts_audio=encode_base64(b"sound"), backfilled=True))
    assert (made.session_id, made.index, made.job_id) == ("s-1", 3, "job-3")
    assert (made.text_asr, made.text_translated) == ("hello", "[es] hello")
    assert (made.tts_audio, made.tts_format, made.backfilled) == (b"sound", "opus", True)


def test_result_without_audio_has_empty_audio() -> None:
    assert Result(result("s-1", 3)).tts_audio == b""
    assert Result(result("s-1", 3)).backfilled is False


def partial(index: int) -> Partial:
    return Partial("s-1", index, "so far", False, f"job-{index}")


async def test_each_event_is_read_once_in_order() -> None:
    queue = EventQueue()
    queue.put(partial(1))
    queue.put(partial(2))
    queue.end()
    queue.put(partial(3))
    assert [await queue.get(), await queue.get(), await queue.get(), await queue.get()] == [
        partial(1),
        partial(2),
        None,
        None,
    ]


async def test_reader_waits_for_the_next_event() -> None:
    queue = EventQueue()
    reading = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.put(partial(1))
    assert await reading == partial(1)


async def test_readers_share_the_events_and_the_end() -> None:
    queue = EventQueue()
    readers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.put(partial(1))
    queue.end()
    assert sorted(map(str, await asyncio.gather(*readers))) == sorted(map(str, [partial(1), None, None]))


async def test_error_is_raised_after_the_last_event() -> None:
    queue = EventQueue()
    queue.put(partial(1))
    queue.end(ValueError("that is why"))
    queue.end()
    assert await queue.get() == partial(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="that is why"):
            await queue.get()


async def test_only_partials_are_dropped_when_nobody_reads() -> None:
    queue = EventQueue(max_unread=3)
    for index in range(4):
        queue.put(Detected("en", index))
    for index in range(5):
        queue.put(partial(index))
    assert len(queue) == 4
    assert [await queue.get() for _ in range(4)] == [Detected("en", index) for index in range(4)]


def test_error_has_message_code_and_index() -> None:
    error = SessionError("JOB_TIMEOUT", "the job took too long", 4)
    assert str(error) == "utterance 4: the job took too long (JOB_TIMEOUT)"
    assert (error.code, error.message, error.index) == ("JOB_TIMEOUT", "the job took too long", 4)


def test_every_error_is_a_session_error() -> None:
    for error in (Unreachable("no answer"), SessionLost("gone"), SessionClosed()):
        assert isinstance(error, SessionError)
        assert error.index is None
        assert error.code in str(error)
