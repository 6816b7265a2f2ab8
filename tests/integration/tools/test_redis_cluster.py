"""A Cluster of the newest and of the oldest server that we support."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.embedded import engine
from dragoman.embedded.binary import ServerBinary
from dragoman.tools import redis_cluster as clusters
from dragoman.tools.redis_cluster import RedisCluster, first_slot, key_slot
from support.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture(params=["server_binary", "old_server_binary"])
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
