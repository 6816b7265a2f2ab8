"""Keeps rooms going when nobody does anything: ends what is overdue, closes rooms that are over, finds what was missed.

Every instance polls the index of due rooms; the one that claims a room visits it. So the end of an instance needs no
hand-over: a language that it had planned is ended here, `rooms.translate_timeout_ms` after the caption at the latest
plus one poll.
"""

import structlog

from dragoman.services.metrics import Metrics
from dragoman.services.rooms.local_room import LocalRoom
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.rooms.membership import RoomMembership
from dragoman.services.rooms.room_log import RoomLog
from dragoman.store.interface import in_slices
from dragoman.store.rooms.rooms import Refusal, Rooms

log = structlog.get_logger(__name__)

DUE_S = 0.5  # between two polls of the index
POLL_S = 1.0  # between two looks at the log of a local room
RENEW_S = 60.0
BATCH = 200
CLAIM_MS = 3000


class RoomUpkeep:
    def __init__(
        self, store: Rooms, local: LocalRooms, log: RoomLog, membership: RoomMembership, metrics: Metrics
    ) -> None:
        self._store, self._local, self._log = store, local, log
        self._membership, self._metrics = membership, metrics

    async def visit_due(self) -> None:
        while due := await self._store.claim_due(BATCH, CLAIM_MS):
            await in_slices(due, self._visit)
            if len(due) < BATCH:
                return

    async def _visit(self, room_id: str) -> None:
        visited = await self._store.expire_pending(room_id)
        if isinstance(visited, Refusal):
            await self._store.forget_due(room_id)
            return
        if visited.expired:
            self._metrics.room_translations.labels("timeout").inc(len(visited.expired))
            self._log.distribute(room_id, visited.expired, visited.instances)
        if visited.over and await self._membership.close_room(room_id, visited.over, only_if_over=True):
            log.info("room closed", room=room_id, reason=visited.over)
            return
        await self._store.schedule(room_id, visited.next_ms, visited.claim)

    async def poll_local(self) -> None:
        """What a lost push has not brought: entries, changes of members and settings. And what Redis has lost."""
        await in_slices(list(self._local), self._local.poll)

    async def renew(self) -> None:
        """What is written once and may expire or be lost: the code of a room, its next visit, the room of a session."""
        await in_slices(self._local.sessions(), lambda noted: self._store.note_session(*noted))
        await in_slices(list(self._local), self._renew_room)

    async def _renew_room(self, room: LocalRoom) -> None:
        # A failover of Redis may have lost the entry of the room in the index.
        await self._store.announce(room.id, self._store.bounds.translate_timeout_ms)
        await self._store.renew_code(room.info.code, room.id, self._store.bounds.ttl_ms(room.info.persistent))
