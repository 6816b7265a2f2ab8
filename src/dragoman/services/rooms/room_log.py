"""Appends to the logs of rooms, and brings what was appended to the members on every instance.

    append ─▶ entry to the local members, and one push to each other instance with members

The room is in the index of due rooms before its log is written: if this instance ends, another one ends what is
pending. A push may be lost: the other instance reads the log. The sound of a translation is only in the push.

A sentence becomes captions:

    append_original ─▶ entry to every instance with members
                    └▶ one text job per language ─▶ append_translation ─▶ entry to the same instances

A script decides what is planned, and writes an end only for a language that is still pending. So a retry, a late result
and the end of this instance do no harm: what this instance does not finish, the upkeep of another one ends as
`untranslated`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic, time

import msgspec
import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.rooms import About, Entry, EntryKind
from dragoman.protocol.audio import NO_AUDIO, OPUS
from dragoman.protocol.codes import ErrorCode, TextKind
from dragoman.protocol.peer import InboxMessage, RoomEntries, RoomEntry, RoomPartial, RoomUtterance, RoomVoice
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.routing.router import Router
from dragoman.services.speech.text_jobs import TextJobs, TextRequest
from dragoman.store.inbox import PushReply
from dragoman.store.rooms.rooms import Appended, Planned, Refusal, Rooms

log = structlog.get_logger(__name__)

MAX_ANNOUNCED = 10_000
MAX_LAG_S = 60.0


class RoomLog:
    def __init__(
        self,
        instance: str,
        store: Rooms,
        local: LocalRooms,
        router: Router,
        metrics: Metrics,
        tasks: Tasks,
    ) -> None:
        self._instance, self._store, self._local = instance, store, local
        self._router, self._metrics, self._tasks = router, metrics, tasks
        self._timeout_ms = store.bounds.translate_timeout_ms
        self._announced: OrderedDict[str, float] = OrderedDict()  # room → when it was put into the index of due rooms

    async def announce(self, room_id: str) -> None:
        """Before the log is written: if this instance ends, another one visits the room in time."""
        now = monotonic()
        if now - self._announced.get(room_id, float("-inf")) < self._timeout_ms / 2000:
            return
        await self._store.announce(room_id, self._timeout_ms)
        self._announced[room_id] = now
        self._announced.move_to_end(room_id)
        if len(self._announced) > MAX_ANNOUNCED:
            self._announced.popitem(last=False)

    # -- appending -------------------------------------------------------------------------------

    async def append(
        self, room_id: str, caption: str, session: str, epoch: int, *, lang: str, text: str, about: bytes
    ) -> tuple[Appended | Refusal, list[Entry]]:
        """What a member said. It is in the log, now or from an earlier try; the caller distributes the new entry."""
        return await self._append(EntryKind.ORIGINAL, room_id, caption, session, epoch, lang, text, about)

    async def lost(self, session: str, index: int, utterance: RoomUtterance, epoch: int, reason: str) -> None:
        """An utterance that was spoken in the room has no caption, and will have none. Nothing happens if it has one,
        or if the room is over."""
        about = About(session, utterance.name, "speech", utterance.started_ms, index, utterance.duration_ms)
        caption, data = caption_of(session, index), msgspec.json.encode(about)
        lang = utterance.lang
        appended, entries = await self._append(
            EntryKind.LOST, utterance.room_id, caption, session, epoch, lang, reason, data
        )  # fmt: skip
        if isinstance(appended, Appended) and entries:
            self.distribute(utterance.room_id, entries, appended.instances)
            self._metrics.room_lost.labels(reason).inc()
            log.info("utterance lost in a room", room=utterance.room_id, session=session, index=index, reason=reason)

    async def note_lost(self, session: str, index: int, utterance: RoomUtterance, epoch: int, reason: str) -> None:
        """Its session is over: nothing else ends this utterance, so it is tried until Redis has it."""
        await retry(lambda: self.lost(session, index, utterance, epoch, reason))

    async def _append(
        self, kind: EntryKind, room_id: str, caption: str, session: str, epoch: int, lang: str, text: str, about: bytes
    ) -> tuple[Appended | Refusal, list[Entry]]:
        await self.announce(room_id)
        is_lost = kind is EntryKind.LOST
        appended = await self._store.append_original(
            room_id, caption, session, epoch, lang=lang, text=text, about=about, lost=is_lost
        )
        if isinstance(appended, Refusal) or appended.again:
            return appended, []
        return appended, [Entry(appended.seq, kind, caption, lang, text, about, appended.at_ms)]

    # -- distribution ----------------------------------------------------------------------------

    def distribute(
        self, room_id: str, entries: list[Entry], instances: Iterable[str], voice: RoomVoice | None = None
    ) -> None:
        """To the members on every instance. A push that fails costs a moment: the other instance reads the log.
        `voice`: of the last entry."""
        appended_at = time()
        self._deliver(room_id, entries, appended_at, voice)
        wire = [
            RoomEntry(one.seq, one.kind, one.caption, one.lang, one.text, one.about.decode(), one.at_ms)
            for one in entries
        ]
        self.push(instances, RoomEntries(room_id, wire, appended_at, voice))

    def push(self, instances: Iterable[str], message: InboxMessage) -> None:
        """To the other ones of these instances."""
        for instance in instances:
            if instance != self._instance:
                self._tasks.spawn(self._push(instance, message), "room-push")

    async def _push(self, instance: str, message: InboxMessage) -> None:
        pushed = await self._router.push(instance, message)
        if pushed is PushReply.OK or not isinstance(message, RoomEntries) or message.voice is None:
            return
        self._metrics.room_voice_dropped.inc()
        if pushed is PushReply.TOO_LARGE:
            await self._router.push(instance, msgspec.structs.replace(message, voice=None))

    def on_entries(self, message: RoomEntries) -> None:
        entries = [
            Entry(one.seq, EntryKind(one.kind), one.caption, one.lang, one.text, one.about.encode(), one.at_ms)
            for one in message.entries
        ]
        self._deliver(message.room_id, entries, message.appended_at, message.voice)

    def _deliver(self, room_id: str, entries: list[Entry], appended_at: float, voice: RoomVoice | None = None) -> None:
        self._local.receive(room_id, entries, voice)
        lag_s = time() - appended_at
        if 0 <= lag_s < MAX_LAG_S:  # beyond it the clocks of two machines differ
            self._metrics.room_delivery.observe(lag_s)

    # -- partial text ----------------------------------------------------------------------------

    def show_partial(self, partial: RoomPartial, instances: Iterable[str]) -> None:
        self.on_partial(partial)
        self.push(instances, partial)

    def on_partial(self, partial: RoomPartial) -> None:
        room = self._local.find(partial.room_id)
        if room is not None:
            room.show_partial(partial)


def caption_of(session: str, index: int) -> str:
    """The id of the caption of an utterance."""
    return f"{session}:u{index}"


DUPLICATE = "DUPLICATE_REQUEST"


@dataclass(frozen=True, slots=True)
class Asking:
    """What the text jobs of a caption have in common."""

    context: str = ""
    vocabulary: tuple[str, ...] = ()
    tenant: str = "default"
    account: str = ""


class Captions:
    def __init__(self, store: Rooms, log: RoomLog, text_jobs: TextJobs, metrics: Metrics, tasks: Tasks) -> None:
        self._store, self._log, self._text_jobs, self._metrics, self._tasks = store, log, text_jobs, metrics, tasks
        self._timeout_ms = store.bounds.translate_timeout_ms

    async def append(
        self,
        room_id: str,
        caption: str,
        session: str,
        epoch: int,
        *,
        lang: str,
        text: str,
        about: bytes,
        asking: Asking,
        translated: Mapping[str, End] | None = None,
    ) -> Refusal | None:
        """Append what a member said, and have it translated. None: it is in the log, now or from an earlier try.
        `translated`: languages that the job of the utterance has translated into."""
        appended, entries = await self._log.append(room_id, caption, session, epoch, lang=lang, text=text, about=about)
        if isinstance(appended, Refusal):
            return appended
        for planned in appended.planned:
            if translated is not None and planned.lang in translated:
                self._end(room_id, caption, planned, translated[planned.lang])
            else:
                self._translate(room_id, caption, planned, lang, text, asking)
        if entries:  # last: nodes translate while thousands of sockets are written
            self._metrics.room_captions.inc()
            self._log.distribute(room_id, entries, appended.instances)
        return None

    def translate(self, room_id: str, original: Entry, planned: Planned, asking: Asking) -> None:
        """A language that a member has asked for."""
        self._translate(room_id, original.caption, planned, original.lang, original.text, asking)

    def _translate(self, room_id: str, caption: str, planned: Planned, lang: str, text: str, asking: Asking) -> None:
        request = TextRequest(
            request_id=f"{room_id}:{caption}:{planned.lang}:{planned.n}",
            asker=room_id,
            kind=TextKind.ROOM,
            text=text,
            src_lang=lang,
            tgt_lang=planned.lang,
            timeout_ms=self._timeout_ms,
            context_text=asking.context,
            vocabulary=asking.vocabulary,
            voice=planned.voice,
            tenant=asking.tenant,
            account=asking.account,
        )
        self._text_jobs.translate(request, partial(self._translated, caption, planned))

    def _translated(self, caption: str, planned: Planned, request: TextRequest, end: End) -> None:
        if end.code != DUPLICATE:  # then another instance has this translation
            self._end(request.asker, caption, planned, end)

    def _end(self, room_id: str, caption: str, planned: Planned, end: End) -> None:
        self._tasks.spawn(self._append_translation(room_id, caption, planned, end), "room-translation")

    async def _append_translation(self, room_id: str, caption: str, planned: Planned, end: End) -> None:
        text = (end.result.text_translated or "") if end.outcome is Outcome.OK and end.result is not None else ""
        reason = "" if text else reason_of(end)
        appended = await retry(
            lambda: self._store.append_translation(room_id, caption, planned.lang, planned.n, text, reason=reason),
            until=monotonic() + self._timeout_ms / 1000,
        )
        if isinstance(appended, Appended):
            self._metrics.room_translations.labels(reason or "translated").inc()
            kind = EntryKind.UNTRANSLATED if reason else EntryKind.TRANSLATION
            entry = Entry(appended.seq, kind, caption, planned.lang, text or reason, at_ms=appended.at_ms)
            voice = _voice_of(end) if planned.voice and text else None
            self._log.distribute(room_id, [entry], appended.instances, voice)


def _voice_of(end: End) -> RoomVoice | None:
    result = end.result
    if result is None or not result.tts_audio or bytes(result.tts_audio) == bytes(NO_AUDIO):
        return None
    return RoomVoice(result.tts_audio, result.tts_format or OPUS)


def reason_of(end: End) -> str:
    """Why there is no translation, or no caption, as members are sent it."""
    if end.code == ErrorCode.NO_AVAILABLE_NODE:
        return "no_node"
    if end.outcome is Outcome.EXPIRED or end.code == ErrorCode.JOB_TIMEOUT:
        return "timeout"
    return "empty" if end.outcome is Outcome.EMPTY else "failed"
