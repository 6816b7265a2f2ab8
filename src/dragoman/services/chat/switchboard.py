"""The two-phase switches of this cluster: as configured, with what was changed while running on top.

A change is announced, so that it takes effect everywhere at once, and looked for every half second, in case the
announcement was missed.
"""

from collections.abc import Callable

import structlog

from dragoman.domain.chat.switches import BadSwitch, Switches
from dragoman.protocol.peer import Announcement, SwitchesChanged
from dragoman.services.loops import Tasks
from dragoman.services.upkeep.announcer import Announcer
from dragoman.store.chat.cluster import ChatCluster

log = structlog.get_logger(__name__)

LOOK_S = 0.5


class Switchboard:
    def __init__(self, configured: Switches, cluster: ChatCluster, announcer: Announcer, tasks: Tasks) -> None:
        self.configured = self.current = configured
        self._cluster, self._announcer, self._tasks = cluster, announcer, tasks
        self.on_change: Callable[[], None] = lambda: None
        announcer.subscribe(self._heard)

    async def run_once(self) -> None:
        texts = await self._cluster.switches()
        try:
            found = self.configured.changed(texts)
        except BadSwitch as error:
            log.error("a switch in Redis cannot be read; the switches stay as they are", error=str(error))
            return
        if found != self.current:
            before = self.current.texts()
            changed = {name: text for name, text in found.texts().items() if before[name] != text}
            log.info("chat switches changed", **changed)
            self.current = found
            self.on_change()

    async def change(self, texts: dict[str, str]) -> Switches:
        """For the whole cluster; raises BadSwitch before anything is changed."""
        self.current.changed(texts)
        await self._cluster.switch(texts)
        await self._changed()
        return self.current

    async def reset(self) -> Switches:
        """Back to what is configured."""
        await self._cluster.forget_switches(list(self.configured.texts()))
        await self._changed()
        return self.current

    async def _changed(self) -> None:
        await self.run_once()
        self._announcer.tell(SwitchesChanged())

    def _heard(self, message: Announcement) -> None:
        if isinstance(message, SwitchesChanged):
            self._tasks.spawn(self.run_once(), "switchboard")
