import io
import json
import re
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

import dragoman
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.report import Report, commit, machine, number, rounded, table


@pytest.fixture
def report() -> Report:
    made = Report({"seconds": 1.0}, commit="abc", machine={"cores": 2})
    made.figures = {"single_job_1_per_s": 1234.56, "single_ping_p50_us": 25.4567}
    made.ratios = {"vs_redis_py_1000": 12.3456}
    return made


def test_the_file_holds_what_was_promised(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "commit": "abc",
        "machine": {"cores": 2},
        "settings": {"seconds": 1.0},
        "figures": {"single_job_1_per_s": 1235, "single_ping_p50_us": 25.46},
        "ratios": {"vs_redis_py_1000": 12.35},
    }


def test_a_file_that_cannot_be_written_is_told_in_a_sentence(report: Report, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"^The figures cannot be written to .*: Is a directory\.$"):
        report.write(tmp_path)


def test_tables_and_notes_are_shown_in_order(report: Report) -> None:
    report.tables.append(table("jobs", ["at a time", "jobs/s"], [["100", "4,000"]]))
    report.notes.append("Left out: nobody.")
    shown = io.StringIO()
    report.show(Console(file=shown, width=60))
    words = shown.getvalue().split()
    assert words[:5] == ["jobs", "at", "a", "time", "jobs/s"]
    assert words[-5:] == ["100", "4,000", "Left", "out:", "nobody."]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0231, "0.02"), (7.0, "7.00"), (25.46, "25.5"), (99.96, "100.0"), (170918.2, "170,918")],
)
def test_numbers_have_the_digits_people_need(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_unit_follows_a_number_but_no_dash() -> None:
    assert number(12.0, " ×") == "12.0 ×"
    assert number(None, " ×") == "–"


@pytest.mark.parametrize(("value", "kept"), [(0.0123456, 0.01235), (0.0, 0.0), (999.96, 1000.0), (170918.6, 170919)])
def test_four_digits_are_kept(value: float, kept: float) -> None:
    assert rounded(value) == kept


def test_the_machine_is_told_without_its_name() -> None:
    told = machine()
    assert told.keys() == {"cpu", "cores", "memory_gib", "system", "python", "load_before"}


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=T", "-c", "user.email=t@t.invalid"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as if it lay in a repository of its own, tracked and committed."""
    home = tmp_path / "src"
    home.mkdir()
    (home / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    monkeypatch.setattr(dragoman, "__file__", str(home / "__init__.py"))
    return home


def test_the_commit_is_that_of_the_package(package: Path) -> None:
    (package.parent / "notes").write_text("beside the package")
    assert re.fullmatch(r"[0-9a-f]{40}", commit())


def test_a_changed_package_is_dirty(package: Path) -> None:
    (package / "__init__.py").write_text("x = 1")
    assert re.fullmatch(r"[0-9a-f]{40}-dirty", commit())


def test_an_installed_copy_in_somebody_elses_repository_has_no_commit(package: Path) -> None:
    git(package.parent, "rm", "-q", "--cached", "src/__init__.py")
    assert commit() == "unknown"


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert commit() == "unknown"
