"""What clients ask of rooms: create, join, write, leave, and what only a host may.

The commands of one session are executed one after another, each by its own scripts. A refusal is answered with
`room_error` and changes nothing.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, time
from typing import assert_never

import msgspec
import structlog

from dragoman.domain.limits.rates import RatePerKey
from dragoman.domain.limits.sessions import TEXT, UTTERANCE
from dragoman.domain.rooms import About
from dragoman.protocol import rooms as wire
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import RoomEnd, RoomErrorCode
from dragoman.protocol.peer import RoomSignal
from dragoman.services.loops import KeyedQueues, Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.rooms.membership import RoomMembership, RoomRefused, RoomSettings, epoch_of, refused, settings_of
from dragoman.services.rooms.room_log import Asking, Captions, RoomLog
from dragoman.services.rooms.speakers import RoomSpeakers
from dragoman.services.sockets import MemberSocket
from dragoman.services.speech.session import Session
from dragoman.store.errors import StoreError
from dragoman.store.rooms.rooms import Changed, Done, Planned, Refusal, Rooms

log = structlog.get_logger(__name__)

SIGNAL = 1 / 4  # the work of a signal: no script, but up to 64 KiB for another instance
MAX_UNREAD_BYTES = 1 << 20  # of a member that gets signals
MAX_WAITING = 64  # commands of one session
MAX_PREFERENCES = 64  # members whose raw voice one member wants, or does not want


class RoomCommands:
    def __init__(
        self,
        membership: RoomMembership,
        store: Rooms,
        local: LocalRooms,
        room_log: RoomLog,
        captions: Captions,
        speakers: RoomSpeakers,
        metrics: Metrics,
        tasks: Tasks,
        *,
        caption_rate: RatePerKey | None,
        leave_s: float,
    ) -> None:
        """`caption_rate`: shared with sentences that are spoken. `leave_s`: how long a member that leaves waits for the
        captions of what it has said."""
        self._membership, self._store, self._local, self._captions = membership, store, local, captions
        self._log, self._speakers, self._metrics = room_log, speakers, metrics
        self._queues = KeyedQueues(tasks, "room-commands")
        self._caption_rate, self._leave_s = caption_rate, leave_s

    def work_of(self, session: Session, command: wire.RoomCommand) -> float:
        """Of a command, in utterances: its scripts, and the text jobs that it causes."""
        match command:
            case wire.RoomText():
                room = self._local.of_session(session.id)
                return UTTERANCE + TEXT * max(len(room.heard) - 1, 0) if room is not None else UTTERANCE
            case wire.WebrtcOffer() | wire.WebrtcAnswer() | wire.WebrtcIce():
                return SIGNAL
        return UTTERANCE

    # -- one after another -----------------------------------------------------------------------

    def take(self, session: Session, socket: MemberSocket, command: wire.RoomCommand) -> None:
        self._queue(session.id, lambda: self._answer(session, socket, command), socket)

    def _queue(
        self, session_id: str, step: Callable[[], Awaitable[object]], socket: MemberSocket | None = None
    ) -> None:
        if socket is not None and self._queues.waiting(session_id) >= MAX_WAITING:
            too_many = "Too many commands are waiting: wait for an answer, then send the next."
            socket.send(encode(wire.RoomError(RoomErrorCode.LIMIT_EXCEEDED, too_many)))
            self._metrics.room_refused.labels(RoomErrorCode.LIMIT_EXCEEDED).inc()
            return
        self._queues.add(session_id, step)

    async def _answer(self, session: Session, socket: MemberSocket, command: wire.RoomCommand) -> None:
        request_id = command.request_id if isinstance(command, wire.RoomRequest) else None
        try:
            await self._execute(session, socket, command)
        except RoomRefused as error:
            code, why = error.code, error.message
        except StoreError:
            code, why = RoomErrorCode.SCHEDULER_DEPENDENCY_DOWN, "Redis is unavailable: try again in a moment."
        except Exception:
            log.exception("a room command failed", command=type(command).__name__, session=session.id)
            code, why = RoomErrorCode.INTERNAL_ERROR, "The command failed; the log of the server says why."
        else:
            if request_id is not None:
                socket.send(encode(wire.RoomOk(request_id)))
            return
        self._metrics.room_refused.labels(code).inc()
        socket.send(encode(wire.RoomError(code, why, request_id)))

    async def _execute(self, session: Session, socket: MemberSocket, command: wire.RoomCommand) -> None:
        match command:
            case wire.RoomText():
                await self._write(session, command)
            case wire.RoomJoin():
                await self._membership.join(session, socket, command)
            case wire.RoomCreate():
                await self._membership.create(session, socket, command)
            case wire.RoomUpdate():
                await self._membership.update(session, command)
            case wire.RoomTranslate():
                await self._translate(session, command)
            case wire.RoomLeave():
                await self._leave(session)
            case wire.RoomLock(locked):
                await self._set(session, "locked", locked)
            case wire.RoomPause(paused):
                await self._set(session, "paused", paused)
            case wire.RoomChangeSettings(settings):
                await self._change_settings(session, settings)
            case wire.RoomRemove(target):
                await self._membership.remove(session, target)
            case wire.RoomTransfer(target):
                await self._membership.transfer(session, target)
            case wire.RoomClose():
                await self._close(session)
            case wire.RoomRawVoicePreference():
                await self._prefer_raw_voice(session, command)
            case wire.WebrtcOffer() | wire.WebrtcAnswer() | wire.WebrtcIce():
                await self._signal(session, command)
            case _:
                assert_never(command)

    # -- the end of a session --------------------------------------------------------------------

    def session_ended(self, session: Session) -> None:
        """A session of this instance is over. A session that can resume may have joined on another instance."""
        self._speakers.over(session.id)
        if self._local.of_session(session.id) is not None or session.outbox is not None:
            epoch = epoch_of(session)
            self._queue(session.id, lambda: self._membership.session_over(session.id, epoch))

    def session_moved(self, session: Session) -> None:
        """Another instance owns the session: its membership goes on there when the client has joined again."""
        self._speakers.over(session.id)
        self._local.remove(session.id)

    async def _leave(self, session: Session) -> None:
        """What the member has said until now becomes captions first."""
        self._membership.require_room(session)
        await session.said_in_room(self._leave_s)
        self._speakers.over(session.id)
        await self._membership.leave(session)

    # -- captions --------------------------------------------------------------------------------

    async def _write(self, session: Session, command: wire.RoomText) -> None:
        room, member = self._membership.require_room(session)
        text = command.text.strip()
        if not text:
            raise RoomRefused(RoomErrorCode.NOT_ALLOWED, "Field `text`: there is nothing in it.")
        if not member.info.may_speak:
            raise RoomRefused(RoomErrorCode.NOT_ALLOWED, "You may read in this room, not write.")
        if self._caption_rate is not None and not self._caption_rate.take(session.id, monotonic()):
            raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, "Too many captions in a minute: wait a moment.")
        _require_jobs(session)
        about = About(session.id, member.info.name, "text", int(time() * 1000))
        append = partial(
            self._captions.append,
            room.id,
            f"{session.id}:t{command.client_msg_id}",
            session.id,
            member.info.epoch,
            lang=command.lang or member.info.speaks,
            text=text,
            about=msgspec.json.encode(about),
            asking=Asking(" ".join(member.said), settings_of(room.info).vocabulary, room.info.tenant, session.account),
        )
        refusal = await append()
        if refusal is Refusal.NOT_MEMBER:  # Redis may have lost that it joined
            await self._local.join_again(room)
            refusal = await append()
        if refusal is not None:
            raise refused(refusal)
        member.said_caption(text)

    async def _translate(self, session: Session, command: wire.RoomTranslate) -> None:
        room, member = self._membership.require_room(session)
        _require_jobs(session)
        await self._log.announce(room.id)
        found = await self._store.plan(room.id, command.caption_id, command.lang)
        if found is Refusal.NONE:
            raise RoomRefused(RoomErrorCode.CAPTION_NOT_FOUND, "The room has no such caption.")
        if found is Refusal.LANGUAGES:
            too_many = "This caption is in as many languages as a room may have."
            raise RoomRefused(RoomErrorCode.TOO_MANY_LANGUAGES, too_many)
        if isinstance(found, Planned):
            original = room.original(command.caption_id) or await self._store.original(room.id, command.caption_id)
            if original is not None:
                asking = Asking("", settings_of(room.info).vocabulary, room.info.tenant, session.account)
                self._captions.translate(room.id, original, found, asking)
        elif isinstance(found, Done) and found.seq <= room.delivery.delivered:
            # The asker alone gets the entry again, outside its cursor. One that was not delivered here yet follows in
            # its turn: sent now, it would move the client's cursor past the entries before it.
            entries = await self._store.read(room.id, found.seq - 1, 1)
            room.send(member, entries)

    # -- the host --------------------------------------------------------------------------------

    async def _set(self, session: Session, field: str, value: bool | bytes) -> None:
        room, _ = self._membership.require_room(session)
        changed = await self._store.set_field(room.id, session.id, epoch_of(session), field, value)
        if not isinstance(changed, Changed):
            raise refused(changed)
        self._membership.announce_change(room, changed.version, changed.instances)

    async def _change_settings(self, session: Session, wanted: wire.RoomSettings) -> None:
        room, _ = self._membership.require_room(session)
        before = settings_of(room.info)
        if wanted.persistent and not room.info.persistent:
            await self._membership.require_persistent(session)
        settings = RoomSettings(
            before.guests if wanted.guests is None else wanted.guests,
            before.vocabulary if wanted.vocabulary is None else tuple(wanted.vocabulary),
        )
        await self._set(session, "settings", msgspec.json.encode(settings))
        for field in ("locked", "persistent"):
            if (value := getattr(wanted, field)) is not None:
                await self._set(session, field, value)

    async def _close(self, session: Session) -> None:
        room, _ = self._membership.require_room(session)
        # The script decides who is the host.
        changed = await self._store.set_field(room.id, session.id, epoch_of(session), "locked", True)
        if not isinstance(changed, Changed):
            raise refused(changed)
        await self._membership.close_room(room.id, RoomEnd.CLOSED)

    # -- between members -------------------------------------------------------------------------

    async def _prefer_raw_voice(self, session: Session, command: wire.RoomRawVoicePreference) -> None:
        """The others are shown it in the list of members, so it is kept for members only."""
        room, member = self._membership.require_room(session)
        target = command.target_session_id
        if target not in room.members and await self._store.member(room.id, target) is None:
            raise RoomRefused(RoomErrorCode.NOT_IN_ROOM, "`target_session_id`: there is no such member in this room.")
        wanted = {**member.info.raw_voice, target: command.receive_raw_voice}
        if len(wanted) > MAX_PREFERENCES:
            raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, "Too many preferences: only the first ones are kept.")
        await self._membership.change(session, {"raw_voice": wanted})

    async def _signal(self, session: Session, command: wire.WebrtcMessage) -> None:
        """To the member that `to` names, on whichever instance it is, with the sender in its place. A member that reads
        too slowly does not get it: its connection is not closed because of what another one sends."""
        room, _ = self._membership.require_room(session)
        frame = encode(msgspec.structs.replace(command, to=session.id))
        if not self._deliver_signal(room.id, command.to, frame):
            message = RoomSignal(room.id, command.to, msgspec.Raw(frame))
            found = await self._store.member(room.id, command.to)
            if found is None:
                raise RoomRefused(RoomErrorCode.NOT_IN_ROOM, f"`to`: {command.to} is not in this room.")
            self._log.push([found.instance], message)

    def _deliver_signal(self, room_id: str, session_id: str, frame: bytes) -> bool:
        room = self._local.find(room_id)
        member = room.members.get(session_id) if room is not None else None
        if member is None:
            return False
        if member.socket.buffered > MAX_UNREAD_BYTES:
            raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, f"`to`: {session_id} reads too slowly.")
        member.socket.send(frame)
        return True

    def on_signal(self, message: RoomSignal) -> None:
        try:
            self._deliver_signal(message.room_id, message.session_id, bytes(message.frame))
        except RoomRefused as slow:
            self._metrics.room_refused.labels(slow.code).inc()


def _require_jobs(session: Session) -> None:
    if not session.may_ask_for_texts:
        too_many = "Too many of your translations are open: wait until some have ended."
        raise RoomRefused(RoomErrorCode.LIMIT_EXCEEDED, too_many)
