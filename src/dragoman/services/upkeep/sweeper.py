"""Takes nodes that have been gone for long out of `nodes:all`, by `last_seen`."""

import structlog

from dragoman.store.nodes import Nodes

log = structlog.get_logger(__name__)


class Sweeper:
    def __init__(self, nodes: Nodes, stale_after_ms: int) -> None:
        self._nodes, self._stale_after_ms = nodes, stale_after_ms

    async def run_once(self) -> list[str]:
        gone = await self._nodes.forget(self._stale_after_ms)
        if gone:
            log.info("forgot nodes not heard for long", count=len(gone), nodes=gone[:8])
        return gone
