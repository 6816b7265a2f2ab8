"""`dragoman db` as an operator has it, on both databases."""

import json
import re
from pathlib import Path

import pytest

from dragoman.archive import schema
from dragoman.archive.schema import Script
from dragoman.cli.main import run
from dragoman.embedded.engine import free_port

NAMES = [script.name for script in schema.scripts("sqlite")]


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_status_before_and_after_migrating(capsys: pytest.CaptureFixture[str], sql_url: str) -> None:
    at = ["--set", f"archive.url={sql_url}"]
    assert run(["db", "status", *at]) == 0
    assert "There are no tables yet" in capsys.readouterr().out
    assert run(["db", "migrate", *at]) == 0
    assert f"applied {NAMES[0]}" in capsys.readouterr().out
    assert run(["db", "migrate", *at]) == 0
    assert "The tables are up to date." in capsys.readouterr().out
    assert run(["db", "status", *at]) == 0
    told = capsys.readouterr().out
    assert re.search(rf"{NAMES[0]}  applied \d{{4}}-", told)
    assert told.endswith("The tables are up to date.\n")


def test_json_for_programs(capsys: pytest.CaptureFixture[str], sql_url: str) -> None:
    at = ["--json", "--set", f"archive.url={sql_url}"]
    assert run(["db", "migrate", *at]) == 0
    assert json.loads(capsys.readouterr().out)["applied"] == NAMES
    assert run(["db", "status", *at]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["usable"] is True
    assert [row["name"] for row in told["migrations"]] == NAMES
    assert all(row["applied_ms"] for row in told["migrations"])


def test_with_nothing_configured_it_is_a_file_in_the_data_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["db", "status"]) == 0
    assert f"Database: {tmp_path}/data/chat.sqlite3" in capsys.readouterr().out
    assert not (tmp_path / "data").exists()
    assert run(["db", "migrate"]) == 0
    assert (tmp_path / "data/chat.sqlite3").exists()


def test_a_server_that_is_not_there_is_one_sentence_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--set", f"archive.url=postgresql://me:hushhush@127.0.0.1:{free_port()}/chat"]
    for command in (["status"], ["migrate"], ["status", "--json"]):
        assert run(["db", *command, *at]) == 1
        told = capsys.readouterr()
        assert "hushhush" not in told.out + told.err
        assert "cannot be used" in told.out + told.err


def test_database_of_a_newer_release_is_reported_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        known = [*schema.scripts("sqlite"), Script("0999_later", "CREATE TABLE later (id INTEGER PRIMARY KEY);")]
        newer.setattr(schema, "scripts", lambda dialect: known)
        assert run(["db", "migrate"]) == 0
    capsys.readouterr()
    for command in (["status"], ["migrate"]):
        assert run(["db", *command]) == 1
        assert "newer Dragoman" in capsys.readouterr().err


def test_a_url_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "status", "--set", "archive.url=mysql://host/chat"]) != 0
    assert "archive.url" in capsys.readouterr().err
