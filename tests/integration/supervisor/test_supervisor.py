"""The supervisor with real workers and a real Redis: it starts, keeps and ends them."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import Config
from dragoman.embedded.engine import CommandFailed, wire
from support.waiting import alive, wait_for

Supervise = Callable[..., Any]


def redis_of(folder: Path) -> Path:
    return folder / "data" / "redis.sock"


def answers(path: Path) -> bool:
    try:
        with wire(path) as connection:
            return bool(connection.call("PING") == "PONG")
    except (OSError, CommandFailed):
        return False


def test_worker_gets_its_settings_and_the_start_is_counted(supervise: Supervise) -> None:
    supervisor = supervise(server={"workers": 2, "drain_s": 3.5})
    ready = supervisor.ready()
    assert ready["workers"] == ["worker 1, life 1", "worker 2, life 1"]
    assert 0 < ready["elapsed_s"] < 1.5
    for number in (1, 2):
        hello = supervisor.hello(number, 1)
        assert hello["number"] == number
        assert hello["redis_url"] == f"unix://{redis_of(supervisor.folder)}" == ready["url"]
        config = Config.from_json(json.dumps(hello["config"]))
        assert config.server.drain_s == 3.5
        # Port 0 is settled once: every worker shares the same.
        assert config.server.port == ready["port"] > 0


def test_the_supervisor_has_no_socket_and_each_child_a_session_of_its_own(supervise: Supervise) -> None:
    supervisor = supervise()
    port = supervisor.ready()["port"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    below = supervisor.below()
    assert len(below) == 2
    assert {os.getsid(pid) for pid in below} == set(below)


def test_with_a_shared_redis_none_is_started(supervise: Supervise) -> None:
    phase2 = {"enabled": True, "redis": {"url": "redis://127.0.0.1:1"}}
    supervisor = supervise(scheduler={"phase2": phase2})
    assert "redis" not in supervisor.ready()
    hello = supervisor.hello(1, 1)
    assert hello["redis_url"] is None
    assert supervisor.below() == [hello["pid"]]
    supervisor.send(signal.SIGTERM)
    assert supervisor.exit_code() == 0


def test_a_worker_that_died_is_started_again_and_the_others_go_on(supervise: Supervise) -> None:
    supervisor = supervise(server={"workers": 2})
    supervisor.ready()
    first, other = supervisor.hello(1, 1), supervisor.hello(2, 1)
    os.kill(first["pid"], signal.SIGKILL)
    second = supervisor.hello(1, 2)
    assert second["pid"] != first["pid"]
    assert second["config"] == first["config"]
    wait_for(lambda: "worker 1, life 2" in supervisor.output, "the worker to be ready again")
    assert alive(other["pid"])
    assert supervisor.output.count("READY ") == 1


def test_crash_loop_is_slowed_down_and_logged(supervise: Supervise) -> None:
    supervisor = supervise("ready-then-dies")
    supervisor.hello(1, 3)

    def ends() -> list[str]:
        return [line for line in supervisor.output.splitlines() if "worker_ended" in line]

    wait_for(lambda: len(ends()) >= 2, "two ends in the log")
    lines = ends()[:2]
    for pause_s, line in zip(("0.0", "0.5"), lines, strict=True):
        assert f"again_in_s={pause_s}" in line
    assert all("exit_code=7" in line for line in lines)
    supervisor.send(signal.SIGTERM)
    assert supervisor.exit_code() == 0


def test_redis_is_restarted_on_the_same_data(supervise: Supervise) -> None:
    supervisor = supervise(embedded={"fsync": "always"})
    ready = supervisor.ready()
    with wire(redis_of(supervisor.folder)) as connection:
        connection.call("SET", "kept", "yes")
    os.kill(ready["redis"], signal.SIGKILL)
    wait_for(lambda: not alive(ready["redis"]), "Redis to die")
    wait_for(lambda: answers(redis_of(supervisor.folder)), "Redis to answer again")
    with wire(redis_of(supervisor.folder)) as connection:
        assert connection.call("GET", "kept") == "yes"
    assert alive(supervisor.hello(1, 1)["pid"])
    wait_for(lambda: supervisor.output.count("redis_ready") == 2, "the restart to be told")
    assert "redis_ended" in supervisor.output
    assert str(supervisor.folder / "data" / "redis.log") in supervisor.output


def test_sigterm_drains_the_workers_while_redis_is_there_and_leaves_nothing(supervise: Supervise) -> None:
    supervisor = supervise(server={"workers": 2, "drain_s": 5.0})
    supervisor.ready()
    below = supervisor.below()
    assert len(below) == 3
    supervisor.send(signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert not any(alive(pid) for pid in below)
    again = supervise(folder=supervisor.folder)
    again.ready()
    with wire(redis_of(supervisor.folder)) as connection:
        assert connection.call("GET", "drained") == "2"


def test_ctrl_c_drains_as_well(supervise: Supervise) -> None:
    supervisor = supervise(server={"drain_s": 5.0})
    supervisor.ready()
    below = supervisor.below()
    supervisor.send(signal.SIGINT)
    assert supervisor.exit_code() == 0
    assert not any(alive(pid) for pid in below)


@pytest.mark.long
def test_a_worker_that_will_not_end_is_killed_a_little_after_its_drain(supervise: Supervise) -> None:
    supervisor = supervise("stubborn")
    supervisor.ready()
    below = supervisor.below()
    supervisor.send(signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert "worker_killed" in supervisor.output
    assert not any(alive(pid) for pid in below)


def test_a_second_signal_kills_at_once(supervise: Supervise) -> None:
    supervisor = supervise("stubborn", server={"workers": 2, "drain_s": 600.0})
    supervisor.ready()
    below = supervisor.below()
    supervisor.send(signal.SIGTERM)
    wait_for(lambda: "stopping" in supervisor.output, "the first signal to be noticed")
    assert all(alive(pid) for pid in below)
    began = time.monotonic()
    supervisor.send(signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert time.monotonic() - began < 3
    assert not any(alive(pid) for pid in below)


def test_second_signal_kills_a_redis_that_does_not_end(supervise: Supervise) -> None:
    supervisor = supervise(server={"drain_s": 0.0})
    redis, worker = supervisor.ready()["redis"], supervisor.hello(1, 1)["pid"]
    os.kill(redis, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)  # it would wait for Redis
    supervisor.send(signal.SIGTERM)
    wait_for(lambda: supervisor.below() == [redis], "the workers to end")
    began = time.monotonic()
    supervisor.send(signal.SIGINT)
    assert supervisor.exit_code() == 0
    assert time.monotonic() - began < 6  # the first signal gives Redis 10 s
    assert not alive(redis)


def test_a_signal_before_anything_is_ready_ends_everything(supervise: Supervise) -> None:
    supervisor = supervise(server={"workers": 2})
    wait_for(supervisor.below, "the first child")
    supervisor.send(signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert supervisor.below() == []


def test_workers_and_redis_die_with_a_supervisor_killed_9(supervise: Supervise) -> None:
    supervisor = supervise("stubborn", server={"workers": 2, "drain_s": 600.0})
    supervisor.ready()
    below = supervisor.below()
    assert len(below) == 3
    supervisor.send(signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in below), "all to die")
    # The port and the directory are free again.
    supervise(folder=supervisor.folder).ready()


def test_twice_in_a_row_on_the_same_port_keeps_the_data(supervise: Supervise) -> None:
    first = supervise()
    port = first.ready()["port"]
    with wire(redis_of(first.folder)) as connection:
        connection.call("SET", "kept", "yes")
    first.send(signal.SIGTERM)
    assert first.exit_code() == 0
    second = supervise(folder=first.folder, server={"port": port})
    assert second.ready()["port"] == port
    with wire(redis_of(first.folder)) as connection:
        assert connection.call("GET", "kept") == "yes"


def refused(supervisor: Any) -> str:
    """The output of a supervisor that ended by itself with exit code 1 and left nothing."""
    assert supervisor.exit_code() == 1, supervisor.output
    assert "Traceback" not in supervisor.output
    return str(supervisor.output)


def test_port_in_use_is_reported_in_one_sentence(supervise: Supervise) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        supervisor = supervise(server={"port": port})
        expected = (
            f"dragoman: Port {port} on 127.0.0.1 is taken by another program. "
            "Stop that program, or set another server.port."
        )
        assert refused(supervisor).strip() == expected
    assert not (supervisor.folder / "data").exists()


def test_a_worker_that_cannot_start_ends_everything_with_its_sentence(supervise: Supervise) -> None:
    supervisor = supervise("refuses", server={"workers": 2, "drain_s": 600.0})
    told = refused(supervisor).strip().splitlines()
    assert told[-1] == "dragoman: Set security.secret: the address is not a loopback."
    # Either of the two may have ended it before the other had begun.
    hellos = [json.loads(path.read_text()) for path in supervisor.folder.glob("?-1.json")]
    assert hellos
    assert not any(alive(hello["pid"]) for hello in hellos)
    assert not answers(redis_of(supervisor.folder))


def test_a_worker_that_could_start_before_is_tried_again(supervise: Supervise) -> None:
    supervisor = supervise("refuses-later")
    supervisor.ready()
    os.kill(supervisor.hello(1, 1)["pid"], signal.SIGKILL)
    supervisor.hello(1, 3)
    assert "worker_failed" in supervisor.output
    assert "Set security.secret" in supervisor.output
    assert supervisor.process.poll() is None


@pytest.mark.parametrize("strange", ["mute", "closes-pipe"])
def test_a_worker_that_never_becomes_ready_is_given_up(supervise: Supervise, strange: str) -> None:
    assert "Worker 1 ended 3 times before it was ready" in refused(supervise(strange))


def test_a_directory_in_use_is_one_sentence_with_the_pid(supervise: Supervise, tmp_path: Path) -> None:
    first = supervise()
    pid = first.ready()["redis"]
    second = supervise(folder=tmp_path / "second", embedded={"data_dir": str(first.folder / "data")})
    assert f"is in use by another server (pid {pid})" in refused(second)
    assert answers(redis_of(first.folder))


def test_a_redis_that_cannot_be_used_is_one_sentence(supervise: Supervise) -> None:
    told = refused(supervise(embedded={"redis_server": "/nowhere/redis-server"})).strip()
    assert told == (
        "dragoman: embedded.redis_server names /nowhere/redis-server, which does not exist: "
        "name a redis-server or valkey-server."
    )


def test_redis_that_exits_while_starting_is_reported_with_its_log(supervise: Supervise, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.0.0 sha=0:0" && exit 0\necho "out of luck"\nexit 9\n'
    )
    broken.chmod(0o755)
    supervisor = supervise(embedded={"redis_server": str(broken)})
    told = refused(supervisor)
    assert "ended with exit code 9 while starting" in told
    assert "out of luck" in told
    assert supervisor.below() == []
