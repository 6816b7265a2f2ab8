import io
import os
from pathlib import Path

import pytest

from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.main import run
from dragoman.cli.say import Speech, _standard_input, endpoint
from dragoman.client.recording import Recording


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ("ws://host:5010/ws/session", "ws://host:5010/ws/session"),
        ("ws://host:5010", "ws://host:5010/ws/session"),
        ("ws://host:5010/", "ws://host:5010/ws/session"),
        ("http://host:5010", "ws://host:5010/ws/session"),
        ("https://host", "wss://host/ws/session"),
        ("host:5010", "ws://host:5010/ws/session"),
        ("[::1]:5010", "ws://[::1]:5010/ws/session"),
        ("wss://host/behind/a/proxy?token=x", "wss://host/behind/a/proxy?token=x"),
    ],
)
def test_an_address_may_be_given_in_many_ways(given: str, served: str) -> None:
    assert endpoint(given) == served


@pytest.mark.parametrize("given", ["", "ftp://host", "ws://", "ws://host:port", "a b", "ws://host:0", "host\n:1"])
def test_what_is_no_address_is_told(given: str) -> None:
    with pytest.raises(Failure, match="is not an address like ws://") as failure:
        endpoint(given)
    assert failure.value.exit_code == USAGE


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nowhere.wav"], "There is no file nowhere.wav."),
        (["."], ". cannot be read: Is a directory."),
        (["song.mp3"], "song.mp3 is an MP3 file. Convert it first: ffmpeg"),
        (["words.txt"], "words.txt is neither a WAV file nor a run of Opus packets."),
        (["words.txt", "--sample"], "Give a file or --sample, not both."),
        (["--url", "ftp://x"], "--url 'ftp://x' is not an address"),
    ],
)
def test_what_cannot_be_said_is_one_sentence(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("song.mp3").write_bytes(b"ID3 la la la")
    Path("words.txt").write_bytes(b"hello, this is a text")
    assert run(["say", *args]) == USAGE
    assert capsys.readouterr().err.startswith(f"dragoman: {sentence}")


def test_a_terminal_is_not_taken_for_a_microphone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    assert run(["say", "-"]) == USAGE
    assert "Standard input is a terminal" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["say", "--url", "127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("dragoman: Not connected to ws://127.0.0.1:1/ws/session: connection refused.")
    assert told.count("\n") == 1


async def test_standard_input_is_read_in_whole_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = os.pipe()
    monkeypatch.setattr("dragoman.cli.say.STDIN_FD", there)
    os.write(here, bytes(range(25)))
    os.close(here)
    pieces = [piece async for piece in _standard_input(10)]
    os.close(there)
    assert pieces == [bytes(range(10)), bytes(range(10, 20)), bytes(range(20, 24))]  # half a sample is left out


async def test_every_part_of_a_speech_has_its_own_pieces() -> None:
    parts = [Recording("pcm16", 16000, bytes(320)), Recording("pcm16", 16000, bytes(640))]
    speech = Speech("pcm16", 16000, parts)
    assert speech.duration_ms == 30
    assert [[len(piece) async for piece in part] for part in speech.pieces(10, 1000)] == [[320], [320, 320]]
    assert Speech("pcm16", 16000).duration_ms is None
