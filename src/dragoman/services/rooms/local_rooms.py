"""The rooms that have members on this instance: finds them, and repairs what they have missed.

    push of another instance ─┐
    own append ───────────────┼─▶ RoomDelivery: number + 1 ─▶ one frame per kind and language ─▶ sockets
    read of the log ──────────┘

An entry that is missing is read from the log: at once if a later one was pushed, and otherwise by the poll that looks
once a second. A member that has just joined reads the log from its cursor first.

If Redis has lost entries that were delivered here, the log gets another epoch. Each instance then goes back to the last
entry that it has in common with the log, informs its members by `room_joined`, and lets those join again that Redis has
lost.
"""

import asyncio
from collections.abc import Iterable, Iterator

import structlog

from dragoman.domain.rooms import RECENT, Entry
from dragoman.protocol import ids
from dragoman.protocol.codes import RoomEnd
from dragoman.protocol.peer import RoomVoice
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.local_room import LARGE_ROOM, LocalMember, LocalRoom
from dragoman.store.rooms.rooms import Refusal, Rooms

log = structlog.get_logger(__name__)

READ = 500  # entries of one read of the log
MEMBERS_S, LARGE_MEMBERS_S = 0.25, 1.0  # between two lists of members, in a small room and in a large one


class LocalRooms:
    """Finds local rooms and members, and repairs what a room has missed."""

    def __init__(self, store: Rooms, metrics: Metrics, tasks: Tasks) -> None:
        self._store, self._metrics, self._tasks = store, metrics, tasks
        self._rooms: dict[str, LocalRoom] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}
        self._of_session: dict[str, LocalRoom] = {}
        self._repairing: set[str] = set()
        self._lists: dict[str, asyncio.TimerHandle] = {}  # rooms whose members are to be listed

    def __iter__(self) -> Iterator[LocalRoom]:
        return iter(list(self._rooms.values()))

    def __len__(self) -> int:
        return len(self._rooms)

    def find(self, room_id: str) -> LocalRoom | None:
        return self._rooms.get(room_id)

    def of_session(self, session_id: str) -> LocalRoom | None:
        return self._of_session.get(session_id)

    def sessions(self) -> list[tuple[str, str, int]]:
        """Session, room and epoch of every member."""
        return [
            (session, room.id, room.members[session].info.epoch)
            for session, room in self._of_session.items()
            if session in room.members
        ]

    async def open(self, room_id: str, seq: int) -> LocalRoom | None:
        """The local room; None if it is gone. The first member on this instance waits until the log was read."""
        while (opening := self._opening.get(room_id)) is not None:
            await opening
        room = self._rooms.get(room_id)
        if room is not None:
            return room
        opening = self._opening[room_id] = asyncio.get_running_loop().create_future()
        try:
            reading = self._store.read(room_id, max(seq - RECENT, 0), RECENT + READ)
            info, entries = await asyncio.gather(self._store.info(room_id), reading)
            if info is None:
                return None
            room = self._rooms[room_id] = LocalRoom(info, seq, entries)
            room.receive(entries)
            return room
        finally:
            del self._opening[room_id]
            opening.set_result(None)

    def add(self, room: LocalRoom, member: LocalMember) -> None:
        room.add(member)
        self._rooms[room.id] = room
        self._of_session[member.info.session] = room
        self._count()

    def remove(self, session_id: str) -> tuple[LocalRoom, LocalMember] | None:
        room = self._of_session.pop(session_id, None)
        member = room.remove(session_id) if room is not None else None
        if room is None or member is None:
            return None
        self.close_if_empty(room.id)
        self._count()
        return room, member

    def close_if_empty(self, room_id: str) -> None:
        """Forget a room that has no member here."""
        room = self._rooms.get(room_id)
        if room is not None and not room.members:
            del self._rooms[room_id]
            self._cancel_list(room)

    async def close(self, room_id: str, reason: str) -> None:
        """The room was closed: its members receive the rest of the log, then its end."""
        room = self._rooms.get(room_id)
        while room is not None and await self._read_on(room):
            pass
        self.end(room_id, reason)

    def end(self, room_id: str, reason: str) -> None:
        room = self._rooms.pop(room_id, None)
        if room is not None:
            for session_id in room.members:
                self._of_session.pop(session_id, None)
            self._cancel_list(room)
            room.end(reason)
            self._count()

    def _count(self) -> None:
        self._metrics.rooms.set(len(self._rooms))
        self._metrics.room_members.set(len(self._of_session))

    # -- entries ---------------------------------------------------------------------------------

    def receive(self, room_id: str, entries: Iterable[Entry], voice: RoomVoice | None = None) -> None:
        """`voice`: of the last of them."""
        room = self._rooms.get(room_id)
        if room is not None:
            room.receive(entries, voice)
            if room.delivery.is_forked:
                self._tasks.spawn(self.restart(room), "room-restart")
            elif room.delivery.has_hole:
                self._tasks.spawn(self.repair(room), "room-repair")

    async def repair(self, room: LocalRoom) -> None:
        """Read the log from the last delivered entry on."""
        if room.id in self._repairing:
            return
        self._repairing.add(room.id)
        try:
            while await self._read_on(room) == READ:
                pass
        finally:
            self._repairing.discard(room.id)
        if room.delivery.is_forked:
            await self.restart(room)

    async def _read_on(self, room: LocalRoom) -> int:
        """Deliver the next entries of the log; returns how many were read, 0 if none was new. The last delivered one is
        read again, to compare it."""
        before = room.delivery.delivered
        entries = await self._store.read(room.id, max(before - 1, 0), READ)
        if entries and entries[0].seq > room.delivery.delivered + 1:
            room.delivery.skip_to(entries[0].seq - 1)  # the log no longer reaches back
        room.receive(entries)
        return len(entries) if room.delivery.delivered > before else 0

    async def poll(self, room: LocalRoom) -> None:
        """Compare what was delivered and known here with the room in Redis."""
        delivered, version = room.delivery.delivered, room.info.version
        state = await self._store.state(room.id)
        if state is None:
            self.end(room.id, RoomEnd.GONE)
            return
        if state.closed:
            await self.close(room.id, state.closed)
            return
        room.delivery.compare(state.seq, state.appended_ms, delivered)
        if room.delivery.is_forked or state.version < version:
            await self.restart(room)
        elif state.log_epoch != room.log_epoch:
            await self.follow(room, state.log_epoch)
        elif state.seq > room.delivery.delivered:
            await self.repair(room)
        if state.version > room.info.version:
            self.changed(room)

    # -- entries that Redis has lost -----------------------------------------------------------------

    async def restart(self, room: LocalRoom) -> None:
        """Redis has lost what was delivered or known here: the log gets another epoch."""
        changed = await self._store.change_log_epoch(room.id, room.log_epoch, ids.log_epoch())
        if not isinstance(changed, Refusal):
            await self.follow(room, changed.log_epoch)

    async def follow(self, room: LocalRoom, log_epoch: str) -> None:
        """The log has another epoch."""
        recent = room.delivery.recent
        first = recent[0].seq if recent else room.delivery.delivered
        entries = await self._store.read(room.id, max(first - 1, 0), RECENT + READ)
        if room.log_epoch == log_epoch:
            return
        lost = room.restart(log_epoch, entries)
        self._metrics.room_log_restarts.labels("lost" if lost else "complete").inc()
        log.warning("Redis has lost entries of a room", room=room.id, lost_here=lost)
        await self.join_again(room)
        self.changed(room)

    async def join_again(self, room: LocalRoom) -> None:
        """Members whose joining Redis has lost."""
        known = {one.session for one in await self._store.members(room.id)}
        for member in [one.info for session, one in room.members.items() if session not in known]:
            await self._store.join(room.id, member)

    async def send_from(self, room: LocalRoom, member: LocalMember, cursor: int) -> None:
        """Send what the log has after `cursor`; then the member is live, in the same step of the loop."""
        # The member may have more of the log than the others here: what its last instance did not push any more.
        while room.delivery.delivered < cursor and await self._read_on(room):
            pass
        while (known := room.recent_after(cursor)) is None:
            entries = await self._store.read(room.id, cursor, READ)
            if not entries:
                known = []
                break
            upto = min(entries[-1].seq, room.delivery.delivered)
            room.send(member, [entry for entry in entries if entry.seq <= upto])
            cursor = max(upto, cursor)
        room.send(member, known)
        room.go_live(member)

    # -- the list of members ---------------------------------------------------------------------

    def changed(self, room: LocalRoom) -> None:
        """List the members soon: changes that come together are listed once."""
        if room.id not in self._lists and room.id in self._rooms:
            # The length of the list and the number of its readers grow with the room: so does the pause.
            pause_s = min(max(len(room.members) / LARGE_ROOM, MEMBERS_S), LARGE_MEMBERS_S)
            self._lists[room.id] = asyncio.get_running_loop().call_later(pause_s, self._start_list, room.id)

    def _start_list(self, room_id: str) -> None:
        del self._lists[room_id]
        self._tasks.spawn(self._list_members(room_id), "room-members")

    async def _list_members(self, room_id: str) -> None:
        info = await self._store.info(room_id)
        if info is None:
            return
        members = sorted(await self._store.members(room_id), key=lambda one: (one.joined_ms, one.session))
        # Looked up here: the last member may have left meanwhile, and another one have joined.
        if (room := self._rooms.get(room_id)) is not None:
            room.list_members(info, members)

    def _cancel_list(self, room: LocalRoom) -> None:
        due = self._lists.pop(room.id, None)
        if due is not None:
            due.cancel()
