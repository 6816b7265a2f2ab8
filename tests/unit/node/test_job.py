import pytest

from dragoman.node import Job, ModelNotAvailable, Result
from dragoman.protocol import audio, codec
from dragoman.protocol.errors import BadAudio
from unit.node.fake_scheduler import assignment, job


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
