"""Text of strangers on the operator's terminal, and the module that all output of commands goes through."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman.cli
from dragoman.cli import chat_terminal
from dragoman.cli.api import Api
from dragoman.cli.failure import Failure
from dragoman.cli.main import run
from support.tables import for_each

PACKAGE = Path(dragoman.cli.__file__).parents[1]
COMMANDS = sorted(path for found in ("cli/*.py", "tools/*.py", "tools/*/cli.py") for path in PACKAGE.glob(found))
NASTY = "\x1b]52;c;cm0gLXJm\x07\r\x9b2J\u202e\n2026-11-18  olga  drain  all  done[/oops][red]:bomb:"


def steers(text: str) -> bool:
    return any(not char.isprintable() and char != "\n" for char in text)


def answers(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """The API gives this answer to the command."""
    for name in ("get", "get_list"):
        monkeypatch.setattr(Api, name, lambda *_: answer)


def test_a_node_cannot_steer_or_break_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    languages = {"asr": [NASTY], "semantic": [NASTY], "tts": []}
    at = {"instance": NASTY, "alive": True, "durability": "[/oops]", "version": NASTY, "inbox": {"waiting": 0}}
    one = {"node_id": NASTY, "instance": NASTY, "slots": 4, "reserved": 1, "draining": False, "languages": languages}
    one |= {"ready": [NASTY, "[/oops]"], "cooling_until_ms": {NASTY: 9_000}}
    told = {"instances": [at], "nodes": [one], "node_count": 1, "dead_letters": {}, "now_ms": 1}
    answers(monkeypatch, told)
    assert run(["status"]) == 0
    shown = capsys.readouterr().out
    assert not steers(shown)
    assert "[/oops]" in shown
    assert ":bomb:" in shown


def test_a_dead_letter_cannot_steer_the_terminal_or_forge_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"instance": "a", "id": "1-0", "kind": NASTY, "deliveries": 1, "size": 1, "dead_ms": 1, "reason": NASTY}
    answers(monkeypatch, [row])
    assert run(["dlq", "list"]) == 0
    shown = capsys.readouterr().out
    assert not steers(shown)
    assert len(shown.splitlines()) == 2


def test_an_audited_target_cannot_steer_the_terminal_or_forge_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"at_ms": 1, "tenant": NASTY, "who": NASTY, "action": "drain", "target": NASTY, "detail": NASTY}
    answers(monkeypatch, {"entries": [row], "next": ""})
    assert run(["audit"]) == 0
    shown = capsys.readouterr().out
    assert not steers(shown)
    assert len(shown.splitlines()) == 1


def test_a_node_cannot_steer_the_terminal_by_the_record_of_its_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    past = [{"attempt": 1, "node_id": NASTY, "reason": NASTY}]
    job = {"job_id": "j", "src_lang": NASTY, "outcome": "failed", "code": NASTY, "message": NASTY, "attempts": past}
    answers(monkeypatch, job)
    assert run(["explain", "j"]) == 0
    assert not steers(capsys.readouterr().out)


def test_a_message_cannot_steer_a_terminal_that_reads_lines_nor_forge_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat_terminal._tell("from bob", "1", f"hi\tsaved\t2\t{NASTY}")
    shown = capsys.readouterr().out
    assert (shown.count("\t"), shown.count("\n")) == (2, 1)
    assert not steers(shown.replace("\t", ""))


def test_what_a_server_refuses_with_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> Any:
        raise Failure(NASTY)

    monkeypatch.setattr(Api, "get", refuse)
    assert run(["status"]) == 1
    assert not steers(capsys.readouterr().err)


# -- all output goes through it


def written_elsewhere(path: Path) -> Iterator[str]:
    """Calls and imports by which a module would write to standard output or error by itself."""
    for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(found, ast.Name) and found.id == "print":
            yield f"print in line {found.lineno}"
        elif isinstance(found, ast.Attribute):
            name = ast.unparse(found)
            if name in ("typer.echo", "typer.secho", "logs.say", "sys.stdout.write", "sys.stderr.write"):
                yield f"{name} in line {found.lineno}"
        elif isinstance(found, ast.ImportFrom) and (found.module or "").startswith("rich."):
            names = {alias.name for alias in found.names} & {"Console", "Text", "print"}
            if names and not _for_types_only(path, found):
                yield f"{found.module}: {', '.join(sorted(names))} in line {found.lineno}"


def _for_types_only(path: Path, found: ast.ImportFrom) -> bool:
    for block in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            return block.lineno < found.lineno <= (block.end_lineno or 0)
    return False


@for_each(COMMANDS, lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_command_writes_but_through_output(path: Path) -> None:
    if path.name != "output.py":
        assert list(written_elsewhere(path)) == []


def test_the_lint_sees_every_way_to_write(tmp_path: Path) -> None:
    ways = ["print(1)", "typer.echo(1)", "sys.stdout.write('')", "logs.say('')", "from rich.console import Console"]
    path = tmp_path / "module.py"
    path.write_text("\n".join(ways))
    assert len(list(written_elsewhere(path))) == len(ways)
