"""The two-phase switches of this cluster: the configured ones, and the changes made while it runs.

A change is announced, so that it takes effect everywhere at once. Redis is also polled every half second, in case the
announcement was missed.
"""

from collections.abc import Callable

import structlog

from dragoman.domain.chat.switches import BadSwitch, Switches
from dragoman.protocol.peer import Announcement, SwitchesChanged
from dragoman.services.loops import Tasks
from dragoman.services.routing.announcer import Announcer
from dragoman.store.chat.cluster import ChatCluster

log = structlog.get_logger(__name__)

POLL_S = 0.5


class FeatureSwitches:
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
