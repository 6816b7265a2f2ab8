"""One survivor buries a dead instance: its inbox in order, then its jobs, sessions and nodes, then its name.

    presence gone ─▶ lock ─▶ mark `open` ─▶ presence still gone? ─▶ inbox ─▶ jobs ─▶ sessions ─▶ nodes ─▶ close

Marking before looking again, while the living look at the mark after writing presence, means that one of the
two notices. Every step may be repeated: an undertaker that dies is followed by another, who starts anew.
"""

from collections.abc import Awaitable, Callable

import structlog

from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.peer import FromNode, InboxMessage, NodeLost, decode_inbox
from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.announcer import Announcer
from dragoman.services.upkeep.reader import bury_entry
from dragoman.store.inbox import Entry, Inboxes
from dragoman.store.instances import MARK, Instances
from dragoman.store.jobs import Jobs
from dragoman.store.nodes import Nodes
from dragoman.store.owners import Owners
from dragoman.store.turns import Turns

log = structlog.get_logger(__name__)

BATCH = 100


class LockLost(Exception):
    """Somebody else buries now."""


class Undertaker:
    def __init__(
        self,
        instance: str,
        instances: Instances,
        inboxes: Inboxes,
        owners: Owners,
        nodes: Nodes,
        jobs: Jobs,
        turns: Turns,
        announcer: Announcer,
        metrics: Metrics,
        *,
        lock_ms: int,
        steady: Callable[[], bool],
        rehome: Callable[[InboxMessage], Awaitable[None]],
        adopt: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self.instance, self.metrics = instance, metrics
        self._instances, self._inboxes, self._owners = instances, inboxes, owners
        self._nodes, self._jobs, self._turns = nodes, jobs, turns
        self._announcer, self._lock_ms, self._steady = announcer, lock_ms, steady
        self._rehome, self._adopt = rehome, adopt

    async def run_once(self) -> list[str]:
        """Bury whoever is dead; nobody while we cannot be sure that it is not us who were away."""
        if not self._steady():
            return []
        buried = []
        for name, presence in (await self._instances.all()).items():
            if presence is None and name != self.instance and self._steady() and await self.bury(name):
                buried.append(name)
        return buried

    async def bury(self, dead: str) -> bool:
        """True when nothing of it is left; False if it lives or somebody else is at it."""
        if not await self._instances.lock_burial(dead, self.instance, self._lock_ms):
            return False
        try:
            return await self._bury(dead)
        except LockLost:
            return False
        finally:
            await self._instances.unlock_burial(dead, self.instance)

    async def _bury(self, dead: str) -> bool:
        holder = await self._instances.holder(dead)
        incarnation = (holder or "").removeprefix(MARK)
        if holder is not None and await self._instances.mark_burial(dead, incarnation) == "OTHER":
            return False
        if await self._instances.presence(dead) is not None:
            await self._instances.unmark_burial(dead, incarnation)
            return False
        log.warning("burying a dead instance", dead=dead)
        while True:
            await self._empty_inbox(dead)
            await self._take_jobs(dead)
            await self._end_sessions(dead)
            await self._announce_nodes(dead)
            if holder is None or await self._instances.close(dead, MARK + incarnation) in ("OK", "NONE"):
                break  # anything else: somebody pushed while we were busy
        await self._instances.forget(dead, incarnation)
        self.metrics.burials.inc()
        log.warning("buried", dead=dead)
        return True

    async def _keep(self, dead: str) -> None:
        if not await self._instances.keep_burial(dead, self.instance, self._lock_ms):
            raise LockLost(dead)

    async def _empty_inbox(self, dead: str) -> None:
        """What it had been given first, then what nobody had: the order in which they came."""
        for read in (self._inboxes.own, self._inboxes.unread):
            while entries := await read(dead, BATCH):
                await self._keep(dead)
                for entry in entries:
                    await self._move(dead, entry)

    async def _move(self, dead: str, entry: Entry) -> None:
        try:
            message = decode_inbox(entry.data)
        except ProtocolError as error:
            await bury_entry(self._inboxes, self.metrics, dead, entry.id, error.message, 1)
            return
        if isinstance(message, FromNode):
            # A word for a job it drove: take the job first, or there is nobody to hear it.
            record = await self._jobs.get(message.job_id)
            if record is not None and record.get("driver") == dead:
                await self._adopt(message.job_id, dead)
        await self._rehome(message)
        await self._inboxes.done(dead, [entry])

    async def _take_jobs(self, dead: str) -> None:
        while found := await self._jobs.driven_by(dead, BATCH):
            await self._keep(dead)
            for job in found:
                await self._adopt(job, dead)

    async def _end_sessions(self, dead: str) -> None:
        """Sessions that cannot resume end with their instance, and their turns with them."""
        redis, keys = self._instances.redis, self._instances.keys
        for raw in await redis.call("SMEMBERS", keys.sessions_of(dead)):
            session = raw.decode()
            if await self._owners.session_owner(session) in (dead, None):
                await self._turns.end_current(session)
            await self._owners.leave_session(session, dead)

    async def _announce_nodes(self, dead: str) -> None:
        """Its nodes are offline until they dial in elsewhere; those that did already are not touched."""
        redis, keys = self._instances.redis, self._instances.keys
        for raw in await redis.call("SMEMBERS", keys.nodes_of(dead)):
            node = raw.decode()
            snapshot = await self._nodes.snapshot(node)
            if await self._owners.node_owner(node) == dead or (snapshot is not None and snapshot.instance == dead):
                await self._nodes.gone(node)
                if snapshot is not None:
                    self._announcer.tell(NodeLost(node, snapshot.epoch))
            await self._owners.leave_node(node, dead)
