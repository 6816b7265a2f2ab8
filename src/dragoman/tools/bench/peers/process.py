"""The process of a peer's worker, or of its producer: both are load processes of the bench."""

import asyncio
import logging
from typing import Any

from dragoman.tools.bench.load_process import play
from dragoman.tools.bench.peers.queue import Peer, peer

BATCH = 100  # enqueued at a time


class Played:
    def __init__(self) -> None:
        self._peer: Peer
        self._work: asyncio.Task[None] | None = None
        self._produced = 0

    async def work(self, name: str, url: str) -> None:
        self._peer = peer(name, url)
        self._work = asyncio.create_task(self._peer.work())

    async def connect(self, name: str, url: str) -> None:
        self._peer = peer(name, url)
        await self._peer.connect()

    async def produce(self, until: int) -> dict[str, Any]:
        """Go on until so many have been enqueued in all."""
        while self._produced < until:
            count = min(BATCH, until - self._produced)
            await self._peer.enqueue(count)
            self._produced += count
        return {"produced": self._produced}

    async def count(self) -> dict[str, Any]:
        if self._work is not None and self._work.done():
            self._work.result()
            raise RuntimeError("the worker has ended")
        return {"done": self._peer.done}


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    played = Played()
    play({"work": played.work, "connect": played.connect, "produce": played.produce, "count": played.count})


if __name__ == "__main__":
    main()
