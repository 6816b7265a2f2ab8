"""From a sentence to captions: append it to the room's log, have it translated, append the translations.

    append_original ─▶ entry to every instance with members
                    └▶ one text job per language ─▶ append_translation ─▶ entry to the same instances

A script decides what is planned, and writes an end only for a language that is still pending. So a retry, a late result
and the end of this instance do no harm: what this instance does not finish, the upkeep of another one ends as
`untranslated`, because the room is in the index of due rooms before its log is written.
"""

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from time import monotonic, time

import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.rooms import Entry, EntryKind
from dragoman.protocol.codes import ErrorCode, TextKind
from dragoman.protocol.peer import InboxMessage, RoomEntries, RoomEntry
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.routing.router import Router
from dragoman.services.speech.text_jobs import TextJobs, TextRequest
from dragoman.store.rooms.rooms import Appended, Planned, Refusal, Rooms

log = structlog.get_logger(__name__)

MAX_ANNOUNCED = 10_000
MAX_LAG_S = 60.0
DUPLICATE = "DUPLICATE_REQUEST"


class Captions:
    def __init__(
        self,
        instance: str,
        store: Rooms,
        local: LocalRooms,
        text_jobs: TextJobs,
        router: Router,
        metrics: Metrics,
        tasks: Tasks,
        *,
        translate_timeout_ms: int,
    ) -> None:
        self._instance, self._store, self._local, self._text_jobs = instance, store, local, text_jobs
        self._router, self._metrics, self._tasks = router, metrics, tasks
        self._timeout_ms = translate_timeout_ms
        self._announced: OrderedDict[str, float] = OrderedDict()  # room → when it was put into the index of due rooms

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
        context: str = "",
        vocabulary: tuple[str, ...] = (),
        tenant: str = "default",
        account: str = "",
    ) -> Refusal | None:
        """Append what a member said, and have it translated by jobs of `account`. None: it is in the log, now or
        from an earlier try."""
        await self.announce(room_id)
        appended = await self._store.append_original(
            room_id, caption, session, epoch, lang=lang, text=text, about=about
        )
        if isinstance(appended, Refusal):
            return appended
        if not appended.again:
            self._metrics.room_captions.inc()
            entry = Entry(appended.seq, EntryKind.ORIGINAL, caption, lang, text, about, appended.at_ms)
            self.distribute(room_id, [entry], appended.instances)
        for planned in appended.planned:
            self._translate(room_id, caption, planned, lang, text, context, vocabulary, tenant, account)
        return None

    def translate(
        self, room_id: str, original: Entry, planned: Planned, vocabulary: tuple[str, ...], tenant: str, account: str
    ) -> None:
        """A language that a member has asked for."""
        lang, text = original.lang, original.text
        self._translate(room_id, original.caption, planned, lang, text, "", vocabulary, tenant, account)

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

    # -- translations ----------------------------------------------------------------------------

    def _translate(
        self,
        room_id: str,
        caption: str,
        planned: Planned,
        lang: str,
        text: str,
        context: str,
        vocabulary: tuple[str, ...],
        tenant: str,
        account: str,
    ) -> None:
        request = TextRequest(
            request_id=f"{room_id}:{caption}:{planned.lang}:{planned.n}",
            asker=room_id,
            kind=TextKind.ROOM,
            text=text,
            src_lang=lang,
            tgt_lang=planned.lang,
            timeout_ms=self._timeout_ms,
            context_text=context,
            vocabulary=vocabulary,
            voice=planned.voice,
            tenant=tenant,
            account=account,
        )
        self._text_jobs.translate(request, partial(self._translated, caption, planned))

    def _translated(self, caption: str, planned: Planned, request: TextRequest, end: End) -> None:
        if end.code == DUPLICATE:
            return  # another instance has this translation
        self._tasks.spawn(self._append_translation(request.asker, caption, planned, end), "room-translation")

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
            self.distribute(room_id, [entry], appended.instances)

    # -- distribution ----------------------------------------------------------------------------

    def distribute(self, room_id: str, entries: list[Entry], instances: Iterable[str]) -> None:
        """To the members on every instance. A push that fails costs a moment: the other instance reads the log."""
        appended_at = time()
        self._deliver(room_id, entries, appended_at)
        wire = [
            RoomEntry(one.seq, one.kind, one.caption, one.lang, one.text, one.about.decode(), one.at_ms)
            for one in entries
        ]
        self.push(instances, RoomEntries(room_id, wire, appended_at))

    def push(self, instances: Iterable[str], message: InboxMessage) -> None:
        """To the other ones of these instances."""
        for instance in instances:
            if instance != self._instance:
                self._tasks.spawn(self._push(instance, message), "room-push")

    async def _push(self, instance: str, message: InboxMessage) -> None:
        await self._router.push(instance, message)

    def on_entries(self, message: RoomEntries) -> None:
        entries = [
            Entry(one.seq, EntryKind(one.kind), one.caption, one.lang, one.text, one.about.encode(), one.at_ms)
            for one in message.entries
        ]
        self._deliver(message.room_id, entries, message.appended_at)

    def _deliver(self, room_id: str, entries: list[Entry], appended_at: float) -> None:
        self._local.receive(room_id, entries)
        lag_s = time() - appended_at
        if 0 <= lag_s < MAX_LAG_S:  # beyond it the clocks of two machines differ
            self._metrics.room_delivery.observe(lag_s)


def reason_of(end: End) -> str:
    """Why there is no translation, as members are sent it."""
    if end.code == ErrorCode.NO_AVAILABLE_NODE:
        return "no_node"
    if end.outcome is Outcome.EXPIRED or end.code == ErrorCode.JOB_TIMEOUT:
        return "timeout"
    return "empty" if end.outcome is Outcome.EMPTY else "failed"
