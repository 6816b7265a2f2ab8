"""Text from others cannot control the operator's terminal, and all commands print through one module."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman.cli
from dragoman.cli import chat_terminal
from dragoman.cli.api import Api
from dragoman.cli.main import run
from dragoman.cli.output import Failure
from support.tables import for_each

PACKAGE = Path(dragoman.cli.__file__).parents[1]
COMMANDS = sorted(path for found in ("cli/*.py", "tools/*.py", "tools/*/cli.py") for path in PACKAGE.glob(found))
NASTY = "\x1b]52;c;cm0gLXJm\x07\r\x9b2J\u202e\n2026-11-18  olga  drain  all  done[/oops][red]:bomb:"


def has_control_characters(text: str) -> bool:
    return any(not char.isprintable() and char != "\n" for char in text)


def answers(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """The API gives this answer to the command."""
    for name in ("get", "get_list"):
        monkeypatch.setattr(Api, name, lambda *_: answer)


def test_status_escapes_names_of_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    languages = {"asr": [NASTY], "semantic": [NASTY], "tts": []}
    at = {"instance": NASTY, "alive": True, "durability": "[/oops]", "version": NASTY, "inbox": {"waiting": 0}}
    one = {"node_id": NASTY, "instance": NASTY, "slots": 4, "reserved": 1, "draining": False, "languages": languages}
    one |= {"ready": [NASTY, "[/oops]"], "cooling_until_ms": {NASTY: 9_000}}
    told = {"instances": [at], "nodes": [one], "node_count": 1, "dead_letters": {}, "now_ms": 1}
    answers(monkeypatch, told)
    assert run(["status"]) == 0
    shown = capsys.readouterr().out
    assert not has_control_characters(shown)
    assert "[/oops]" in shown
    assert ":bomb:" in shown


def test_dlq_list_escapes_the_content_of_dead_letters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"instance": "a", "id": "1-0", "kind": NASTY, "deliveries": 1, "size": 1, "dead_ms": 1, "reason": NASTY}
    answers(monkeypatch, [row])
    assert run(["dlq", "list"]) == 0
    shown = capsys.readouterr().out
    assert not has_control_characters(shown)
    assert len(shown.splitlines()) == 2


def test_audit_escapes_its_entries(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"at_ms": 1, "tenant": NASTY, "who": NASTY, "action": "drain", "target": NASTY, "detail": NASTY}
    answers(monkeypatch, {"entries": [row], "next": ""})
    assert run(["audit"]) == 0
    shown = capsys.readouterr().out
    assert not has_control_characters(shown)
    assert len(shown.splitlines()) == 1


def test_explain_escapes_what_a_node_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    past = [{"attempt": 1, "node_id": NASTY, "reason": NASTY}]
    job = {"job_id": "j", "src_lang": NASTY, "outcome": "failed", "code": NASTY, "message": NASTY, "attempts": past}
    answers(monkeypatch, job)
    assert run(["explain", "j"]) == 0
    assert not has_control_characters(capsys.readouterr().out)


def test_line_chat_escapes_messages_and_their_tabs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat_terminal._print("from bob", "1", f"hi\tsaved\t2\t{NASTY}")
    shown = capsys.readouterr().out
    assert (shown.count("\t"), shown.count("\n")) == (2, 1)
    assert not has_control_characters(shown.replace("\t", ""))


def test_error_of_a_server_is_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> Any:
        raise Failure(NASTY)

    monkeypatch.setattr(Api, "get", refuse)
    assert run(["status"]) == 1
    assert not has_control_characters(capsys.readouterr().err)


# -- all commands print through it


def written_elsewhere(path: Path) -> Iterator[str]:
    """Calls and imports with which a module would write to standard output or error itself."""
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
def test_command_prints_only_through_output(path: Path) -> None:
    if path.name != "output.py":
        assert list(written_elsewhere(path)) == []


def test_check_finds_every_way_to_write(tmp_path: Path) -> None:
    ways = ["print(1)", "typer.echo(1)", "sys.stdout.write('')", "logs.say('')", "from rich.console import Console"]
    path = tmp_path / "module.py"
    path.write_text("\n".join(ways))
    assert len(list(written_elsewhere(path))) == len(ways)
