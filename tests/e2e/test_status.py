"""`dragoman status`: the cluster in one look, or watched."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from dragoman.cli.main import run
from dragoman.embedded.engine import free_port
from support.commands import Dragoman, answer, serve
from support.waiting import wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dragoman]:
    name = "dragoman-7f9c8d6b5-x2x9k-a1b2"
    with serve(tmp_path_factory.mktemp("server"), "--set", f"scheduler.phase2.instance_id={name}") as running:
        yield running.until("Dragoman is ready after")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # is for others, not for this machine


def told(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(["status", *args]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    assert run(["status", *args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.strip()


def test_status_explains_how_to_start_a_node_when_there_is_none(
    server: Dragoman, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = told(capsys, "--url", server.base)
    assert "1 instance, 0 nodes, durability process" in shown
    assert "No node is connected. Start one: dragoman node --engine sim" in shown
    assert "dead letter" not in shown


def test_status_json_is_the_answer_of_the_api(server: Dragoman, capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(told(capsys, "--url", server.base, "--json"))
    assert shown["instances"][0]["alive"] is True
    assert shown["nodes"] == []


def test_status_cuts_no_name_on_a_terminal_of_80_columns(server: Dragoman, tmp_path: Path) -> None:
    """And watching shows a node that comes; Ctrl-C ends it without a word."""
    url = f"ws://{server.base}/ws/node"
    with Dragoman(tmp_path / "watch", "status", "--watch", "--url", server.base, tty=True) as watch:
        watch.until("No node is connected.")
        with Dragoman(tmp_path / "node", "node", "--url", url, "--node-id", "node-on-the-other-side"):
            watch.until("node-on-the-other-side")
            assert watch.end() == 0
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", watch.out)
        assert "dragoman-7f9c8d6b5-x2x9k-a1b2 " in shown
        assert max(len(line.rstrip("\r")) for line in re.split(r"[\n\r]", shown)) <= 80
        assert "Traceback" not in shown
    wait_for(lambda: server.get("/api/v1/cluster")[1]["node_count"] == 0, "the node to be gone")


def test_status_watch_goes_on_while_the_server_is_down(tmp_path: Path) -> None:
    with serve(tmp_path / "server", "--set", "server.drain_s=0") as server:
        base = server.base
        with Dragoman(tmp_path / "watch", "status", "--watch", "--url", base, tty=True) as watch:
            watch.until("1 instance")
            assert server.end() == 0
            watch.until("Retrying every second; Ctrl-C ends.")
            assert watch.end() == 0


def test_status_without_a_server_prints_one_sentence(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, out, err = answer(tmp_path, "status", "--url", url)
    assert (code, out) == (1, "")
    assert err == (
        f"dragoman: Dragoman does not answer at {url} ([Errno 111] Connection refused). "
        "Start it, or give its address with --url.\n"
    )


def test_status_gives_up_on_a_server_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.api.TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert refused(capsys, 1, "--url", url).startswith(f"dragoman: Dragoman does not answer at {url} (timed out)")


def test_status_asks_for_a_missing_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-secret-of-more-than-thirty-two-bytes"
    with serve(tmp_path / "guarded", env={"DRAGOMAN_SECURITY__SECRET": secret}) as guarded:
        sentence = refused(capsys, 1, "--url", guarded.base)
        assert sentence == "dragoman: Dragoman answers: a token is needed. Give one with --token."
        token = jwt.encode({"iss": "dragoman", "exp": time.time() + 60, "typ": "operator", "sub": "o"}, secret)
        assert "1 instance" in told(capsys, "--url", guarded.base, "--token", token)
        monkeypatch.setenv("DRAGOMAN_OPERATOR_TOKEN", token)
        assert "1 instance" in told(capsys, "--url", guarded.base)
