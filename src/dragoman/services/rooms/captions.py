"""From a sentence to captions: append it to the room's log, have it translated, append the translations.

    append_original ─▶ entry to every instance with members
                    └▶ one text job per language ─▶ append_translation ─▶ entry to the same instances

A script decides what is planned, and writes an end only for a language that is still pending. So a retry, a late result
and the end of this instance do no harm: what this instance does not finish, the upkeep of another one ends as
`untranslated`, because the room is in the index of due rooms before its log is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.rooms import Entry, EntryKind
from dragoman.protocol.audio import NO_AUDIO, OPUS
from dragoman.protocol.codes import ErrorCode, TextKind
from dragoman.protocol.peer import RoomVoice
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.room_log import RoomLog
from dragoman.services.speech.text_jobs import TextJobs, TextRequest
from dragoman.store.rooms.rooms import Appended, Planned, Refusal, Rooms

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
        appended = await self._log.append(room_id, caption, session, epoch, lang=lang, text=text, about=about)
        if isinstance(appended, Refusal):
            return appended
        if not appended.again:
            self._metrics.room_captions.inc()
        for planned in appended.planned:
            if translated is not None and planned.lang in translated:
                self._end(room_id, caption, planned, translated[planned.lang])
            else:
                self._translate(room_id, caption, planned, lang, text, asking)
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
