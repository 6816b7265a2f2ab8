"""The rooms that have members on this instance: who they are, and what they are sent.

    push of another instance ─┐
    own append ───────────────┼─▶ RoomDelivery: number + 1 ─▶ one frame per kind and language ─▶ sockets
    read of the log ──────────┘

An entry that is missing is read from the log: at once if a later one was pushed, and otherwise by the poll that looks
once a second. A member that has just joined reads the log from its cursor first and is *live* when it has reached what
the others have. The socket of a member is the one by which it joined: after a resume nothing is sent to it until it
joins again.

If Redis has lost entries that were delivered here, the log gets another epoch. Each instance then goes back to the last
entry that it has in common with the log, informs its members by `room_joined`, and lets those join again that Redis has
lost.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from time import time

import msgspec
import structlog

from dragoman.domain.rooms import RECENT, Entry, EntryKind, Member, Role, RoomDelivery, about_of
from dragoman.protocol import ids
from dragoman.protocol.audio import NO_AUDIO, PCM16
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import RoomEnd
from dragoman.protocol.fields import Message
from dragoman.protocol.peer import RoomPartial, RoomVoice
from dragoman.protocol.rooms import (
    Caption,
    CaptionLost,
    CaptionPartial,
    CaptionTranslation,
    RoomExpired,
    RoomJoined,
    RoomMember,
    RoomMembers,
    Speaker,
)
from dragoman.protocol.session import TranslationResult
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.store.rooms.rooms import Refusal, RoomInfo, Rooms

log = structlog.get_logger(__name__)

READ = 500  # entries of one read of the log
MAX_ORIGINALS = 512  # captions of a room whose text is known here
MAX_VOICES = 8  # translations of a room that wait for an earlier entry with their sound
MAX_VOICE_BACKLOG = 512 * 1024  # bytes that a member has not taken: it gets no sound until it has
MAX_PARTIAL_BACKLOG = 64 * 1024  # the same for partial text
FIRST_FOREIGN_INDEX = 1_000_000_000  # of utterances of others, for clients that know only translation_result
CONTEXT_SENTENCES = 2  # of a speaker, which nodes get with the next one
LARGE_ROOM = 200  # members above which only the speakers are listed
MEMBERS_S, LARGE_MEMBERS_S = 0.25, 1.0  # between two lists of members
WHY_OVER: dict[str, str] = {
    RoomEnd.CLOSED: "The host has closed the room.",
    RoomEnd.REMOVED: "The host has removed you from the room.",
    RoomEnd.OPERATOR: "An operator has closed the room.",
    RoomEnd.EMPTY: "The room was empty.",
    RoomEnd.IDLE: "Nothing was said in the room for a long time.",
    RoomEnd.GONE: "The room does not exist any more.",
}


def message_of(room_id: str, entry: Entry, original: str) -> Message:
    """The message for members. `original`: the text of the caption, which stands for a missing translation."""
    if entry.kind is EntryKind.TRANSLATION or entry.kind is EntryKind.UNTRANSLATED:
        missing = entry.kind is EntryKind.UNTRANSLATED
        text, reason = (original, entry.text) if missing else (entry.text, None)
        return CaptionTranslation(room_id, entry.seq, entry.caption, entry.lang, text, reason)
    about = about_of(entry)
    speaker = Speaker(about.session, about.name)
    if entry.kind is EntryKind.LOST:
        return CaptionLost(room_id, entry.seq, entry.caption, speaker, entry.text)
    return Caption(
        room_id=room_id,
        room_seq=entry.seq,
        caption_id=entry.caption,
        speaker=speaker,
        lang=entry.lang,
        text=entry.text,
        source=about.source,
        started_at_ms=about.started_ms,
        utterance_index=about.index,
        duration_ms=about.duration_ms,
        backfilled=about.backfilled,
    )


def _with_voice(message: Message, voice: RoomVoice) -> Message:
    """Of a translation: nothing else has a sound."""
    return msgspec.structs.replace(message, tts_audio=voice.audio, tts_format=voice.format)


class LocalMember:
    """A member whose session is on this instance."""

    __slots__ = ("first_index", "info", "live", "next_index", "said", "socket", "spoken", "trace_id")

    def __init__(
        self, info: Member, socket: Socket, trace_id: str, before: "LocalMember | None", first_index: int = 0
    ) -> None:
        """`before`: the same member, if it has joined again. `first_index`: of its session's first utterance that is
        spoken in the room."""
        self.info, self.socket, self.trace_id = info, socket, trace_id
        self.live = False  # it has received what the others have
        self.first_index: int = before.first_index if before is not None else first_index
        self.spoken: int = before.spoken if before is not None else -1  # the highest index that is a caption
        self.next_index: int = before.next_index if before is not None else FIRST_FOREIGN_INDEX
        self.said: deque[str] = before.said if before is not None else deque(maxlen=CONTEXT_SENTENCES)

    def update(self, info: Member) -> None:
        self.info = info

    def go_live(self) -> None:
        self.live = True

    def said_caption(self, text: str, index: int = -1) -> None:
        """`index`: of an utterance."""
        self.said.append(text)
        self.spoken = max(self.spoken, index)

    @property
    def takes_voice(self) -> bool:
        return self.info.voice and self.socket.buffered <= MAX_VOICE_BACKLOG

    def send(self, message: Message) -> None:
        self.socket.send(encode(message))

    def result(self, entry: Entry, original: Entry, voice: RoomVoice | None) -> None:
        """The caption as a client receives it that knows only translation_result: one per caption, in its language. It
        plays the sound of others as pcm16, whatever its format is."""
        about = about_of(original)
        if about.session == self.info.session:
            return  # in a room a speaker gets no result of its own
        index, self.next_index = self.next_index, self.next_index + 1
        translated = entry.text if entry.kind is EntryKind.TRANSLATION else original.text
        self.send(
            TranslationResult(
                session_id=about.session,
                utterance_index=index,
                job_id=entry.caption,
                trace_id=self.trace_id,
                text_asr=original.text,
                text_translated=translated,
                tts_audio=voice.audio if voice is not None and voice.format == PCM16 else NO_AUDIO,
                tts_format=PCM16,
                scheduler_sent_at_ms=int(time() * 1000),
            )
        )


class LocalRoom:
    def __init__(self, info: RoomInfo, seq: int, entries: Iterable[Entry]) -> None:
        """`entries`: what was in the log before the first member joined here."""
        self.id, self.info = info.room, info
        self.log_epoch = info.log_epoch  # of the entries that were delivered here
        self.members: dict[str, LocalMember] = {}
        before = [entry for entry in entries if entry.seq <= seq]
        self.delivery = RoomDelivery(seq, before)
        self._originals: OrderedDict[str, Entry] = OrderedDict()
        for entry in before:
            self._keep_original(entry)
        self._hearing: dict[str, list[LocalMember]] | None = None  # live members by language
        self._with_originals: list[LocalMember] = []
        self._existing: dict[str, list[LocalMember]] = {}
        self._elsewhere: list[Member] = []  # members on other instances, when they were listed last
        self._voices: OrderedDict[int, RoomVoice] = OrderedDict()

    # -- members ---------------------------------------------------------------------------------

    def add(self, member: LocalMember) -> None:
        self.members[member.info.session] = member
        self._hearing = None

    def remove(self, session_id: str) -> LocalMember | None:
        self._hearing = None
        return self.members.pop(session_id, None)

    def changed(self, info: Member) -> None:
        member = self.members.get(info.session)
        if member is not None:
            member.update(info)
            self._hearing = None

    def go_live(self, member: LocalMember) -> None:
        member.go_live()
        self._hearing = None

    def _group(self) -> dict[str, list[LocalMember]]:
        """Live members by the language they hear. Made once per change, so that a delivery is a loop over sockets."""
        hearing: dict[str, list[LocalMember]] = {}
        existing: dict[str, list[LocalMember]] = {}
        with_originals: list[LocalMember] = []
        for member in self.members.values():
            if not member.live:
                continue
            group = existing if member.info.existing else hearing
            group.setdefault(member.info.hears, []).append(member)
            if member.info.originals and not member.info.existing:
                with_originals.append(member)
        self._hearing, self._existing, self._with_originals = hearing, existing, with_originals
        return hearing

    @property
    def heard(self) -> Counter[str]:
        """How many members hear each language, on all instances, as far as it is known here."""
        here = Counter(one.info.hears for one in self.members.values())
        return here + Counter(one.hears for one in self._elsewhere)

    def wants_voice(self, lang: str) -> bool:
        everybody = [*(one.info for one in self.members.values()), *self._elsewhere]
        return any(one.voice and one.hears == lang for one in everybody)

    def instances_hearing(self, lang: str) -> set[str]:
        """The other ones."""
        return {one.instance for one in self._elsewhere if one.hears == lang}

    # -- entries ---------------------------------------------------------------------------------

    def receive(self, entries: Iterable[Entry], voice: RoomVoice | None = None) -> None:
        """`voice`: of the last of them."""
        entries = list(entries)
        if voice is not None and entries and entries[-1].seq > self.delivery.delivered:
            self._voices[entries[-1].seq] = voice
            if len(self._voices) > MAX_VOICES:
                self._voices.popitem(last=False)
        for entry in self.delivery.receive(entries):
            self._keep_original(entry)
            self._deliver(entry, self._voices.pop(entry.seq, None))

    def show_partial(self, partial: RoomPartial) -> None:
        """To those that hear the language, and to the speaker; not to a member that reads too slowly."""
        caption = f"{partial.session_id}:u{partial.index}"
        if caption in self._originals:
            return
        hearing = self._hearing if self._hearing is not None else self._group()
        speaker = self.members.get(partial.session_id)
        receivers = list(hearing.get(partial.lang, ()))
        if speaker is not None and speaker.live and not speaker.info.existing and speaker not in receivers:
            receivers.append(speaker)
        about = Speaker(partial.session_id, partial.name)
        frame = encode(CaptionPartial(self.id, caption, about, partial.index, partial.lang, partial.text))
        for member in receivers:
            if member.socket.buffered <= MAX_PARTIAL_BACKLOG:
                member.socket.send(frame)

    def restart(self, log_epoch: str, log: list[Entry]) -> int:
        """Continue with another log, and inform the members. Returns how many entries are lost."""
        lost, self.log_epoch = self.delivery.restart(log), log_epoch
        for member in self.members.values():
            if not member.info.existing:
                # A member that is not live yet has received less than the others: nobody knows how much of this log.
                seq = self.delivery.delivered if member.live else 0
                member.send(self.joined(member.info, seq, complete=member.live and not lost))
        self.receive(log)
        return lost

    def joined(self, member: Member, seq: int, *, complete: bool, unserved: str | None = None) -> RoomJoined:
        said = (self.id, self.info.code, member.session, member.role.value, self.log_epoch, seq, complete, unserved)
        return RoomJoined(*said)

    def recent_after(self, seq: int) -> list[Entry] | None:
        """The delivered entries after `seq`; None if some are not in memory."""
        if seq >= self.delivery.delivered:
            return []
        recent = self.delivery.recent
        if not recent or recent[0].seq > seq + 1:
            return None
        return [entry for entry in recent if entry.seq > seq]

    def after_captions(self, captions: int) -> int:
        """The number after which the last `captions` captions lie, as far as they are in memory."""
        for entry in reversed(self.delivery.recent):
            if entry.is_original:
                captions -= 1
                if captions <= 0:
                    return entry.seq - 1
        return self.delivery.recent[0].seq - 1 if self.delivery.recent else self.delivery.delivered

    def send(self, member: LocalMember, entries: Iterable[Entry]) -> None:
        """Entries that the others have already: those that concern the member."""
        for entry in entries:
            self._keep_original(entry)
            if entry.concerns(member.info) and not member.info.existing:
                member.send(message_of(self.id, entry, self._text_of(entry)))

    def _keep_original(self, entry: Entry) -> None:
        if entry.is_original:
            self._originals[entry.caption] = entry
        if len(self._originals) > MAX_ORIGINALS:
            self._originals.popitem(last=False)

    def original(self, caption: str) -> Entry | None:
        return self._originals.get(caption)

    def _text_of(self, entry: Entry) -> str:
        original = self._originals.get(entry.caption)
        return original.text if original is not None else ""

    def _deliver(self, entry: Entry, voice: RoomVoice | None) -> None:
        hearing = self._hearing if self._hearing is not None else self._group()
        members = hearing.get(entry.lang, ())
        if entry.is_original:
            others = (one for one in members if not one.info.originals)
            receivers: Iterable[LocalMember] = (*self._with_originals, *others)
        else:
            receivers = members
        frame, spoken = b"", b""
        for member in receivers:
            if voice is not None and member.takes_voice:
                spoken = spoken or encode(_with_voice(message_of(self.id, entry, self._text_of(entry)), voice))
                member.socket.send(spoken)
                continue
            frame = frame or encode(message_of(self.id, entry, self._text_of(entry)))
            member.socket.send(frame)
        if entry.kind is not EntryKind.LOST and (existing := self._existing.get(entry.lang)):
            self._deliver_results(entry, existing, voice)

    def _deliver_results(self, entry: Entry, members: list[LocalMember], voice: RoomVoice | None) -> None:
        original = self._originals.get(entry.caption)
        if original is not None:
            for member in members:
                member.result(entry, original, voice if member.takes_voice else None)

    # -- the list of members ---------------------------------------------------------------------

    def list_members(self, info: RoomInfo, members: list[Member]) -> None:
        """What the room is now, to all of its local members."""
        self.info = info
        for one in members:
            self.changed(one)
        self._elsewhere = [one for one in members if one.session not in self.members]
        large = len(members) > LARGE_ROOM
        listed = [one for one in members if not large or one.role is not Role.LISTENER][:LARGE_ROOM]
        message = RoomMembers(
            room_code=self.info.code,
            members=[_listed(one) for one in listed],
            count=len(members),
            locked=self.info.locked or None,
            paused=self.info.paused or None,
        )
        frame = encode(message)
        for member in self.members.values():
            member.socket.send(frame)

    def expired(self, reason: str) -> RoomExpired:
        return RoomExpired(self.info.code, WHY_OVER.get(reason, reason), self.id, reason)

    def end(self, reason: str) -> None:
        frame = encode(self.expired(reason))
        for member in self.members.values():
            member.socket.send(frame)
        self.members.clear()
        self._hearing = None


def _listed(member: Member) -> RoomMember:
    joined = datetime.fromtimestamp(member.joined_ms / 1000, UTC)
    return RoomMember(
        participant_id=member.session,
        session_id=member.session,
        raw_voice_preferences=member.raw_voice,
        joined_at=joined.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        display_name=member.name,
        preferred_lang=member.hears,
        speaks=member.speaks,
        hears=member.hears,
        voice=member.voice,
        role=member.role.value,
        muted=member.muted or None,
    )


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
        if room.id not in self._lists:
            pause_s = LARGE_MEMBERS_S if len(room.members) > LARGE_ROOM else MEMBERS_S
            self._lists[room.id] = asyncio.get_running_loop().call_later(pause_s, self._start_list, room)

    def _start_list(self, room: LocalRoom) -> None:
        self._tasks.spawn(self._list_members(room), "room-members")

    async def _list_members(self, room: LocalRoom) -> None:
        self._lists.pop(room.id, None)
        info = await self._store.info(room.id)
        if info is None:
            return
        members = sorted(await self._store.members(room.id), key=lambda one: (one.joined_ms, one.session))
        room.list_members(info, members)

    def _cancel_list(self, room: LocalRoom) -> None:
        due = self._lists.pop(room.id, None)
        if due is not None:
            due.cancel()
