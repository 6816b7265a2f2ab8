"""A Redis Cluster of three masters with a replica each, for tests, from any server that `find_server` accepts.

Nodes 0, 1, 2 begin as the masters of one third of the slots each, node n + 3 as the replica of node n. It is built with
the commands Redis 6.2 knows, without redis-cli. A master counts two seconds after its start before it serves
(CLUSTER_WRITABLE_DELAY, not configurable): that is the time this takes, and everything else happens meanwhile.
Nothing here is kept: `stop` kills.
"""

import binascii
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from dragoman.embedded.binary import EngineError, ServerBinary, ServerEnded
from dragoman.embedded.engine import CommandFailed, RedisServer, Wire, free_port, wire

MASTERS = 3
SLOTS = 16384
_START_TRIES = 20


def key_slot(key: str | bytes) -> int:
    """The slot of a key: of what stands between the first braces, if anything does."""
    raw = key.encode() if isinstance(key, str) else key
    opening = raw.find(b"{")
    closing = raw.find(b"}", opening + 1)
    if opening >= 0 and closing > opening + 1:
        raw = raw[opening + 1 : closing]
    return binascii.crc_hqx(raw, 0) % SLOTS


def first_slot(master: int) -> int:
    return master * SLOTS // MASTERS


class RedisCluster:
    def __init__(
        self,
        binary: ServerBinary,
        directory: Path,
        *,
        node_timeout_ms: int = 1500,
        appendonly: bool = False,
        fsync: str = "everysec",
        settings: dict[str, str] | None = None,
        patience_s: float = 20.0,
    ) -> None:
        self.binary = binary
        self._patience_s = patience_s
        self._options = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(node_timeout_ms),
            # A replica is always willing to take over, and stays with the master it was given.
            "cluster-replica-validity-factor": "0",
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
            **(settings or {}),
        }
        self.nodes = [
            RedisServer(binary, directory / f"node-{n}", appendonly=appendonly, fsync=fsync, settings=self._options)
            for n in range(2 * MASTERS)
        ]

    @property
    def urls(self) -> list[str]:
        return [node.tcp_url for node in self.nodes]

    def start(self) -> None:
        self.start_nodes()
        with ExitStack() as stack:
            wires = [stack.enter_context(wire(node.socket_path)) for node in self.nodes]
            ids = [str(each.call("CLUSTER", "MYID")) for each in wires]
            for n, each in enumerate(wires):
                # Distinct from the start: nodes that find two equal epochs need several rounds to agree. And before
                # any of them meets another: it is refused afterwards.
                each.call("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
                if n < MASTERS:
                    each.call("CLUSTER", "ADDSLOTS", *range(first_slot(n), first_slot(n + 1)))
            for n, each in enumerate(wires):
                # Each meets each: gossip would spread the news too, but at its own pace.
                for other in self.nodes[n + 1 :]:
                    each.call("CLUSTER", "MEET", "127.0.0.1", other.port or 0)
            for n in range(MASTERS):
                self._wait(_is_replica_of(wires[n + MASTERS], ids[n]), f"node {n + MASTERS} to know its master")
            self._wait(lambda: all(_complete(each) for each in wires), "every node to call the Cluster complete")

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
            node.stop()

    def master_of(self, where: int | str | bytes) -> RedisServer:
        """The node that serves a slot (a number) or a key now, as a living node tells it."""
        slot = where if isinstance(where, int) else key_slot(where)
        for node in self.nodes:
            if not node.running:
                continue
            for low, high, master, *_ in node.call("CLUSTER", "SLOTS"):
                if low <= slot <= high:
                    return next(each for each in self.nodes if each.port == master[1])
        raise EngineError(f"No node of the Cluster serves slot {slot}.")

    def kill_master(self, number: int) -> RedisServer:
        """-9 to the node that serves the given third (0, 1, 2) now; `start()` on what is returned brings it back."""
        master = self.master_of(first_slot(number))
        master.kill()
        return master

    def wait_failover(self, dead: RedisServer) -> None:
        """Return when every living node calls the Cluster complete and none counts on `dead`."""
        living = [node for node in self.nodes if node.running]

        def taken_over() -> bool:
            return all(_state(node.call("CLUSTER", "INFO")) == "ok" and not _serves(node, dead) for node in living)

        self._wait(taken_over, "a replica to take over")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start_nodes(self) -> None:
        """The processes alone, all at once; one whose port another test process snatched away gets another."""
        waiting: Sequence[RedisServer] = self.nodes
        for _ in range(_START_TRIES):
            taken = {node.port for node in self.nodes}
            for node in waiting:
                node.port = _port_beside(taken)
                taken.add(node.port)
                node.prepare()
                node.launch()
            waiting = [node for node in waiting if not _came_up(node)]
            if not waiting:
                return
        raise EngineError("No ports were found for the nodes of a Cluster.")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + self._patience_s
        while not condition():
            if time.monotonic() > until:
                logs = "\n".join(f"{node.log_path}: {node.log_tail(2)}" for node in self.nodes)
                raise EngineError(f"Waited {self._patience_s:g} s in vain for {what}.\n{logs}")
            time.sleep(0.02)


def _port_beside(taken: set[int | None]) -> int:
    while (port := free_port(with_bus=True)) in taken:
        pass
    return port


def _came_up(node: RedisServer) -> bool:
    try:
        node.wait_ready()
    except ServerEnded as error:
        if not error.port_was_taken:
            raise
        return False
    return True


def _is_replica_of(replica: Wire, master_id: str) -> Callable[[], bool]:
    def told() -> bool:
        try:
            return bool(replica.call("CLUSTER", "REPLICATE", master_id) == "OK")
        except CommandFailed as error:
            if "Unknown node" in str(error):
                return False
            raise

    return told


def _state(info: str) -> str:
    return info.split("cluster_state:", 1)[1].split("\r\n", 1)[0]


def _serves(node: RedisServer, suspect: RedisServer) -> bool:
    return any(master[1] == suspect.port for _, _, master, *_ in node.call("CLUSTER", "SLOTS"))


def _complete(each: Wire) -> bool:
    """The node serves, knows every third with its replica, and is in step with its own master or replica."""
    if _state(each.call("CLUSTER", "INFO")) != "ok":
        return False
    thirds = each.call("CLUSTER", "SLOTS")
    if len(thirds) != MASTERS or any(len(third) != 4 for third in thirds):
        return False
    replication = each.call("INFO", "replication")
    return "master_link_status:up" in replication or "state=online" in replication
