"""What members of rooms say aloud: the jobs of their utterances, the captions that these become, and partial text.

    begin_turn, utterance ─▶ how the job of an utterance must be: recognise only, or translate into one language, too
    publish ─▶ append_original, then text jobs; `lost` if there is no text ─▶ the session settles its index

The log decides, not the session: appending is idempotent by the caption's id, and a caption and its loss exclude each
other. So an utterance that two instances end, or one instance twice, is in the log once. The utterances of one session
are appended one after another. A text that was recognised and not appended was shown to nobody.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic, time

import msgspec
import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.limits.rates import RatePerKey
from dragoman.domain.rooms import AUTO, About, Member, SpeakerPace, plan_speech
from dragoman.protocol.codes import CancelReason, ErrorCode, RoomErrorCode
from dragoman.protocol.extra import detected_language
from dragoman.protocol.peer import RoomPartial, RoomUtterance
from dragoman.services.loops import KeyedQueues, Tasks, retry
from dragoman.services.rooms.local_room import LocalMember, LocalRoom
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.rooms.membership import settings_of
from dragoman.services.rooms.room_log import DUPLICATE, Asking, Captions, RoomLog, caption_of, reason_of
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.job_request import InRoom, RoomTurn, Spoken
from dragoman.store.errors import StoreError
from dragoman.store.rooms.rooms import Refusal, RoomInfo, Rooms

log = structlog.get_logger(__name__)

APPEND_S = 30.0  # how long an utterance waits for Redis
MAX_DETECTED = 10_000  # sessions whose spoken language was detected

_REFUSED: dict[Refusal, tuple[RoomErrorCode, str]] = {
    Refusal.PAUSED: (RoomErrorCode.ROOM_PAUSED, "The host has paused the room: what you said is not shown."),
    Refusal.NOT_MEMBER: (RoomErrorCode.NOT_IN_ROOM, "You left the room before this was recognised: it is not shown."),
    Refusal.NONE: (RoomErrorCode.ROOM_NOT_FOUND, "The room was closed before this was recognised: it is not shown."),
}


class RoomSpeakers:
    def __init__(
        self,
        store: Rooms,
        local: LocalRooms,
        room_log: RoomLog,
        captions: Captions,
        view: FleetView,
        tasks: Tasks,
        *,
        caption_rate: RatePerKey | None,
        audio_s_per_minute: int,
    ) -> None:
        """`caption_rate`: shared with typed sentences."""
        self._store, self._local, self._log, self._captions, self._view = store, local, room_log, captions, view
        self._caption_rate = caption_rate
        self._audio_rate = RatePerKey(audio_s_per_minute) if audio_s_per_minute else None
        self._queues = KeyedQueues(tasks, "room-speech")
        self._restored: dict[str, _Speaker] = {}
        self._paces: dict[str, SpeakerPace] = {}
        self._detected: dict[str, str] = {}  # session → spoken language

    # -- how an utterance is spoken --------------------------------------------------------------

    def _find(self, session_id: str) -> "_Speaker | None":
        room = self._local.of_session(session_id)
        member = room.members.get(session_id) if room is not None else None
        if room is None or member is None:
            return self._restored.get(session_id)
        self._restored.pop(session_id, None)
        return _Speaker(room.info, member.info, room, member)

    async def restore(self, session_id: str) -> None:
        """The session continues on this instance: what it says goes to its room, also before it has joined again."""
        noted = await self._store.session_room(session_id)
        if noted is None:
            return
        info, member = await asyncio.gather(self._store.info(noted[0]), self._store.member(noted[0], session_id))
        if info is not None and not info.closed and member is not None:
            self._restored[session_id] = _Speaker(info, member)

    def begin_turn(self, session_id: str, src_lang: str | None) -> RoomTurn | None:
        speaker = self._find(session_id)
        if speaker is None:
            return None
        spoken, heard = src_lang or speaker.member.speaks, speaker.heard
        view = self._view
        plan = plan_speech(
            spoken,
            heard,
            {(spoken, lang) for lang in heard if view.serves_text(spoken, lang)},
            {(spoken, lang) for lang in heard if view.serves_speech(spoken, lang)},
        )
        return RoomTurn(speaker.info.room, spoken, plan.target, bool(plan.target) and speaker.wants_voice(plan.target))

    def utterance(self, session_id: str, turn: RoomTurn, epoch: int, audio_ms: int) -> InRoom:
        speaker = self._find(session_id)
        name = speaker.member.name if speaker is not None else ""
        started_ms = int(time() * 1000) - audio_ms
        utterance = RoomUtterance(turn.room_id, epoch, name, turn.lang, turn.target, started_ms, audio_ms)
        if speaker is None or speaker.info.room != turn.room_id:
            return InRoom(turn, utterance, refused=_refused(*_NOT_IN_ROOM))
        refused = self._refusal(session_id, speaker, audio_ms / 1000)
        return InRoom(turn, utterance, settings_of(speaker.info).vocabulary, speaker.context, refused)

    def _refusal(self, session_id: str, speaker: "_Speaker", audio_s: float) -> End | None:
        member, now = speaker.member, monotonic()
        if member.muted:
            return _refused(RoomErrorCode.NOT_ALLOWED, "You are muted in this room.")
        if not member.may_speak:
            return _refused(RoomErrorCode.NOT_ALLOWED, "You may read in this room, not speak.")
        if speaker.info.paused:
            return _refused(*_REFUSED[Refusal.PAUSED])
        if self._caption_rate is not None and not self._caption_rate.take(session_id, now):
            return _refused(RoomErrorCode.LIMIT_EXCEEDED, "Too many captions in a minute: wait a moment.")
        if self._audio_rate is not None and not self._audio_rate.take(session_id, now, audio_s):
            return _refused(RoomErrorCode.LIMIT_EXCEEDED, "Too much speech in a minute: send it in real time.")
        return None

    def vocabulary(self, session_id: str) -> tuple[str, ...]:
        speaker = self._find(session_id)
        return settings_of(speaker.info).vocabulary if speaker is not None else ()

    def language(self, session_id: str) -> str | None:
        speaker = self._find(session_id)
        return speaker.member.speaks if speaker is not None else None

    def over(self, session_id: str) -> None:
        self._restored.pop(session_id, None)
        self._paces.pop(session_id, None)
        self._detected.pop(session_id, None)

    # -- its caption -----------------------------------------------------------------------------

    def publish(self, spoken: Spoken, then: Callable[[End], object]) -> None:
        self._queues.add(spoken.session_id, lambda: self._publish(spoken, then))

    async def _publish(self, spoken: Spoken, then: Callable[[End], object]) -> None:
        end = spoken.end
        try:
            if end.outcome is Outcome.OK:
                end = await retry(lambda: self._append(spoken), until=monotonic() + APPEND_S)
            if end.outcome is Outcome.EMPTY:
                self._disappear(spoken)
            elif end.outcome is not Outcome.OK and end.code != DUPLICATE:
                await retry(lambda: self._lose(spoken, end), until=monotonic() + APPEND_S)
        except StoreError as error:
            log.warning("utterance not shown in its room: Redis is unavailable", error=str(error), limited=True)
            end = End(Outcome.FAILED, ErrorCode.SCHEDULER_DEPENDENCY_DOWN, "Redis is unavailable: it is not shown.")
        except Exception:
            log.exception("utterance not shown in its room", room=spoken.utterance.room_id, session=spoken.session_id)
            end = End(Outcome.FAILED, ErrorCode.INTERNAL_ERROR, "It is not shown; the log of the server says why.")
        then(end)

    async def _append(self, spoken: Spoken) -> End:
        """The end for the speaker: a failure if the room has refused the caption."""
        end, utterance, session_id = spoken.end, spoken.utterance, spoken.session_id
        result, room = end.result, self._local.find(utterance.room_id)
        text = (result.text_asr or "").strip() if result is not None else ""
        if result is None or not text:
            return End(Outcome.EMPTY, end.code, end.message, result, end.node_id)
        member = room.members.get(session_id) if room is not None else None
        lang = utterance.lang if utterance.lang != AUTO else self._detect(spoken)
        highest = max(spoken.highest_sent, member.spoken if member is not None else -1)
        about = About(
            session_id, utterance.name, "speech", utterance.started_ms, spoken.index, utterance.duration_ms,
            backfilled=True if spoken.index < highest else None,
        )  # fmt: skip
        self._forget_partial(session_id, spoken.index)
        append = partial(
            self._captions.append, utterance.room_id, caption_of(session_id, spoken.index), session_id, spoken.epoch,
            lang=lang, text=text, about=msgspec.json.encode(about), asking=await self._asking(spoken, room),
            translated={utterance.target: end} if utterance.target else None,
        )  # fmt: skip
        refusal = await append()
        if refusal is Refusal.NOT_MEMBER and member is not None and room is not None:
            await self._local.join_again(room)  # Redis may have lost that it joined
            refusal = await append()
        if refusal is None and member is not None:
            member.said_caption(text, spoken.index)
        # A fenced session continues elsewhere: its outbox sends the end there, and it is appended there.
        return end if refusal in (None, Refusal.FENCED) else _refused(*_REFUSED.get(refusal, _UNKNOWN), end)

    async def _asking(self, spoken: Spoken, room: LocalRoom | None) -> Asking:
        info = room.info if room is not None else await self._store.info(spoken.utterance.room_id)
        if info is None:
            return Asking()
        member = room.members.get(spoken.session_id) if room is not None else None
        context = " ".join(member.said) if member is not None else ""
        return Asking(context, settings_of(info).vocabulary, info.tenant, spoken.account)

    async def _lose(self, spoken: Spoken, end: End) -> None:
        """Nothing is noted for a room that is closed, or paused: its members expect no caption."""
        self._disappear(spoken)
        await self._log.lost(spoken.session_id, spoken.index, spoken.utterance, spoken.epoch, _why_lost(end))

    def _detect(self, spoken: Spoken) -> str:
        found = detected_language(spoken.end.result.extra) if spoken.end.result is not None else None
        if found is None:
            return AUTO
        self._detected[spoken.session_id] = found[0]
        if len(self._detected) > MAX_DETECTED:
            del self._detected[next(iter(self._detected))]
        return found[0]

    # -- partial text ----------------------------------------------------------------------------

    def partial(self, session_id: str, index: int, text: str) -> None:
        """What was recognised so far; '' if nothing will follow. Not of an utterance from before it joined."""
        speaker = self._find(session_id)
        if speaker is None or speaker.local is None or not speaker.member.may_speak or speaker.info.paused:
            return
        if index < speaker.local.first_index:
            return
        pace, now = self._paces.setdefault(session_id, SpeakerPace()), monotonic()
        waits = pace.waiting is not None
        if pace.offer(index, text, now):
            self._show(session_id)
        elif not waits:
            asyncio.get_running_loop().call_later(pace.due_at - now, self._show, session_id)

    def _show(self, session_id: str) -> None:
        pace, speaker = self._paces.get(session_id), self._find(session_id)
        waiting = pace.take(monotonic()) if pace is not None else None
        if waiting is None or speaker is None or speaker.room is None:
            return
        room, member = speaker.room, speaker.member
        lang = member.speaks if member.speaks != AUTO else self._detected.get(session_id)
        if lang is not None:
            index, text = waiting
            shown = RoomPartial(room.id, session_id, member.name, index, lang, text)
            self._log.show_partial(shown, room.instances_hearing(lang))

    def _disappear(self, spoken: Spoken) -> None:
        """No caption follows: members that saw words of it see them disappear."""
        if spoken.session_id in self._paces:
            self.partial(spoken.session_id, spoken.index, "")

    def _forget_partial(self, session_id: str, index: int) -> None:
        pace = self._paces.get(session_id)
        if pace is not None:
            pace.forget(index)


@dataclass(frozen=True, slots=True)
class _Speaker:
    """Where a session speaks. Without `room`, it has not joined again on this instance yet."""

    info: RoomInfo
    member: Member
    room: LocalRoom | None = None
    local: LocalMember | None = None

    @property
    def heard(self) -> Mapping[str, int]:
        return self.room.heard if self.room is not None else {}

    def wants_voice(self, lang: str) -> bool:
        return self.room is not None and self.room.wants_voice(lang)

    @property
    def context(self) -> str:
        return " ".join(self.local.said) if self.local is not None else ""


_NOT_IN_ROOM = (RoomErrorCode.NOT_IN_ROOM, "You are not in the room any more.")
_UNKNOWN = (RoomErrorCode.INTERNAL_ERROR, "The room refused this utterance.")


def _refused(code: RoomErrorCode, message: str, end: End | None = None) -> End:
    return End(Outcome.FAILED, code, message, node_id=end.node_id if end is not None else None)


def _why_lost(end: End) -> str:
    """The reason that members get; `reason_of` has those that text jobs have, too."""
    match end.code:
        case CancelReason.SKIPPED:
            return "skipped"
        case ErrorCode.INSTANCE_LOST:
            return "instance_lost"
        case RoomErrorCode.NOT_IN_ROOM | ErrorCode.SESSION_CLOSED:
            return "left"
    return "left" if end.outcome is Outcome.CANCELLED else reason_of(end)
