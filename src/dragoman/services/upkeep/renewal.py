"""Two small loops over keys: `Renewer` writes the owners of our nodes and sessions before their TTL expires, `Sweeper`
removes nodes that have been offline for long.

The renewer also writes owners that a Redis which lost its last writes has forgotten; never one that names another
instance by now.
"""

from collections.abc import Callable, Collection

import structlog

from dragoman.store.nodes import Nodes
from dragoman.store.owners import Owners

log = structlog.get_logger(__name__)


class Renewer:
    def __init__(
        self,
        owners: Owners,
        instance: str,
        nodes: Callable[[], Collection[str]],
        sessions: Callable[[], Collection[str]],
        named: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`named`: the nodes that showed a token."""
        self._owners, self._instance, self._nodes, self._sessions = owners, instance, nodes, sessions
        self._named = named

    async def run_once(self) -> None:
        await self._owners.renew(self._instance, list(self._nodes()), list(self._sessions()), self._named())


class Sweeper:
    def __init__(self, nodes: Nodes, stale_after_ms: int) -> None:
        self._nodes, self._stale_after_ms = nodes, stale_after_ms

    async def run_once(self) -> list[str]:
        gone = await self._nodes.forget(self._stale_after_ms)
        if gone:
            log.info("removed nodes that were offline for long", count=len(gone), nodes=gone[:8])
        return gone
