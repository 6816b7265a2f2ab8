"""The members of rooms: how they join, change, leave and are removed, and what the end of a session or a room means.

Membership follows the session. It ends when the client leaves, with the session, or in the takeover of a dead instance.
A script decides each change; this module executes what follows from it, here and on the other instances.
"""

from dataclasses import replace
from time import monotonic
from typing import Any

import msgspec

from dragoman.domain.limits.connections import is_loopback
from dragoman.domain.limits.rates import RatePerKey
from dragoman.domain.rooms import AUTO, Member, Role
from dragoman.protocol import ids
from dragoman.protocol import rooms as wire
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import RoomEnd, RoomErrorCode
from dragoman.protocol.peer import RoomChanged, RoomEnded, RoomMemberRemoved
from dragoman.services.loops import retry
from dragoman.services.rooms.local_room import LocalMember, LocalRoom
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.rooms.room_log import RoomLog
from dragoman.services.sockets import MemberSocket
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.session import Session
from dragoman.store.attempts import WRONG_CODES_PER_MINUTE, RoomAttempts
from dragoman.store.rooms.rooms import Changed, Closed, Joined, Left, Refusal, RoomInfo, Rooms, Updated


class RoomSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """`settings` of the room's info."""

    guests: bool = True
    vocabulary: tuple[str, ...] = ()


def settings_of(info: RoomInfo) -> RoomSettings:
    try:
        return msgspec.json.decode(info.settings, type=RoomSettings)
    except msgspec.DecodeError:
        return RoomSettings()


CODE_TRIES = 20

_REFUSED: dict[Refusal, tuple[RoomErrorCode, str]] = {
    Refusal.NONE: (RoomErrorCode.ROOM_NOT_FOUND, "There is no such room."),
    Refusal.FULL: (RoomErrorCode.ROOM_FULL, "The room has as many members as it may have."),
    Refusal.LOCKED: (RoomErrorCode.ROOM_LOCKED, "The host has locked the room."),
    Refusal.REMOVED: (RoomErrorCode.REMOVED, "The host has removed you from this room."),
    Refusal.LANGUAGES: (
        RoomErrorCode.TOO_MANY_LANGUAGES,
        "The room has as many languages as it may have: choose one that another member hears.",
    ),
    Refusal.STALE: (RoomErrorCode.NOT_IN_ROOM, "The session was resumed elsewhere."),
    Refusal.FENCED: (RoomErrorCode.NOT_IN_ROOM, "The session was resumed elsewhere."),
    Refusal.NOT_MEMBER: (RoomErrorCode.NOT_IN_ROOM, "You are not in this room: join it first."),
    Refusal.NOT_HOST: (RoomErrorCode.NOT_HOST, "Only the host may do this."),
    Refusal.PAUSED: (RoomErrorCode.ROOM_PAUSED, "The host has paused the room."),
}


class RoomRefused(Exception):
    def __init__(self, code: RoomErrorCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def refused(refusal: Refusal) -> RoomRefused:
    code, message = _REFUSED.get(refusal, (RoomErrorCode.INTERNAL_ERROR, f"The room refused this: {refusal}."))
    return RoomRefused(code, message)


class RoomMembership:
    def __init__(
        self,
        instance: str,
        store: Rooms,
        local: LocalRooms,
        log: RoomLog,
        view: FleetView,
        *,
        history: int,
        join_by_code: bool,
        opened_per_minute: int,
        attempts: RoomAttempts,
    ) -> None:
        self._instance, self._store, self._local, self._log = instance, store, local, log
        self._view, self._history, self._join_by_code = view, history, join_by_code
        self._attempts, self._wrong_codes = attempts, RatePerKey(WRONG_CODES_PER_MINUTE)
        self._opened = RatePerKey(opened_per_minute) if opened_per_minute else None

    # -- creating and joining --------------------------------------------------------------------

    async def create(self, session: Session, socket: MemberSocket, command: wire.RoomCreate) -> None:
        self._require_no_room(session)
        if session.room_claim is not None:
            raise RoomRefused(RoomErrorCode.NOT_ALLOWED, "The token is for one room: it cannot open another one.")
        if self._opened is not None and session.account and not self._opened.take(session.account, monotonic()):
            raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, "Too many rooms in a minute: use one that you have opened.")
        wanted = command.settings or wire.RoomSettings()
        if wanted.persistent:
            await self.require_persistent(session)
        settings = RoomSettings(wanted.guests is not False, tuple(wanted.vocabulary or ()))
        room_id = await self.open_room(
            tenant=ids.tenant_of(session.subject),
            creator=principal_of(session),
            settings=settings,
            persistent=bool(wanted.persistent),
            locked=bool(wanted.locked),
        )
        existing = (command.speaks, command.hears, command.voice, command.settings) == (None, None, None, None)
        member = self._member(session, command, existing=existing)
        joined, room = await self._enter(session, room_id, member)
        code = room.info.code
        socket.send(encode(wire.RoomCreateAck(code, room_id, None if existing else f"/room/{room_id}")))
        self._admit(session, socket, room, joined)

    async def require_persistent(self, session: Session) -> None:
        """A persistent room keeps its code for weeks after everybody has left."""
        if session.account and not await self._attempts.may_make_persistent(session.account):
            raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, "Too many persistent rooms in a day: use an older one.")

    async def open_room(
        self, *, tenant: str, creator: str, settings: RoomSettings, persistent: bool, locked: bool = False
    ) -> str:
        """A new room without members; it closes if nobody joins it in time."""
        room_id = ids.room_id()
        for _ in range(CODE_TRIES):
            code = ids.room_code()
            if await self._store.claim_code(code, room_id):
                break
        else:
            raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, "No room code is free: try again later.")
        if persistent:
            await self._store.renew_code(code, room_id, self._store.bounds.ttl_ms(persistent))
        await self._store.create(
            room_id,
            code,
            tenant=tenant,
            creator=creator,
            settings=msgspec.json.encode(settings),
            log_epoch=ids.log_epoch(),
            persistent=persistent,
            locked=locked,
        )
        return room_id

    async def join(self, session: Session, socket: MemberSocket, command: wire.RoomJoin) -> None:
        room_id = command.room_id or await self._room_of_code(socket, command.room_code)
        current = self._local.of_session(session.id)
        if current is not None and current.id != room_id:
            raise RoomRefused(RoomErrorCode.ALREADY_IN_ROOM, "The session is in another room: leave it first.")
        await self._require_access(session, room_id)
        asked = (command.speaks, command.hears, command.voice, command.originals, command.last_room_seq)
        member = self._member(session, command, existing=asked == (None,) * len(asked))
        joined, room = await self._enter(session, room_id, member)
        joined = await self._same_log(room, joined, command)
        if member.existing:
            socket.send(encode(wire.RoomCreateAck(room.info.code, room_id)))
            cursor = joined.seq
        else:
            cursor, complete = await self._cursor(room, joined, command)
            socket.send(encode(self._joined(room, joined, complete)))
        await self._local.send_from(room, self._add(session, socket, room, joined), cursor)
        self.announce_change(room, joined.version, joined.instances)

    async def _require_access(self, session: Session, room_id: str) -> None:
        """A room belongs to a tenant: for the clients of others it does not exist."""
        claim = session.room_claim
        if claim is not None and claim.room != room_id:
            raise RoomRefused(RoomErrorCode.NOT_ALLOWED, "The token is for another room.")
        known = self._local.find(room_id)
        info = known.info if known is not None else await self._store.info(room_id)
        if info is None or info.tenant != ids.tenant_of(session.subject):
            raise refused(Refusal.NONE)

    def _admit(self, session: Session, socket: MemberSocket, room: LocalRoom, joined: Joined) -> None:
        """A member for whom the log is empty."""
        if not joined.member.existing:
            socket.send(encode(self._joined(room, joined, complete=True)))
        room.go_live(self._add(session, socket, room, joined))
        self.announce_change(room, joined.version, joined.instances)

    async def _enter(self, session: Session, room_id: str, member: Member) -> tuple[Joined, LocalRoom]:
        """Into the room's members. The room is noted with the session first: whatever happens, it is left again."""
        await self._store.note_session(session.id, room_id, member.epoch)
        joined = await self._store.join(room_id, member)
        if isinstance(joined, Refusal):
            if self._local.of_session(session.id) is None:
                await self._store.forget_session(session.id)
            raise refused(joined)
        room = await self._local.open(room_id, joined.seq)
        if room is None or session.over:
            self._local.close_if_empty(room_id)
            await self.session_over(session.id, member.epoch)
            raise refused(Refusal.NONE)
        return joined, room

    def _add(self, session: Session, socket: MemberSocket, room: LocalRoom, joined: Joined) -> LocalMember:
        """What was said until now is not shown in a room that the session has just joined."""
        before = room.members.get(session.id)
        if before is None and not joined.again:
            session.end_turn()
        first_index = 0 if joined.again else session.input.next_index
        member = LocalMember(joined.member, socket, session.trace_id, before, first_index)
        self._local.add(room, member)
        return member

    async def _cursor(self, room: LocalRoom, joined: Joined, command: wire.RoomJoin) -> tuple[int, bool]:
        """From where the member reads the log, and whether that is everything it has asked for."""
        oldest, last = joined.first_seq - 1, command.last_room_seq
        if last is None:
            known = room.after_captions(self._history)
            return max(known, oldest), True
        same_log = command.log_epoch in (None, joined.log_epoch) and last <= joined.seq
        return (max(last, oldest), last >= oldest) if same_log else (oldest, False)

    async def _same_log(self, room: LocalRoom, joined: Joined, command: wire.RoomJoin) -> Joined:
        """A member may be the first that knows of entries that Redis has lost."""
        if command.log_epoch == joined.log_epoch and (command.last_room_seq or 0) > joined.seq:
            await self._local.restart(room)
        elif joined.log_epoch != room.log_epoch:
            await self._local.follow(room, joined.log_epoch)
        return replace(joined, log_epoch=room.log_epoch)

    def _joined(self, room: LocalRoom, joined: Joined, complete: bool) -> wire.RoomJoined:
        hears = joined.member.hears
        unserved = None if hears in self._view.fleet.text_targets() else hears
        return room.joined(joined.member, joined.seq, complete=complete, unserved=unserved)

    def _member(self, session: Session, command: wire.RoomCreate | wire.RoomJoin, *, existing: bool) -> Member:
        init = session.init
        preferred = command.preferred_lang or None
        speaks = command.speaks or preferred or init.src_lang
        own = speaks if speaks != AUTO else init.tgt_lang
        claim = session.room_claim
        reads_only = isinstance(command, wire.RoomJoin) and command.listener is True
        return Member(
            session=session.id,
            instance=self._instance,
            epoch=epoch_of(session),
            name=clean_name(command.display_name) or f"Guest {session.id[-4:]}",
            speaks=speaks,
            hears=command.hears or preferred or own,
            principal=principal_of(session),
            voice=existing or bool(command.voice),  # an existing client marks every result without sound as incomplete
            originals=command.originals is not False if isinstance(command, wire.RoomJoin) else True,
            existing=existing,
            role=Role.LISTENER if reads_only else claim.role if claim is not None else Role.SPEAKER,
            claimed=reads_only or claim is not None,  # a page of captions never becomes host
        )

    async def _room_of_code(self, socket: MemberSocket, code: str | None) -> str:
        if not code:
            raise RoomRefused(RoomErrorCode.INVALID_ROOM_CODE, "Name the room by `room_id` or `room_code`.")
        address = socket.peer[0]
        return await self.room_of_code(code, "" if is_loopback(address) else address, socket.id)

    async def room_of_code(self, code: str, address: str, connection: int | None = None) -> str:
        """10 wrong codes a minute for a connection, and for an address at all instances together: a code has six digits
        only. An address of "" is not counted."""
        if not self._join_by_code:
            raise RoomRefused(RoomErrorCode.INVALID_ROOM_CODE, "Codes are switched off here: use the link of the room.")
        now, tried_by = monotonic(), [key for key in (address, connection) if key not in ("", None)]
        # Asked here first: an address that goes on guessing makes no work for Redis.
        may_try = all(self._wrong_codes.has(key, now) for key in tried_by)
        if not may_try or (address and not await self._attempts.may_try_code(address)):
            raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, "Too many wrong codes: wait a minute.")
        found = await self._store.room_of_code(code) if code.isascii() and code.isdigit() else None
        if found is None:
            for key in tried_by:
                self._wrong_codes.take(key, now)
            if address:
                await self._attempts.wrong_code(address)
            raise RoomRefused(RoomErrorCode.INVALID_ROOM_CODE, "No room has this code.")
        return found

    # -- members ---------------------------------------------------------------------------------

    async def update(self, session: Session, command: wire.RoomUpdate) -> None:
        names = ("speaks", "hears", "voice", "originals", "muted")
        changes = {name: value for name in names if (value := getattr(command, name)) is not None and value != ""}
        if name := clean_name(command.display_name):
            changes["name"] = name
        self.require_room(session)
        if changes:
            await self.change(session, changes)

    async def change(self, session: Session, changes: dict[str, Any]) -> None:
        room, _ = self.require_room(session)
        updated = await self._store.update(room.id, session.id, epoch_of(session), changes)
        if not isinstance(updated, Updated):
            raise refused(updated)
        room.changed(updated.member)
        self.announce_change(room, updated.version, updated.instances)

    async def leave(self, session: Session) -> None:
        room, _ = self.require_room(session)
        await self._end_membership(room.id, session.id, epoch_of(session))

    async def session_over(self, session_id: str, epoch: int) -> None:
        """The session has ended, here or with its instance: so has its membership."""
        noted = await retry(lambda: self._store.session_room(session_id))
        if noted is not None:
            await retry(lambda: self._end_membership(noted[0], session_id, epoch))

    async def _end_membership(self, room_id: str, session_id: str, epoch: int) -> None:
        removed = self._local.remove(session_id)
        left = await self._store.leave(room_id, session_id, epoch)
        if isinstance(left, Left):
            self._changed_elsewhere(room_id, left)
        if left is not Refusal.STALE:
            await self._store.forget_session(session_id)
        if removed is not None and not removed[1].socket.closed:
            self._local.changed(removed[0])

    def _changed_elsewhere(self, room_id: str, left: Left) -> None:
        self._log.push(left.instances, RoomChanged(room_id, left.version))
        if (room := self._local.find(room_id)) is not None:
            self._local.changed(room)

    def announce_change(self, room: LocalRoom, version: int, instances: list[str]) -> None:
        self._local.changed(room)
        self._log.push(instances, RoomChanged(room.id, version))

    def on_changed(self, message: RoomChanged) -> None:
        room = self._local.find(message.room_id)
        if room is not None and room.info.version < message.version:
            self._local.changed(room)

    # -- by the host -----------------------------------------------------------------------------

    async def remove(self, session: Session, target: str) -> None:
        room, _ = self.require_room(session)
        left = await self._store.remove(room.id, session.id, epoch_of(session), target)
        if not isinstance(left, Left):
            raise refused(left)
        await self._store.forget_session(target)
        removed = RoomMemberRemoved(room.id, target)
        self.on_member_removed(removed)
        self._log.push([left.instance], removed)
        self.announce_change(room, left.version, left.instances)

    def on_member_removed(self, message: RoomMemberRemoved) -> None:
        room = self._local.of_session(message.session_id)
        if room is not None and room.id == message.room_id:
            found = self._local.remove(message.session_id)
            if found is not None:
                found[1].send(room.expired(RoomEnd.REMOVED))

    async def transfer(self, session: Session, target: str) -> None:
        room, _ = self.require_room(session)
        changed = await self._store.transfer(room.id, session.id, epoch_of(session), target)
        if not isinstance(changed, Changed):
            raise refused(changed)
        self.announce_change(room, changed.version, changed.instances)

    async def close_room(self, room_id: str, reason: str, *, only_if_over: bool = False) -> bool:
        """Close a room and inform its members; False if there is none, or it is not over."""
        closed = await self._store.close(room_id, reason, only_if_over=only_if_over)
        if not isinstance(closed, Closed):
            return False
        await self._store.release_code(closed.code, room_id)
        await self._store.forget_due(room_id)
        self._log.push(closed.instances, RoomEnded(room_id, reason))
        await self._local.close(room_id, reason)
        return True

    async def on_ended(self, message: RoomEnded) -> None:
        await self._local.close(message.room_id, message.reason)

    # -- helpers ---------------------------------------------------------------------------------

    def require_room(self, session: Session) -> tuple[LocalRoom, LocalMember]:
        room = self._local.of_session(session.id)
        member = room.members.get(session.id) if room is not None else None
        if room is None or member is None:
            raise refused(Refusal.NOT_MEMBER)
        return room, member

    def _require_no_room(self, session: Session) -> None:
        if self._local.of_session(session.id) is not None:
            raise RoomRefused(RoomErrorCode.ALREADY_IN_ROOM, "The session is in a room: leave it first.")


def epoch_of(session: Session) -> int:
    """0 for a session that cannot resume."""
    return session.outbox.epoch if session.outbox is not None else 0


def principal_of(session: Session) -> str:
    """Clients without a token share one principal, so each of their sessions counts for itself."""
    return f"{session.subject}#{session.id}" if session.subject.startswith("~anonymous/") else session.subject


def clean_name(name: str | None) -> str:
    """Without control characters and surrounding space."""
    return "".join(char for char in name or "" if char.isprintable()).strip()[:80]
