"""`dragoman demo`, which `make run` starts: a server and its nodes, and one Ctrl-C for all of it."""

import json
import re
import time
from pathlib import Path
from typing import Any

import jwt

from support.commands import Dragoman, answer, serve
from support.waiting import alive, wait_for

SECRET = "a-secret-of-more-than-thirty-two-bytes"


def nodes(demo: Dragoman, **headers: str) -> list[dict[str, Any]]:
    status, told = demo.get("/api/v1/cluster", **headers)
    assert status == 200
    return list(told["nodes"])


def test_demo_prints_its_addresses_registers_its_nodes_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    with serve(tmp_path, "--nodes", "2", "--engine", "sim", command="demo") as demo:
        demo.until("Ctrl-C ends everything.")
        assert "2 simulated nodes: no real translation, as requested by --engine sim." in demo.out
        assert f"dragoman status --watch --url {demo.base}" in demo.out
        wait_for(lambda: len(nodes(demo)) == 2, "both nodes")
        code, shown, err = answer(tmp_path / "status", "status", "--url", demo.base)
        assert (code, err) == (0, "")
        assert "1 instance, 2 nodes, durability process" in shown
        assert [line.split()[:3] for line in shown.splitlines() if line.startswith("sim-")] == [
            ["sim-1", "#1", "0/4"],
            ["sim-2", "#1", "0/4"],
        ]
        below = demo.below()
        assert len(below) >= 4  # Redis, the instance and two nodes
        assert demo.end() == 0
        assert not any(map(alive, below))
        lines = [json.loads(line) for line in demo.err.splitlines()]
        assert [line for line in lines if line["level"] not in ("info", "debug")] == []


def test_demo_starts_as_many_instances_as_workers_are_asked_for_and_speech_is_translated(tmp_path: Path) -> None:
    with serve(tmp_path, "--workers", "2", "--engine", "sim", command="demo") as demo:
        demo.until("Ctrl-C ends everything.")
        assert "with 2 instances" in demo.out
        wait_for(lambda: len(nodes(demo)) == 2, "both nodes")
        status, cluster = demo.get("/api/v1/cluster")
        assert (status, len(cluster["instances"])) == (200, 2)
        code, shown, err = answer(tmp_path / "say", "say", "--sample", "--fast", "--url", demo.base)
        assert (code, err) == (0, "3 utterances translated.\n")
        assert shown.count("[es] utterance") == 3
        below = demo.below()
        assert demo.end() == 0
        assert not any(map(alive, below))


def test_demo_gives_its_nodes_a_token_when_a_secret_is_set(tmp_path: Path) -> None:
    with serve(tmp_path, "--engine", "sim", command="demo", env={"DRAGOMAN_SECURITY__SECRET": SECRET}) as demo:
        claims = {"iss": "dragoman", "exp": time.time() + 86_400, "typ": "operator", "sub": "o"}
        operator = f"Bearer {jwt.encode(claims, SECRET)}"
        demo.until("Ctrl-C ends everything.")
        wait_for(lambda: nodes(demo, Authorization=operator), "the node")
        for pid in demo.below():
            assert b"eyJ" not in _command_line(pid)
        assert demo.end() == 0
        assert "eyJ" not in demo.out + demo.err


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended, or this system has no such files


def test_demo_has_a_room_and_the_next_run_finds_it_again(tmp_path: Path) -> None:
    rooms = []
    for env in ({}, {"DRAGOMAN_SECURITY__SECRET": SECRET}):
        with serve(tmp_path, "--engine", "sim", command="demo", env=env) as demo:
            demo.until("Ctrl-C ends everything.")
            found = re.search(r"^  room      http://(\S+)/room/(\S+)   \(code (\d{6})\)$", demo.out, re.M)
            assert found is not None, demo.out
            assert found[1] == demo.base
            assert demo.get(f"/room/{found[2]}")[0] == 200
            rooms.append((found[2], found[3]))
            assert demo.end() == 0
    assert rooms[0] == rooms[1]
