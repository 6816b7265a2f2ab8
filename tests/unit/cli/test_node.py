import pytest

from dragoman.cli.main import run


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--url", "http://127.0.0.1:5010"), "--url 'http://127.0.0.1:5010' is not an address like ws://127.0.0.1"),
        (("--url", "nonsense"), "--url 'nonsense' is not an address like ws://127.0.0.1"),
        (("--url", "ws://127.0.0.1:99999/ws/node"), "--url 'ws://127.0.0.1:99999/ws/node' is not an address"),
        (("--engine", "whisper"), "There is no engine 'whisper'; the one there is: sim."),
        (("--languages", " ,"), "--languages names none: write them with commas, as in en,es,zh."),
        (("--failure", "0.7", "--silence", "0.7"), "Failure"),
        (("--slots", "0"), "Invalid value for '--slots'"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dragoman: {sentence}")
    assert err.count("\n") == 1
