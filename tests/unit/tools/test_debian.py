import os
from pathlib import Path

import pytest

from dragoman.tools import debian


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One where we are root and whose only programs are those a test puts there; what apt-get was told is in `told`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho $0 $* >> {folder}/told\n{script}\n")
    path.chmod(0o755)


def told(folder: Path) -> list[str]:
    return [line.rpartition(f"Timeout={debian._LOCK_S} ")[2] for line in (folder / "told").read_text().splitlines()]


WANTED = "install -y -q --no-install-recommends espeak-ng"


def test_it_asks_once_where_the_lists_are_fresh(machine: Path) -> None:
    program(machine, "apt-get", "exit 0")
    assert debian.install(["espeak-ng"]) == ""
    assert told(machine) == [WANTED]


def test_it_asks_for_lists_where_they_are_not_and_gives_up_after_that(machine: Path) -> None:
    program(machine, "apt-get", "exit 100")
    assert debian.install(["espeak-ng"]) == "apt-get could not get them; is there a network?"
    assert told(machine) == [WANTED, "update -q", WANTED]


def test_it_does_not_take_longer_than_it_may(machine: Path) -> None:
    program(machine, "apt-get", "exec /bin/sleep 60")
    assert debian.install(["espeak-ng"], 0.3) == "it was not done within 0.3 s"


def test_without_apt_or_without_being_root_it_says_so(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert debian.install(["espeak-ng"]) == "there is no apt-get"
    program(machine, "apt-get", "exit 0")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert debian.install(["espeak-ng"]) == "only root may install packages"
    assert not os.path.exists(machine / "told")


def test_installed_packages_are_not_requested(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert debian.lacking(["espeak-ng"]) == ["espeak-ng"]  # without dpkg nothing is known
    program(machine, "dpkg-query", 'case "$*" in *chromium) exit 1;; *) printf installed;; esac')
    assert debian.lacking(["espeak-ng", "chromium"]) == ["chromium"]
    assert debian.main(["espeak-ng"]) == 0
    assert capsys.readouterr() == ("", "")


def test_failed_installation_prints_the_reason_alone_to_standard_output(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert debian.main(["--timeout", "7", "espeak-ng", "chromium"]) == 1
    told = "dragoman: installing espeak-ng chromium with apt-get, at most 7 s …\n"
    assert capsys.readouterr() == ("there is no apt-get\n", told)
