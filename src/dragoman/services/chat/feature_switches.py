"""The two-phase switches of this cluster, and the path that the next message of a sender takes by them.

A change is announced, so that it takes effect everywhere at once. Redis is also polled every half second, in case the
announcement was missed.
"""

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from dragoman.domain.chat.switches import BadSwitch, ConnectionPath, Gate, Path, Switches
from dragoman.protocol.peer import Announcement, SwitchesChanged
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.loops import ReadFirstTimeout, Tasks
from dragoman.services.routing.router import Announcer
from dragoman.store.chat.cluster import ChatCluster
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

POLL_S = 0.5
UNSAVED_POLL_S = 0.02


class FeatureSwitches:
    """The configured switches, and the changes made while the cluster runs."""

    def __init__(
        self,
        configured: Switches,
        cluster: ChatCluster,
        announcer: Announcer,
        tasks: Tasks,
        on_change: Callable[[], None],
    ) -> None:
        self.configured = self.current = configured
        self._cluster, self._announcer, self._tasks = cluster, announcer, tasks
        self._on_change = on_change
        announcer.subscribe(self._on_announcement)

    async def run_once(self) -> None:
        texts = await self._cluster.switches()
        try:
            found = self.configured.changed(texts)
        except BadSwitch as error:
            log.error("a switch in Redis cannot be read; the switches do not change", error=str(error))
            return
        if found != self.current:
            before = self.current.texts()
            changed = {name: text for name, text in found.texts().items() if before[name] != text}
            log.info("chat switches changed", **changed)
            self.current = found
            self._on_change()

    async def change(self, texts: dict[str, str]) -> Switches:
        """Change the whole cluster; raises BadSwitch before anything is changed."""
        self.current.changed(texts)
        await self._cluster.switch(texts)
        await self._changed()
        return self.current

    async def reset(self) -> Switches:
        """Back to the configured values."""
        await self._cluster.forget_switches(list(self.configured.texts()))
        await self._changed()
        return self.current

    async def _changed(self) -> None:
        await self.run_once()
        self._announcer.announce(SwitchesChanged())

    def _on_announcement(self, message: Announcement) -> None:
        if isinstance(message, SwitchesChanged):
            self._tasks.spawn(self.run_once(), "feature-switches")


class PathChooser:
    """Which way a sender's next message goes. It changes only when nothing of the sender is unsaved."""

    def __init__(self, switches: FeatureSwitches, shards: Shards, gate: Gate, timeout_s: float) -> None:
        self._switches, self._shards, self._gate, self._timeout_s = switches, shards, gate, timeout_s

    @property
    def fail_open(self) -> bool:
        return self._switches.current.fail_open

    async def choose(self, user: ChatUser, current: ConnectionPath) -> Path:
        """Waits a little for unsaved messages if the way should change."""
        wanted, now = self._switches.current.path_of(user.id), monotonic()
        if not current.wants_change(wanted, now):
            assert current.path is not None
            return current.path
        while current.must_wait(unsaved := await self._unsaved(user), now, monotonic()):  # noqa: ASYNC110 - it is in Redis
            await asyncio.sleep(UNSAVED_POLL_S)
        return current.decide(wanted, unsaved, monotonic())

    async def _unsaved(self, user: ChatUser) -> int:
        """As Redis knows it; without Redis as we do. Unknown counts as some."""
        if self._gate.may_ask(monotonic()):
            timeout = ReadFirstTimeout(self._timeout_s)
            try:
                async with timeout:
                    unsaved = await self._count(user)
                self._gate.worked()
                return unsaved
            except (StoreError, TimeoutError):
                if not timeout.was_paused:
                    self._gate.failed(monotonic())
        return 1 if user.unsaved.count is None else user.unsaved.count

    async def recount(self, user: ChatUser) -> None:
        """Our copy is as good as the notices that reached us. One that misses some is corrected while Redis answers."""
        try:
            async with ReadFirstTimeout(self._timeout_s):
                await self._count(user)
        except (StoreError, TimeoutError):
            pass

    async def _count(self, user: ChatUser) -> int:
        newest = user.unsaved.newest
        unsaved = await self._shards.unsaved(user.id)
        user.unsaved.counted(unsaved, newest, monotonic())
        return unsaved
