"""One room that has members on this instance: who they are, and what they are sent.

The socket of a member is the one by which it joined: after a resume nothing is sent to it until it joins again. A
member that has just joined is *live* when it has reached what the others have.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from time import time

import msgspec

from dragoman.domain.rooms import Entry, EntryKind, Member, Role, RoomDelivery, about_of
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
from dragoman.services.sockets import MemberSocket
from dragoman.store.rooms.rooms import RoomInfo

MAX_ORIGINALS = 512  # captions of a room whose text is known here
MAX_VOICES = 8  # translations of a room that wait for an earlier entry with their sound
MAX_VOICE_BACKLOG = 512 * 1024  # bytes that a member has not taken: it gets no sound until it has
MAX_PARTIAL_BACKLOG = 64 * 1024  # the same for partial text
FIRST_FOREIGN_INDEX = 1_000_000_000  # of utterances of others, for clients that know only translation_result
CONTEXT_SENTENCES = 2  # of a speaker, which nodes get with the next one
LARGE_ROOM = 200  # members above which only the speakers are listed
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


def _send_to(members: "Iterable[LocalMember]", message: Message) -> None:
    """One frame for all of them: encoding a message for each one would take longer than sending it."""
    frame = b""
    for member in members:
        frame = frame or member.socket.frame(encode(message))
        member.socket.send_frame(frame)


class LocalMember:
    """A member whose session is on this instance."""

    __slots__ = ("first_index", "info", "live", "next_index", "said", "socket", "spoken", "trace_id")

    def __init__(
        self, info: Member, socket: MemberSocket, trace_id: str, before: "LocalMember | None", first_index: int = 0
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
        message = CaptionPartial(self.id, caption, about, partial.index, partial.lang, partial.text)
        _send_to([one for one in receivers if one.socket.buffered <= MAX_PARTIAL_BACKLOG], message)

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
        message = message_of(self.id, entry, self._text_of(entry))
        if voice is not None:
            listeners = [one for one in receivers if one.takes_voice]
            _send_to(listeners, _with_voice(message, voice))
            receivers = [one for one in receivers if one not in listeners]
        _send_to(receivers, message)
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
        _send_to(self.members.values(), message)

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
