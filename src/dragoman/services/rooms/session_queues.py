"""What is done for each session one step after another: its commands, and what it says aloud."""

from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from dragoman.services.loops import Tasks

log = structlog.get_logger(__name__)

Step = Callable[[], Awaitable[object]]


class SessionQueues:
    def __init__(self, tasks: Tasks, name: str) -> None:
        self._tasks, self._name = tasks, name
        self._waiting: dict[str, deque[Step]] = {}

    def waiting(self, session_id: str) -> int:
        return len(self._waiting.get(session_id, ()))

    def add(self, session_id: str, step: Step) -> None:
        waiting = self._waiting.get(session_id)
        if waiting is None:
            waiting = self._waiting[session_id] = deque()
            self._tasks.spawn(self._work(session_id, waiting), self._name)
        waiting.append(step)

    async def _work(self, session_id: str, waiting: deque[Step]) -> None:
        try:
            while waiting:
                step = waiting.popleft()
                try:
                    await step()
                except Exception:
                    log.exception("a step failed", queue=self._name, session=session_id)
        finally:
            del self._waiting[session_id]
