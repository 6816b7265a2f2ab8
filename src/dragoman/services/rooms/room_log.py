"""Appends to the logs of rooms, and brings what was appended to the members on every instance.

    append ─▶ entry to the local members, and one push to each other instance with members

The room is in the index of due rooms before its log is written: if this instance ends, another one ends what is
pending. A push may be lost: the other instance reads the log. The sound of a translation is only in the push.
"""

from collections import OrderedDict
from collections.abc import Iterable
from time import monotonic, time

import msgspec
import structlog

from dragoman.domain.rooms import About, Entry, EntryKind
from dragoman.protocol.peer import InboxMessage, RoomEntries, RoomEntry, RoomPartial, RoomUtterance, RoomVoice
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.routing.router import Router
from dragoman.store.inbox import PushReply
from dragoman.store.rooms.rooms import Appended, Refusal, Rooms

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
    ) -> Appended | Refusal:
        """What a member said. It is in the log, now or from an earlier try."""
        return await self._append(EntryKind.ORIGINAL, room_id, caption, session, epoch, lang, text, about)

    async def lost(self, session: str, index: int, utterance: RoomUtterance, epoch: int, reason: str) -> None:
        """An utterance that was spoken in the room has no caption, and will have none. Nothing happens if it has one,
        or if the room is over."""
        about = About(session, utterance.name, "speech", utterance.started_ms, index, utterance.duration_ms)
        caption, data = caption_of(session, index), msgspec.json.encode(about)
        lang = utterance.lang
        appended = await self._append(
            EntryKind.LOST, utterance.room_id, caption, session, epoch, lang, reason, data
        )  # fmt: skip
        if isinstance(appended, Appended) and not appended.again:
            self._metrics.room_lost.labels(reason).inc()
            log.info("utterance lost in a room", room=utterance.room_id, session=session, index=index, reason=reason)

    async def note_lost(self, session: str, index: int, utterance: RoomUtterance, epoch: int, reason: str) -> None:
        """Its session is over: nothing else ends this utterance, so it is tried until Redis has it."""
        await retry(lambda: self.lost(session, index, utterance, epoch, reason))

    async def _append(
        self, kind: EntryKind, room_id: str, caption: str, session: str, epoch: int, lang: str, text: str, about: bytes
    ) -> Appended | Refusal:
        await self.announce(room_id)
        is_lost = kind is EntryKind.LOST
        appended = await self._store.append_original(
            room_id, caption, session, epoch, lang=lang, text=text, about=about, lost=is_lost
        )
        if isinstance(appended, Appended) and not appended.again:
            entry = Entry(appended.seq, kind, caption, lang, text, about, appended.at_ms)
            self.distribute(room_id, [entry], appended.instances)
        return appended

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
