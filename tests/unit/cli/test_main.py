import subprocess
import sys
from collections.abc import Callable

import pytest
import typer

from dragoman import __version__
from dragoman.cli import main as cli
from dragoman.cli.failure import Failure
from dragoman.cli.main import COMMANDS, Command, imported, run


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Adds a command called `probe`, the given function or Typer."""

    def add(target: object) -> None:
        monkeypatch.setattr(cli, "probe", target, raising=False)
        probe = Command("probe", "dragoman.cli.main:probe", "For a test.")
        monkeypatch.setattr(cli, "COMMANDS", (*COMMANDS, probe))

    return add


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"dragoman {__version__}\n"


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_the_help_names_every_command(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: dragoman ")
    for command in COMMANDS:
        assert f"  {command.name}" in shown
        assert command.summary[:40] in shown


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_can_be_run_and_has_a_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(command).name == command.name
    assert command.summary.endswith(".")
    assert run([command.name, "--help"]) == 0
    assert f"Usage: dragoman {command.name} " in capsys.readouterr().out


def test_the_help_imports_none_of_what_the_commands_need() -> None:
    script = "import sys; from dragoman.cli.main import run; run([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "dragoman.cli.main" in loaded
    assert loaded.isdisjoint({"dragoman.config", "msgspec", "rich", "redis", "aiohttp", "asyncio"})


def test_a_function_can_be_a_command(register: Callable[[object], None], capsys: pytest.CaptureFixture[str]) -> None:
    def probe(times: int = 1) -> None:
        typer.echo("ping " * times)

    register(probe)
    assert run(["probe", "--times", "2"]) == 0
    assert capsys.readouterr().out == "ping ping \n"


def test_a_failure_is_one_sentence_and_its_status(
    register: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def probe() -> None:
        raise Failure("the node is not there.", 3)

    register(probe)
    assert run(["probe"]) == 3
    assert capsys.readouterr() == ("", "dragoman: the node is not there.\n")


@pytest.mark.parametrize(("answer", "status"), [(None, 0), (4, 4)])
def test_a_command_may_return_its_status(register: Callable[[object], None], answer: object, status: int) -> None:
    register(lambda: answer)
    assert run(["probe"]) == status


def test_an_exit_an_interrupt_and_a_no_are_not_bugs(register: Callable[[object], None]) -> None:
    def refuse() -> None:
        raise typer.Abort

    def leave() -> None:
        raise typer.Exit(5)

    def interrupt() -> None:
        raise KeyboardInterrupt

    register(leave)
    assert run(["probe"]) == 5
    register(interrupt)
    assert run(["probe"]) == 130
    register(refuse)
    assert run(["probe"]) == 1


def test_a_bug_is_not_dressed_up(register: Callable[[object], None]) -> None:
    def probe() -> None:
        raise ZeroDivisionError

    register(probe)
    with pytest.raises(ZeroDivisionError):
        run(["probe"])


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["confg"], "dragoman: No such command 'confg'. Did you mean 'config'? Try 'dragoman --help'.\n"),
        (["config", "chek"], "dragoman: No such command 'chek'. Did you mean 'check'? Try 'dragoman config --help'.\n"),
        (["config", "check", "--foo"], "dragoman: No such option: --foo. Try 'dragoman config check --help'.\n"),
        (["--config"], "dragoman: Option '--config' requires an argument. Try 'dragoman --help'.\n"),
    ],
)
def test_a_usage_error_is_one_sentence(args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert capsys.readouterr() == ("", sentence)


def test_a_group_asked_for_nothing_answers_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config"]) == 2
    assert capsys.readouterr().err.startswith("Usage: dragoman config ")
