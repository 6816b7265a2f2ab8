"""The Redis under test: started for the bench in a directory of its own, gone with it.

It keeps no append-only file: what is measured is the way to Redis and back, not the disk of the machine.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.tools.redis_cluster import MASTERS, RedisCluster

Mode = Literal["single", "cluster"]

# A node that is only starved of CPU by the load is not to be voted out of the Cluster. Set when it stands: nodes that
# are this patient from the beginning take as long to find each other.
_NODE_TIMEOUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class Servers:
    """One server, or the six of a Cluster, masters first."""

    mode: Mode
    urls: Sequence[str]
    nodes: Sequence[RedisServer]

    @property
    def clustered(self) -> bool:
        return self.mode == "cluster"

    def clear(self) -> None:
        """Forget every key; scripts stay loaded."""
        for node in self.nodes[:MASTERS]:
            node.call("FLUSHALL", "SYNC")

    def cpu_s(self) -> float:
        """CPU time of all of them so far, replicas included."""
        return sum(cpu_seconds(node.call("INFO", "cpu")) for node in self.nodes)


def cpu_seconds(info: str) -> float:
    wanted = ("used_cpu_sys:", "used_cpu_user:")
    return sum(float(line.partition(":")[2]) for line in info.splitlines() if line.startswith(wanted))


@contextmanager
def running(mode: Mode, binary: ServerBinary) -> Iterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        if mode == "cluster":
            with RedisCluster(binary, Path(folder)) as cluster:
                for node in cluster.nodes:
                    node.call("CONFIG", "SET", "cluster-node-timeout", _NODE_TIMEOUT_MS)
                yield Servers(mode, cluster.urls, cluster.nodes)
        else:
            with RedisServer(binary, Path(folder) / "data", port=CHOOSE_PORT, appendonly=False) as server:
                yield Servers(mode, [server.tcp_url], [server])
