"""Writes what this instance owns again and again: owners of its nodes and sessions, before their TTL runs out.

Also what a Redis that came back without its last writes has forgotten; never what is somebody else's by now.
"""

from collections.abc import Callable, Collection

from dragoman.store.owners import Owners


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
