from pathlib import Path

import pytest

from dragoman.cli.main import run


def write(path: str, pause_ms: int) -> str:
    Path(path).write_text(f"[speech]\npause_ms = {pause_ms}\n")
    return path


def pause(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(args) == 0
    lines = capsys.readouterr().out.splitlines()
    return next(line for line in lines if line.startswith("speech.pause_ms = "))


def test_the_file_may_be_named_before_and_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.toml", 1111)
    assert pause(capsys, "--config", "a.toml", "config", "show").startswith("speech.pause_ms = 1111")
    assert pause(capsys, "config", "show", "--config", "a.toml").startswith("speech.pause_ms = 1111")


def test_the_nearest_naming_of_a_file_wins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write("config.toml", 1000)
    assert pause(capsys, "config", "show").endswith("# config.toml")
    monkeypatch.setenv("DRAGOMAN_CONFIG", write("variable.toml", 2000))
    assert pause(capsys, "config", "show").endswith("# variable.toml")
    write("before.toml", 3000)
    write("after.toml", 4000)
    assert pause(capsys, "--config", "before.toml", "config", "show").endswith("# before.toml")
    assert pause(capsys, "--config", "before.toml", "config", "show", "--config", "after.toml").endswith("# after.toml")


def test_a_file_that_was_asked_for_must_be_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_CONFIG", "gone.toml")
    assert run(["config", "check"]) == 2
    assert capsys.readouterr().err == "dragoman: gone.toml cannot be read: no such file or directory.\n"


def test_overrides_before_and_after_the_command_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--set", "speech.pause_ms=1", "--set", "speech.reorder_ms=9", "config", "show", "--changed"]
    assert run([*args, "--set", "speech.pause_ms=2500"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "speech.pause_ms = 2500",
        "speech.reorder_ms = 9",
    ]


def test_an_override_without_a_value_is_refused_without_showing_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--set", "hunter2"]) == 2
    assert capsys.readouterr().err == "dragoman: --set wants KEY=VALUE, as in --set speech.pause_ms=2500.\n"


def test_a_value_may_contain_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--changed", "--set", "embedded.data_dir=a=b"]) == 0
    assert capsys.readouterr().out == 'embedded.data_dir = "a=b"  # the command line\n'


def test_a_wrong_configuration_ends_the_command_with_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--set", "server.prot=1", "--set", "server.workers=0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dragoman: the configuration has 2 problems:\n  - server.prot")
