"""What a peer is to us, and which there are. Its package is imported only in the process that runs it."""

from abc import ABC, abstractmethod
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

CONCURRENCY = 100
RESULT_TTL_S = 3600
QUEUE = "bench"

PEERS = {"taskiq": "taskiq-redis", "streaq": "streaq", "saq": "saq"}
"""The module here and the distribution it needs, by name."""


class Peer(ABC):
    """One task queue on the Redis at `url`, as its worker or as its producer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.done = 0

    @abstractmethod
    async def work(self) -> None:
        """One worker, CONCURRENCY tasks at a time, until cancelled; every task run is counted in `done`."""

    @abstractmethod
    async def connect(self) -> None:
        """Before anything is enqueued."""

    @abstractmethod
    async def enqueue(self, count: int) -> None:
        """So many no-op tasks."""


def peer(name: str, url: str) -> Peer:
    made: Peer = import_module(f"dragoman.tools.bench.peers.{name}").make(url)
    return made


def release(name: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(PEERS[name])
    except PackageNotFoundError:
        return None
