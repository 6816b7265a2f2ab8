"""`dragoman chat` on a real server: two terminals, and two scripts."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Dragoman, environment, serve

UTF8 = {"LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with serve(
        folder, "--set", "chat.two_phase.enabled=true", "--set", "limits.login_attempts_per_minute=1000"
    ) as running:
        yield running.base


def terminal(folder: Path, server: str, me: str, to: str) -> Dragoman:
    return Dragoman(folder / me, "chat", "--as", me, "--to", to, "--url", server, tty=True, env=UTF8)


def press(command: Dragoman, keys: str) -> None:
    assert command._terminal is not None
    os.write(command._terminal, keys.encode())


def script(server: str, me: str, to: str, lines: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman.cli.main", "chat", "--as", me, "--to", to, "--url", server]
    return subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=60, env=environment(**UTF8, **env), check=False
    )


def test_two_users_chat_and_see_the_receipts_of_their_messages(server: str, tmp_path: Path) -> None:
    with terminal(tmp_path, server, "ann", "ben") as ann:
        ann.until("ben has not logged in yet. Waiting")
        with terminal(tmp_path, server, "ben", "ann") as ben:
            ann.until("ann (user")
            ben.until("ben (user")
            press(ann, "hallo wörld\r")
            ben.until("ann: hallo wörld")
            for marks in ("✓ ", "✓✓ ", "✓✓ ●"):
                ann.until(f"{marks}")
            press(ben, "hi ann\r")
            ann.until("ben: hi ann")
            ben.until("✓✓ ●")
            press(ann, "/quit\r")
            assert ann.exit_code() == 0
            assert ben.end() == 0


def test_history_is_shown_and_ctrl_d_ends_the_chat(server: str, tmp_path: Path) -> None:
    script(server, "dora", str(10**9), "")
    assert script(server, "carl", "dora", "first\nsecond\n").returncode == 0
    with terminal(tmp_path, server, "dora", "carl") as dora:
        dora.until("carl: second")
        assert dora.out.index("carl: first") < dora.out.index("carl: second")
        press(dora, "\x04")
        assert dora.exit_code() == 0


def test_script_sends_lines_and_gets_the_outcome_of_each(server: str) -> None:
    script(server, "fay", str(10**9), "")
    done = script(server, "eve", "fay", "one\n\ntwo\n" + "x" * 5000 + "\nthree")
    told = [line.split("\t") for line in done.stdout.splitlines()]
    assert sorted((what, text[:5]) for what, _, text in told) == sorted(
        [("saved", "one"), ("saved", "two"), ("failed", "xxxxx"), ("saved", "three")]
    )
    assert [text for what, _, text in told if what == "saved"] == ["one", "two", "three"]
    assert done.returncode == 1
    assert "logs in with a well-known password" in done.stderr


def test_account_with_a_password_needs_it(server: str) -> None:
    assert script(server, "gus", str(10**9), "hi\n", DRAGOMAN_CHAT_PASSWORD="mine").returncode == 0
    refused = script(server, "gus", str(10**9), "hi\n")
    assert refused.returncode == 2
    assert "Set DRAGOMAN_CHAT_PASSWORD to the password of gus." in refused.stderr
    wrong = script(server, "gus", str(10**9), "hi\n", DRAGOMAN_CHAT_PASSWORD="yours")
    assert "The password is wrong" in wrong.stderr
