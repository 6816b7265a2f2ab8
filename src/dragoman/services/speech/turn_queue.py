"""The turns of a session, and the queue of each: the jobs of a turn are placed one after the other."""

import asyncio

from dragoman.domain.turn import Turn
from dragoman.services.loops import Tasks, resolve, retry
from dragoman.services.speech.room_speech import RoomTurn
from dragoman.store.jobs import Turns


class TurnQueue:
    """A turn and the queue of its jobs: each is placed when the one before is placed or has failed."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.jobs = 0
        self.room: RoomTurn | None = None  # if it is spoken in a room; decided at its first cut
        self._tail: asyncio.Future[None] | None = None

    def speak_in(self, room: RoomTurn | None) -> None:
        self.room = room

    def join(self) -> "TurnPosition":
        self.jobs += 1
        before, mine = self._tail, asyncio.get_running_loop().create_future()
        self._tail = mine
        return TurnPosition(before, mine)


class TurnPosition:
    """A position in a turn's queue, in the order of the cuts."""

    __slots__ = ("_before", "_mine")

    def __init__(self, before: "asyncio.Future[None] | None", mine: "asyncio.Future[None]") -> None:
        self._before, self._mine = before, mine

    async def wait(self) -> None:
        """For the jobs before this one."""
        if self._before is not None:
            await asyncio.shield(self._before)

    def release(self) -> None:
        resolve(self._mine)


class SessionTurns:
    """The open turns of one session."""

    def __init__(self, session_id: str, store: Turns, tasks: Tasks) -> None:
        self._session_id, self._store, self._tasks = session_id, store, tasks
        self._open: dict[str, TurnQueue] = {}

    def open(self, turn: Turn) -> TurnQueue:
        queue = self._open[turn.id] = TurnQueue(turn)
        return queue

    def get(self, turn_id: str) -> TurnQueue | None:
        return self._open.get(turn_id)

    def all(self) -> list[TurnQueue]:
        return list(self._open.values())

    def forget(self, queue: TurnQueue) -> None:
        """The turn has ended, and no affinity was written for it."""
        self._open.pop(queue.turn.id, None)

    def end(self, queue: TurnQueue) -> None:
        """After the last job of the turn was placed, remove its affinity. The next turn does not wait for this."""
        self.forget(queue)
        self._tasks.spawn(self._end(queue.turn, queue.join()), "end-turn")

    async def _end(self, turn: Turn, position: TurnPosition) -> None:
        await position.wait()
        try:
            if turn.node_id is not None:  # retried for ever: the key has no TTL
                await retry(lambda: self._store.end(self._session_id, turn.id))
        finally:
            turn.end()
            position.release()
