"""Translations of chat messages, for users that ask for them. Sending, receipts and order do not depend on it.

    TRANSLATE, or a message sent to a user that wants translations
        ─▶ the row, in batches ─▶ a stored translation, or one text job ─▶ stored ─▶ TRANSLATION

`TranslationQueue` decides. A key in Redis makes two instances translate a message once: the second one waits for the
row of the first. Texts are in no log line.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from time import monotonic

import structlog

from dragoman.archive import ERASED, Archive, ArchiveError, Stored
from dragoman.domain.chat.rules import WordFilter, utf16_units
from dragoman.domain.chat.translations import Request, TranslationQueue, Waits, Work
from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Frame, Reason, Untranslated
from dragoman.protocol.codes import ErrorCode, TextKind
from dragoman.services.chat.inbound import Inbound, now_ms
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.speech.text_jobs import TextJobs, TextRequest
from dragoman.store.chat.users import Translating
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

AUTO = "auto"
ASKER = "chat"
BATCH = 32  # messages looked up at a time
PAUSE_S = 0.01  # between two look-ups, and between two jobs at least: speech uses the same event loop
LATE_FACTOR = 4  # the pause is longer by so many times its own delay, because others wait for the loop
MAX_PAUSE_S = 1.0
POLL_S = 0.2  # for a message that is not saved yet, and for a job of another instance
STORE_S = 1.0  # how long a translation waits for the database before it is sent without being stored
MAX_JOB_MS = 600_000

ChatRequest = Request[Inbound]
Answer = str | Untranslated | Reason


@dataclass(frozen=True, slots=True)
class TranslationSettings:
    timeout_ms: int
    per_minute: int
    max_waiting: int
    max_jobs: int
    max_units: int


class Translations:
    def __init__(
        self,
        archive: Archive,
        translating: Translating,
        text_jobs: TextJobs,
        serves: Callable[[str, str], bool],
        words: WordFilter,
        metrics: Metrics,
        tasks: Tasks,
        settings: TranslationSettings,
    ) -> None:
        """`serves`: whether some node translates texts of this language into that one."""
        self._archive, self._translating, self._text_jobs, self._serves = archive, translating, text_jobs, serves
        self._words, self._metrics, self._tasks, self._settings = words, metrics, tasks, settings
        self._queue: TranslationQueue[Inbound] = TranslationQueue(
            settings.timeout_ms / 1000, settings.per_minute, settings.max_waiting, settings.max_jobs
        )
        self._looking_up, self._more = False, asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._pausing, self._pause_s = False, PAUSE_S

    # -- requests --------------------------------------------------------------------------------

    def receive(self, user: ChatUser, frame: Frame) -> None:
        """A TRANSLATE."""
        if frame.serverMsgId is None:
            user.error(Reason.MISSING_SERVER_MSG_ID)
        elif not frame.lang:
            user.error(Reason.MISSING_LANG, None, frame.serverMsgId)
        else:
            self.ask(user.inbound, frame.serverMsgId, frame.lang)

    def ask(self, receiver: Inbound, id: int, lang: str, *, automatic: bool = False) -> None:
        if not self._queue.ask(receiver, id, lang, monotonic(), automatic=automatic):
            self._send(receiver, id, lang, Untranslated.BUSY)
            return
        self._metrics.chat_translations_waiting.set(len(self._queue))
        if self._timer is None:
            self._set_timer()
        self._more.set()
        if not self._looking_up:
            self._looking_up = True
            self._tasks.spawn(self._look_up(), "chat-translations")

    def automatic(self, lang: str) -> "TranslationForConnection":
        """For a connection that wants every message in this language."""
        return TranslationForConnection(self, lang)

    async def stored(self, ids: list[int], lang: str) -> dict[int, str]:
        """Those that are stored; none while the database is unavailable."""
        try:
            return await self._archive.translations(ids, lang)
        except ArchiveError:
            return {}

    # -- look-ups --------------------------------------------------------------------------------

    async def _look_up(self) -> None:
        try:
            while True:
                requests = self._queue.to_look_up(BATCH)
                if requests:
                    await self._look_up_batch(requests)
                    self._start_job()
                    await asyncio.sleep(PAUSE_S)
                elif self._queue.unsaved_count:
                    self._more.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S):
                            await self._more.wait()
                    self._queue.look_again()
                else:
                    return
        finally:
            self._looking_up = False

    async def _look_up_batch(self, requests: list[ChatRequest]) -> None:
        try:
            rows = await self._archive.messages([one.id for one in requests])
            stored = {
                lang: await self._archive.translations([one.id for one in requests if one.lang == lang], lang)
                for lang in {one.lang for one in requests}
            }
        except ArchiveError as error:
            log.warning("translations wait for the database", error=str(error), limited=True)
            for request in requests:
                self._queue.unsaved(request)
            return
        for request in requests:
            row = rows.get(request.id)
            if request.receiver.closed:
                self._answer(request, "gone", None)
            elif row is None:
                self._queue.unsaved(request)
            elif (text := stored[request.lang].get(request.id)) is not None and request.user in _users(row):
                self._answer(request, "stored", text)
            else:
                self._decide(request, row)

    def _decide(self, request: ChatRequest, row: Stored) -> None:
        source = row.lang or AUTO
        if request.user not in _users(row):
            self._answer(request, Reason.MESSAGE_NOT_FOUND, Reason.MESSAGE_NOT_FOUND)
        elif row.msg_type == ERASED:
            self._answer(request, Untranslated.FAILED, Untranslated.FAILED)
        elif source == request.lang:
            self._answer(request, "same_language", None if request.automatic else row.body)
        elif utf16_units(row.body) > self._settings.max_units:
            self._answer(request, Untranslated.TOO_LONG, Untranslated.TOO_LONG)
        elif not self._serves(source, request.lang):
            self._answer(request, Untranslated.NO_NODE, Untranslated.NO_NODE)
        else:
            self._queue.ready(request, source, row.body)

    # -- jobs ------------------------------------------------------------------------------------

    def _start_job(self) -> None:
        """The next one, unless one was started just before; then it is started after the pause."""
        if self._pausing or (work := self._queue.next_job()) is None:
            return
        self._tasks.spawn(self._run(work), "chat-translation")
        self._pausing = True
        due = monotonic() + self._pause_s
        asyncio.get_running_loop().call_later(self._pause_s, self._pause_ended, due)

    def _pause_ended(self, due: float) -> None:
        self._pausing = False
        self._pause_s = min(PAUSE_S + LATE_FACTOR * max(monotonic() - due, 0.0), MAX_PAUSE_S)
        self._start_job()

    async def _run(self, work: Work[Inbound]) -> None:
        answer: Answer = Untranslated.FAILED
        try:
            answer = await self._translate(work, max(request.deadline for request in work.requests))
        except (StoreError, ArchiveError) as error:
            log.warning("a chat message is not translated", message=work.id, error=str(error), limited=True)
        finally:
            end = answer.value if isinstance(answer, Untranslated) else "translated"
            for request in self._queue.ended(work):
                self._answer(request, end, answer)
            self._start_job()

    async def _translate(self, work: Work[Inbound], deadline: float) -> Answer:
        while not await self._translating.begin(work.id, work.lang):  # another instance does it
            await asyncio.sleep(POLL_S)
            if (found := await self._stored_one(work)) is not None:
                return found
            if monotonic() >= deadline:
                return Untranslated.BUSY
        try:
            if (found := await self._stored_one(work)) is not None:  # since the look-up
                return found
            left_ms = int((deadline - monotonic()) * 1000)
            if left_ms <= 0:
                return Untranslated.BUSY
            end = await self._job(work, min(left_ms, MAX_JOB_MS))
            text = end.result.text_translated if end.outcome is Outcome.OK and end.result is not None else None
            if not text:
                return self._reason(work, end)
            text = self._words.clean(text)
            await self._store(work, text, end.node_id or "")
            return text
        finally:
            await self._translating.end(work.id, work.lang)

    async def _stored_one(self, work: Work[Inbound]) -> str | None:
        return (await self._archive.translations([work.id], work.lang)).get(work.id)

    async def _job(self, work: Work[Inbound], timeout_ms: int) -> End:
        ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        request = TextRequest(
            request_id=f"chat:{work.id}:{work.lang}:{token_hex(4)}",
            asker=ASKER,
            kind=TextKind.CHAT,
            text=work.text,
            src_lang=work.src_lang,
            tgt_lang=work.lang,
            timeout_ms=timeout_ms,
        )
        self._text_jobs.translate(request, partial(_resolve, ended))
        return await ended

    async def _store(self, work: Work[Inbound], text: str, node_id: str) -> None:
        try:
            await retry(
                lambda: self._archive.add_translation(work.id, work.lang, text, node_id),
                until=monotonic() + STORE_S,
                on=ArchiveError,
            )
        except ArchiveError as error:
            log.warning("a translation is sent and not stored", message=work.id, error=str(error), limited=True)

    def _reason(self, work: Work[Inbound], end: End) -> Untranslated:
        if end.code == ErrorCode.NODE_OVERLOADED:
            return Untranslated.BUSY
        if end.code == ErrorCode.NO_AVAILABLE_NODE:
            return Untranslated.BUSY if self._serves(work.src_lang, work.lang) else Untranslated.NO_NODE
        return Untranslated.FAILED

    # -- answers ---------------------------------------------------------------------------------

    def _answer(self, request: ChatRequest, end: str, answer: Answer | None) -> None:
        """Once for each request. None: the user gets no answer."""
        if not self._queue.answered(request):
            return
        self._metrics.chat_translations_waiting.set(len(self._queue))
        if answer is None:
            self._metrics.chat_translations.labels(end).inc()
        else:
            self._send(request.receiver, request.id, request.lang, answer, end)

    def _send(self, receiver: Inbound, id: int, lang: str, answer: Answer, end: str = "") -> None:
        match answer:
            case Reason():
                frame = wire.error(answer, now_ms(), server_msg_id=id)
            case Untranslated():
                frame = wire.translation(id, lang, now_ms(), reason=answer)
            case _:
                frame = wire.translation(id, lang, now_ms(), body=answer)
        self._metrics.chat_translations.labels(end or answer).inc()
        if not receiver.closed:
            receiver.send(frame)

    def _set_timer(self) -> None:
        deadline = self._queue.deadline()
        if deadline is None:
            self._timer = None
        else:
            wait_s = max(deadline - monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._deadline_passed)

    def _deadline_passed(self) -> None:
        for request in self._queue.late(monotonic()):
            match request.waits:
                case Waits.ROW:
                    self._answer(request, Reason.MESSAGE_NOT_FOUND, Reason.MESSAGE_NOT_FOUND)
                case Waits.TURN:
                    self._answer(request, Untranslated.BUSY, Untranslated.BUSY)
                case Waits.NODE:
                    self._answer(request, Untranslated.FAILED, Untranslated.FAILED)
        self._set_timer()


class TranslationForConnection:
    """Asks for the translation of each message that a connection is sent, unless it has one or needs none."""

    def __init__(self, translations: Translations, lang: str) -> None:
        self._translations, self._lang = translations, lang

    def sent(self, receiver: Inbound, frame: bytes) -> None:
        message = wire.decode_server_frame(frame)
        wanted = message.translation is None and message.lang != self._lang and message.msgType != ERASED
        if wanted and message.serverMsgId is not None:
            self._translations.ask(receiver, message.serverMsgId, self._lang, automatic=True)

    async def stored(self, ids: list[int]) -> dict[int, wire.Translation]:
        found = await self._translations.stored(ids, self._lang)
        return {id: wire.Translation(self._lang, body) for id, body in found.items()}


def _users(row: Stored) -> tuple[int, int]:
    return row.from_user, row.to_user


def _resolve(ended: "asyncio.Future[End]", _: TextRequest, end: End) -> None:
    if not ended.done():
        ended.set_result(end)
