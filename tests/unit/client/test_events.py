from dragoman.client import Result
from dragoman.protocol.audio import encode_base64
from unit.client.fake_server import result


def test_a_result_has_its_sound_ready_to_play() -> None:
    made = Result(result("s-1", 3, "hello", tts_audio=encode_base64(b"sound"), backfilled=True))
    assert (made.session_id, made.index, made.job_id) == ("s-1", 3, "job-3")
    assert (made.text_asr, made.text_translated) == ("hello", "[es] hello")
    assert (made.tts_audio, made.tts_format, made.backfilled) == (b"sound", "opus", True)


def test_a_result_without_sound_has_none() -> None:
    assert Result(result("s-1", 3)).tts_audio == b""
    assert Result(result("s-1", 3)).backfilled is False
