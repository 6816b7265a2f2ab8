"""One surviving instance takes over a dead one: its inbox in order, then its jobs, sessions and nodes, then its name.

    presence gone ─▶ lock ─▶ mark `open` ─▶ presence still gone? ─▶ inbox ─▶ jobs ─▶ sessions ─▶ nodes ─▶ close

The instance that takes over marks before it looks again, and a returning instance reads the mark after it has written
presence, so one of the two notices. Every step may be repeated: if the instance that takes over dies, the next one
starts from the beginning. The sets of the dead instance are empty before `close`, so nothing is deleted after it: by
then the name may belong to an instance that came back.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum, auto
from time import monotonic
from typing import assert_never

import structlog

from dragoman.protocol.codes import ProtocolError
from dragoman.protocol.peer import Bounced, FromNode, InboxMessage, NodeLost, decode_inbox
from dragoman.services.metrics import Metrics
from dragoman.services.routing.inbox_reader import move_to_dlq
from dragoman.services.routing.router import Announcer
from dragoman.services.upkeep.presence import TakeoverResult
from dragoman.store.errors import StoreError
from dragoman.store.inbox import InboxEntry, Inboxes
from dragoman.store.instances import LOST, MARK, Instances, Owners
from dragoman.store.jobs import Jobs, Turns
from dragoman.store.nodes import Nodes

log = structlog.get_logger(__name__)

BATCH = 100


class LockLost(Exception):
    """Another instance has the lock of the takeover."""


class Moved(Enum):
    """What happened to one entry of the inbox."""

    ON = auto()
    DEAD = auto()
    NOT = auto()


class Takeover:
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
        leave_behind: Callable[[str, str], Awaitable[str]],
        session_over: Callable[[str], Awaitable[None]],
    ) -> None:
        self.instance, self.metrics = instance, metrics
        self._instances, self._inboxes, self._owners = instances, inboxes, owners
        self._nodes, self._jobs, self._turns = nodes, jobs, turns
        self._announcer, self._lock_ms, self._steady = announcer, lock_ms, steady
        self._rehome, self._adopt, self._leave_behind = rehome, adopt, leave_behind
        self._session_over = session_over
        self._renewed_at: dict[str, float] = {}  # instance we take over now → when its lock was renewed last
        self._unfinished: set[str] = set()

    async def run_once(self) -> list[str]:
        """Take over every dead instance; none while it may have been us who lost Redis."""
        if not self._steady():
            return []
        taken = []
        for name, presence in (await self._instances.all()).items():
            if presence is not None or name == self.instance or not self._steady():
                continue
            try:
                if await self.take_over(name) is TakeoverResult.DONE:
                    taken.append(name)
            except StoreError:
                raise
            except Exception:
                log.exception("a takeover failed", dead=name)
        return taken

    async def take_over(self, dead: str) -> TakeoverResult:
        if not await self._instances.lock_takeover(dead, self.instance, self._lock_ms):
            return TakeoverResult.NOT_OURS
        self._renewed_at[dead] = monotonic()
        try:
            return await self._take_over_locked(dead)
        except LockLost:
            return TakeoverResult.NOT_OURS
        finally:
            del self._renewed_at[dead]
            await self._instances.unlock_takeover(dead, self.instance)

    async def _take_over_locked(self, dead: str) -> TakeoverResult:
        holder = await self._instances.holder(dead)
        incarnation = (holder or "").removeprefix(MARK)
        if holder is not None and await self._instances.mark_takeover(dead, incarnation) != "OK":
            return TakeoverResult.NOT_OURS
        if await self._instances.is_present(dead):
            await self._instances.unmark_takeover(dead, incarnation)
            return TakeoverResult.NOT_OURS
        if dead not in self._unfinished:
            log.warning("taking over a dead instance", dead=dead)
        if not await self._take_everything(dead, MARK + incarnation if holder is not None else None):
            self._unfinished.add(dead)
            return TakeoverResult.PARTIAL
        # The name is removed last, so that the next instance finds a takeover that broke off.
        await self._instances.strike_out(dead, LOST)
        self._unfinished.discard(dead)
        self.metrics.takeovers.inc()
        log.warning("took over a dead instance", dead=dead)
        return TakeoverResult.DONE

    async def _take_everything(self, dead: str, mark: str | None) -> bool:
        """Everything but its name; False if entries must stay. Without a mark there is no inbox any more."""
        while True:
            await self._disown_nodes(dead)
            empty = await self._empty_inbox(dead) if mark is not None else True
            await self._take_jobs(dead)
            await self._end_sessions(dead)
            await self._announce_nodes(dead)
            match await self._instances.close(dead, mark) if mark is not None else "NONE":
                case "OK" | "NONE":
                    return True
                case "OTHER":
                    raise LockLost(dead)
            if not empty:
                return False
            # An entry was pushed meanwhile: start again.

    async def _renew_lock(self, dead: str) -> None:
        """Called before each piece of work; renews the lock long before it expires."""
        now = monotonic()
        if now - self._renewed_at[dead] > self._lock_ms / 3000:
            if not await self._instances.renew_takeover(dead, self.instance, self._lock_ms):
                raise LockLost(dead)
            self._renewed_at[dead] = now

    async def _disown_nodes(self, dead: str) -> None:
        """First: a message to the owner of one of its nodes must not come back to the dead instance."""
        async for node in self._each(dead, await self._instances.nodes_of(dead)):
            await self._owners.disown_node(node, dead)

    # -- the inbox -------------------------------------------------------------------------------

    async def _empty_inbox(self, dead: str) -> bool:
        """Entries that were delivered first, then those that were not: the order in which they came. False: some stay.

        Entries that are pushed meanwhile wait for the next round: pushes stop only when its nodes are announced lost.
        """
        await self._inboxes.ensure_group(dead)
        waiting = (await self._inboxes.counts(dead)).waiting
        empty, start = True, "-"
        while start != "0-0":
            start, entries = await self._inboxes.reclaim(dead, 0, BATCH, start)
            waiting -= len(entries)
            empty = await self._move_all(dead, entries) and empty
        while waiting > 0 and (entries := await self._inboxes.unread(dead, BATCH)):
            waiting -= len(entries)
            empty = await self._move_all(dead, entries) and empty
        return empty

    async def _move_all(self, dead: str, entries: list[InboxEntry]) -> bool:
        """False if some must stay where they are."""
        moved: list[InboxEntry] = []
        gone = 0
        try:
            for entry in entries:
                await self._renew_lock(dead)
                match verdict := await self._move(dead, entry):
                    case Moved.ON:
                        moved.append(entry)
                    case Moved.DEAD:
                        gone += 1
                    case Moved.NOT:
                        pass
                    case _:
                        assert_never(verdict)
        finally:
            if moved:
                await self._inboxes.done(dead, moved)
        return len(moved) + gone == len(entries)

    async def _move(self, dead: str, entry: InboxEntry) -> Moved:
        if entry.newer:
            return Moved.NOT
        try:
            message = decode_inbox(entry.data)
        except ProtocolError as error:
            return await self._dead_letter(dead, entry, error.message)
        try:
            await self._hand_on(dead, message)
        except StoreError:
            raise
        except Exception as error:
            # The next instance would fail as well, and the entries behind this one would never be handled.
            log.exception("an entry of a dead instance failed", kind=entry.kind, entry=entry.id)
            return await self._dead_letter(dead, entry, f"{type(error).__name__}: {error}")
        return Moved.ON

    async def _hand_on(self, dead: str, message: InboxMessage) -> None:
        if isinstance(message, FromNode | Bounced):
            # A message for a job that it drove: adopt the job first, or the message has no destination.
            record = await self._jobs.get(message.job_id)
            if record is not None and record.get("driver") == dead:
                await self._adopt(message.job_id, dead)
        await self._rehome(message)

    async def _dead_letter(self, dead: str, entry: InboxEntry, reason: str) -> Moved:
        verdict = await move_to_dlq(self._inboxes, self.metrics, dead, entry.id, reason, 1)
        return Moved.NOT if verdict == "STAYS" else Moved.DEAD

    # -- what it drove and owned -----------------------------------------------------------------

    async def _take_jobs(self, dead: str) -> None:
        while found := await self._jobs.driven_by(dead, BATCH):
            for job in found:
                await self._renew_lock(dead)
                try:
                    await self._adopt(job, dead)
                except StoreError:
                    raise
                except Exception:
                    # The next instance would fail as well; the record of the job stays as it is, and expires.
                    log.exception("a job of a dead instance cannot be taken", job=job)
                    await self._jobs.undriven(dead, job)

    async def _end_sessions(self, dead: str) -> None:
        """Sessions that cannot resume end with their instance, and their turns and jobs with them; the others get their
        grace. After the inbox and the jobs, so that results that had arrived are recorded first."""
        async for session in self._each(dead, await self._instances.sessions_of(dead)):
            if await self._leave_behind(session, dead) == "NONE":
                await self._turns.end_current(session)
                await self._session_over(session)
            await self._owners.leave_session(session, dead)

    async def _announce_nodes(self, dead: str) -> None:
        """Its nodes are offline until they connect elsewhere; of those that already did, only the old epoch is over."""
        async for node in self._each(dead, await self._instances.nodes_of(dead)):
            snapshot = await self._nodes.snapshot(node)
            if snapshot is None or snapshot.instance == dead:
                if await self._owners.node_owner(node) is None:
                    await self._nodes.gone(node)
                if snapshot is not None:
                    self._announcer.announce(NodeLost(node, snapshot.epoch))
            await self._owners.leave_node(node, dead)

    async def _each(self, dead: str, members: list[str]) -> AsyncIterator[str]:
        for member in members:
            await self._renew_lock(dead)
            yield member
