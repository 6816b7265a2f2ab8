"""One survivor buries a dead instance: its inbox in order, then its jobs, sessions and nodes, then its name.

    presence gone ─▶ lock ─▶ mark `open` ─▶ presence still gone? ─▶ inbox ─▶ jobs ─▶ sessions ─▶ nodes ─▶ close

Marking before looking again, while the living look at the mark after writing presence, means that one of the
two notices. Every step may be repeated: an undertaker that dies is followed by another, who starts anew.
What the sets of the dead named is gone from them before `close`, so nothing is deleted after it: by then the name
may belong to one that came back.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum, auto
from time import monotonic

import structlog

from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.peer import Bounced, FromNode, InboxMessage, NodeLost, decode_inbox
from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.announcer import Announcer
from dragoman.services.upkeep.burial import Burial
from dragoman.services.upkeep.reader import bury_entry
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Entry, Inboxes
from dragoman.store.instances import DROP_IF, LOST, MARK, Instances
from dragoman.store.jobs import Jobs
from dragoman.store.nodes import Nodes
from dragoman.store.owners import Owners
from dragoman.store.turns import Turns

log = structlog.get_logger(__name__)

BATCH = 100


class LockLost(Exception):
    """Somebody else buries now."""


class Moved(Enum):
    """What became of one entry of the inbox."""

    ON = auto()
    DEAD = auto()
    NOT = auto()


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
        leave_behind: Callable[[str, str], Awaitable[str]],
        session_over: Callable[[str], Awaitable[None]],
    ) -> None:
        self.instance, self.metrics = instance, metrics
        self._instances, self._inboxes, self._owners = instances, inboxes, owners
        self._nodes, self._jobs, self._turns = nodes, jobs, turns
        self._announcer, self._lock_ms, self._steady = announcer, lock_ms, steady
        self._rehome, self._adopt, self._leave_behind = rehome, adopt, leave_behind
        self._session_over = session_over
        self._kept_at: dict[str, float] = {}  # whom we bury now → when the lock was renewed last
        self._unfinished: set[str] = set()

    async def run_once(self) -> list[str]:
        """Bury whoever is dead; nobody while we cannot be sure that it is not us who were away."""
        if not self._steady():
            return []
        buried = []
        for name, presence in (await self._instances.all()).items():
            if presence is not None or name == self.instance or not self._steady():
                continue
            try:
                if await self.bury(name) is Burial.DONE:
                    buried.append(name)
            except StoreError:
                raise
            except Exception:
                log.exception("a burial failed", dead=name)
        return buried

    async def bury(self, dead: str) -> Burial:
        if not await self._instances.lock_burial(dead, self.instance, self._lock_ms):
            return Burial.NOT_OURS
        self._kept_at[dead] = monotonic()
        try:
            return await self._bury(dead)
        except LockLost:
            return Burial.NOT_OURS
        finally:
            del self._kept_at[dead]
            await self._instances.unlock_burial(dead, self.instance)

    async def _bury(self, dead: str) -> Burial:
        holder = await self._instances.holder(dead)
        incarnation = (holder or "").removeprefix(MARK)
        if holder is not None and await self._instances.mark_burial(dead, incarnation) != "OK":
            return Burial.NOT_OURS
        # The key itself: what a later release wrote there may not be readable to us, and still means that it lives.
        if await self._instances.redis.call("EXISTS", self._instances.keys.presence(dead)):
            await self._instances.unmark_burial(dead, incarnation)
            return Burial.NOT_OURS
        if dead not in self._unfinished:
            log.warning("burying a dead instance", dead=dead)
        if not await self._lay_to_rest(dead, MARK + incarnation if holder is not None else None):
            self._unfinished.add(dead)
            return Burial.LEFT
        # Its name goes last, so that a burial that breaks off is found again.
        await self._instances.strike_out(dead, LOST)
        self._unfinished.discard(dead)
        self.metrics.burials.inc()
        log.warning("buried", dead=dead)
        return Burial.DONE

    async def _lay_to_rest(self, dead: str, mark: str | None) -> bool:
        """Everything but its name; False when entries must stay. Without a mark there is no inbox any more."""
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
            # Somebody pushed while we were busy.

    async def _keep(self, dead: str) -> None:
        """Called before each piece of work; the lock is renewed long before it lapses."""
        now = monotonic()
        if now - self._kept_at[dead] > self._lock_ms / 3000:
            if not await self._instances.keep_burial(dead, self.instance, self._lock_ms):
                raise LockLost(dead)
            self._kept_at[dead] = now

    async def _disown_nodes(self, dead: str) -> None:
        """First: what is handed on to the owner of one of its nodes must not come back to it."""
        async for node in self._members(dead, self._instances.keys.nodes_of(dead)):
            await DROP_IF(self._instances.redis, held=self._instances.keys.node_owner(node), value=dead)

    # -- the inbox -------------------------------------------------------------------------------

    async def _empty_inbox(self, dead: str) -> bool:
        """What it had been given first, then what nobody had: the order in which they came. False: some must stay.

        What is pushed meanwhile waits for the next round: those who push stop only when its nodes are announced lost.
        """
        await self._inboxes.ensure_group(dead)
        waiting = (await self._inboxes.tally(dead)).waiting
        empty, start = True, "-"
        while start != "0-0":
            start, entries = await self._inboxes.reclaim(dead, 0, BATCH, start)
            waiting -= len(entries)
            empty = await self._move_all(dead, entries) and empty
        while waiting > 0 and (entries := await self._inboxes.unread(dead, BATCH)):
            waiting -= len(entries)
            empty = await self._move_all(dead, entries) and empty
        return empty

    async def _move_all(self, dead: str, entries: list[Entry]) -> bool:
        """False when some must stay where they are."""
        moved: list[Entry] = []
        gone = 0
        try:
            for entry in entries:
                await self._keep(dead)
                match await self._move(dead, entry):
                    case Moved.ON:
                        moved.append(entry)
                    case Moved.DEAD:
                        gone += 1
        finally:
            if moved:
                await self._inboxes.done(dead, moved)
        return len(moved) + gone == len(entries)

    async def _move(self, dead: str, entry: Entry) -> "Moved":
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
            # It would fail the next undertaker as well, and nothing behind it would ever be buried.
            log.exception("an entry of a dead instance failed", kind=entry.kind, entry=entry.id)
            return await self._dead_letter(dead, entry, f"{type(error).__name__}: {error}")
        return Moved.ON

    async def _hand_on(self, dead: str, message: InboxMessage) -> None:
        if isinstance(message, FromNode | Bounced):
            # A word for a job it drove: take the job first, or there is nobody to hear it.
            record = await self._jobs.get(message.job_id)
            if record is not None and record.get("driver") == dead:
                await self._adopt(message.job_id, dead)
        await self._rehome(message)

    async def _dead_letter(self, dead: str, entry: Entry, reason: str) -> "Moved":
        verdict = await bury_entry(self._inboxes, self.metrics, dead, entry.id, reason, 1)
        return Moved.NOT if verdict == "STAYS" else Moved.DEAD

    # -- what it drove and owned -----------------------------------------------------------------

    async def _take_jobs(self, dead: str) -> None:
        while found := await self._jobs.driven_by(dead, BATCH):
            for job in found:
                await self._keep(dead)
                try:
                    await self._adopt(job, dead)
                except StoreError:
                    raise
                except Exception:
                    # It would fail the next undertaker as well; its record says no less, and lapses by itself.
                    log.exception("a job of a dead instance cannot be taken", job=job)
                    await self._jobs.undriven(dead, job)

    async def _end_sessions(self, dead: str) -> None:
        """Sessions that cannot resume end with their instance, and their turns and jobs with them; others have their
        grace. After the inbox and the jobs: an answer that had come is recorded first."""
        async for session in self._members(dead, self._instances.keys.sessions_of(dead)):
            if await self._leave_behind(session, dead) == "NONE":
                await self._turns.end_current(session)
                await self._session_over(session)
            await self._owners.leave_session(session, dead)

    async def _announce_nodes(self, dead: str) -> None:
        """Its nodes are offline until they dial in elsewhere; of those that did already only the old epoch is over."""
        async for node in self._members(dead, self._instances.keys.nodes_of(dead)):
            snapshot = await self._nodes.snapshot(node)
            if snapshot is None or snapshot.instance == dead:
                if await self._owners.node_owner(node) is None:
                    await self._nodes.gone(node)
                if snapshot is not None:
                    self._announcer.tell(NodeLost(node, snapshot.epoch))
            await self._owners.leave_node(node, dead)

    async def _members(self, dead: str, key: str) -> AsyncIterator[str]:
        for raw in await self._instances.redis.call("SMEMBERS", key):
            await self._keep(dead)
            yield raw.decode()
