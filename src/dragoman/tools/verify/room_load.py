"""Members of a room that use the SDK and keep a ledger of what they wrote and received while things break.

The first members, one for each language, write. The others read: they lose their connections, change their language,
ask for captions again, leave, and come back as new members. Each phase has a room of its own: the room of the phase
before is left when the next one is opened. Any request of a member waits for the one before.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, assert_never

from dragoman.client import Ended, Event, Renewed, Room, SessionError
from dragoman.protocol.codes import RoomErrorCode
from dragoman.protocol.rooms import (
    Caption,
    CaptionLost,
    CaptionPartial,
    CaptionTranslation,
    RoomCreateAck,
    RoomError,
    RoomExpired,
    RoomJoined,
    RoomMembers,
    RoomMessage,
    RoomOk,
)
from dragoman.tools.processes import CannotRun, until
from dragoman.tools.verify.room_ledger import Joined, MemberLedger, Received, RoomLedger, Switched, Written
from dragoman.tools.verify.speech_load import LOAD_TIMING, Pacer, SlowReader

LANGUAGES = ("en", "es", "fr", "de")
LONELY = LANGUAGES[-1]  # the language that only one node translates into
SPOKEN = "it"  # the language of those that speak aloud: other nodes recognise it than those of the speech load
SPEAKERS = 2
SOUND = (b"\x00\x20" * 40 + b"\x00\xe0" * 40) * 100  # half a second, loud enough not to be taken for silence
# What the instances must be set to: a few members write as much as many, and a fault leaves time for an end.
SETTINGS: dict[str, object] = {"rooms.captions_per_minute": 0}
SHORT_SETTINGS: dict[str, object] = {"rooms.translate_timeout_ms": 2000}
RETRY_S = 0.2
# Shares of what members do, beside writing.
CUT, SWITCH, ASK, LEAVE = 0.10, 0.08, 0.08, 0.03
SAY = 0.25


class RoomMemberLoad:
    """One member, from its joining to its leaving."""

    def __init__(self, name: str, urls: Sequence[str], lang: str, load: "RoomLoad", speaks: str = "") -> None:
        """`speaks`: what it says aloud; without it, it only writes."""
        self.name, self.hears = name, lang
        self._load, self._ledger, self._speaks = load, load.ledger, speaks or lang
        self.record: MemberLedger = self._ledger.member(name)
        self._switching, self._leaving = "", False
        self._answered: set[str] = set()
        self._untranslated: list[str] = []
        self._captions: list[tuple[str, str]] = []  # and their languages
        self._reading: asyncio.Task[None] | None = None
        self.room = Room(
            urls,
            room=self._ledger.room,
            name=name,
            speaks=self._speaks,
            hears=lang,
            audio_format="pcm16",
            vad=False,  # what it sends is no voice
            on_event=self._on_event,
            from_start=bool(self._ledger.room),
            timing=LOAD_TIMING,
            on_message=self._on_message,
        )
        self.slow = SlowReader(lambda: self.room.socket)

    # -- what it does --------------------------------------------------------------------------------

    async def join(self) -> bool:
        """False: Redis could not be reached, and the session may be a member or not."""
        try:
            await self.room.join()
        except SessionError as error:
            self.record.is_over, self.record.session = True, self.room.session_id
            if error.code != RoomErrorCode.SCHEDULER_DEPENDENCY_DOWN:
                raise
            self._ledger.postponed += 1
            return False
        self._ledger.room = self._ledger.room or self.room.id
        self.record.heard.append((time.monotonic(), self.hears))
        self._reading = asyncio.create_task(self._read(), name=f"read-{self.name}")
        return True

    async def write(self) -> bool:
        """Whether it was confirmed."""
        text = f"sentence {len(self._ledger.written) + 1} of {self.name}"
        written = self._ledger.written[text] = Written(text, self._speaks, time.monotonic())
        if await self._asked(self.room.write(text)):
            written.confirmed_at = time.monotonic()
        return written.confirmed_at is not None

    async def say(self) -> None:
        """One utterance. How it ended, the session is told."""
        self.record.cuts += 1
        try:
            await self.room.send(SOUND, final=True)
        except SessionError as error:
            self.record.lost_with_session += 1
            if not self.record.is_over:
                self._ledger.refused.append(f"{self.name} could not speak: {error}")

    def _on_event(self, event: Event) -> None:
        match event:
            case Ended(session_id=session, index=index, state=state):
                self.record.said[session, index] = state
            case Renewed():
                self.record.lost_with_session = self.record.cuts - len(self.record.said)

    async def switch(self, lang: str) -> None:
        """Hear another language. If that is refused, the server may have done it or not: another member follows."""
        self._switching = lang
        self.record.heard.append((time.monotonic(), ""))
        if await self._asked(self.room.update(hears=lang)):
            self.record.heard.append((time.monotonic(), lang))
        else:
            self._switching = ""
            await self._load.replace(self)

    async def ask_again(self, rng: Random) -> None:
        """For a caption without a translation, or for any one."""
        some = self._untranslated or [caption for caption, lang in self._captions if lang != self.hears]
        if some:
            caption = rng.choice(some[-20:])
            self.record.asked[caption, self.hears] += 1
            await self._asked(self.room.translate(caption))

    async def leave(self) -> None:
        self.record.is_over = self._leaving = True
        self.record.heard.append((time.monotonic(), ""))
        self.slow.stop()
        await self.room.leave()
        if self._reading is not None:
            await asyncio.wait({self._reading})

    def reconnect(self) -> None:
        """Lose the connection without a close frame, and come back on the next instance."""
        if self.room.socket is not None:
            self.room.socket.abort()

    async def _asked(self, request: Coroutine[Any, Any, None]) -> bool:
        try:
            await request
        except SessionError as error:
            if error.code == RoomErrorCode.SCHEDULER_DEPENDENCY_DOWN:
                self._ledger.postponed += 1
            elif error.code == "UNKNOWN_OUTCOME":
                pass  # not confirmed: it may be in the log
            elif not self.record.is_over:
                self._ledger.refused.append(f"{self.name} was refused: {error}")
            return False
        return True

    # -- what it receives ----------------------------------------------------------------------------

    async def _read(self) -> None:
        """Captions are recorded by `_on_message`, in one order with the answers; here they are only taken."""
        try:
            async for _ in self.room:
                pass
        except SessionError as error:
            self._over(str(error))
        else:
            self._over(self.room.ended)

    def _over(self, why: str) -> None:
        if not self._leaving and not self.record.is_over:
            self.record.ended = why or "without a reason"

    def _on_message(self, message: RoomMessage) -> None:
        if self.record.is_over and not isinstance(message, RoomOk):
            return
        match message:
            case RoomJoined():
                cursor = self.room.room_seq
                self.record.session = message.you
                self.record.events.append(Joined(message.you, self.hears, cursor, message.complete))
            case RoomOk():
                self._on_answer(message.request_id)
            case Caption():
                self._captions.append((message.caption_id, message.lang))
                self._receive(message.room_seq, message.caption_id, message.lang, message.text)
            case CaptionTranslation():
                if message.untranslated:
                    self._untranslated.append(message.caption_id)
                text = message.untranslated or message.text
                self._receive(message.room_seq, message.caption_id, message.lang, text)
            case CaptionLost():
                self._receive(message.room_seq, message.caption_id, SPOKEN, message.reason)
            case CaptionPartial() | RoomCreateAck() | RoomMembers() | RoomError() | RoomExpired():
                pass
            case _:
                assert_never(message)

    def _on_answer(self, request_id: str) -> None:
        """A request that was sent twice, because the connection was lost, may be answered twice."""
        if request_id in self._answered:
            return
        self._answered.add(request_id)
        if self._leaving:
            self.record.has_left = True
        elif self._switching:
            self.hears, self._switching = self._switching, ""
            self.record.events.append(Switched(self.hears))
            self._untranslated.clear()

    def _receive(self, seq: int, caption: str, lang: str, text: str) -> None:
        self.record.events.append(Received(seq, caption, lang, text))


class RoomLoad:
    def __init__(self, urls: Sequence[str], members: int, rng: Random) -> None:
        self.ledger = RoomLedger()
        self.members: list[RoomMemberLoad] = []
        self.speakers: list[RoomMemberLoad] = []  # they speak and read, and are connected all the time
        self._urls, self._count, self._rng = urls, members, rng
        self._pacer = Pacer(self._begin, "room-load")
        self._busy: dict[asyncio.Task[None], RoomMemberLoad] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._numbers = 0

    def begin(self, ledger: RoomLedger) -> None:
        """From now on everything is written into this ledger; members of the room before leave it."""
        self.ledger, before = ledger, [*self.members, *self.speakers]
        self.members, self.speakers = [], []
        for one in before:
            self._leave(one)

    async def open(self) -> None:
        """A new room, and its members."""
        try:
            for group in (range(min(1, self._count)), range(1, self._count)):
                joining = (self._joined(LANGUAGES[at % len(LANGUAGES)]) for at in group)
                self.members += await asyncio.gather(*joining)
            speakers = (self._joined(LANGUAGES[at], SPOKEN) for at in range(SPEAKERS if self._count else 0))
            self.speakers = list(await asyncio.gather(*speakers))
        except SessionError as error:
            raise CannotRun(f"No room can be opened: {error}") from error

    def start(self, per_s: float) -> None:
        """So many sentences a second, as long as a member is free, and now and then something else."""
        self._pacer.start(per_s)

    async def stop(self) -> None:
        await self._pacer.stop()
        if self._error is not None:
            raise self._error

    async def settle(self, timeout_s: float) -> list[str]:
        """What is outstanding after so long, as sentences. What the log has for members, `gather` waits for."""
        await until(lambda: not self._busy and not self._leaving, timeout_s)
        return [f"a request of {one.name} is not answered" for one in self._busy.values()]

    def cancel(self) -> None:
        self._pacer.cancel()
        for task in (*self._busy, *self._leaving):
            task.cancel()

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(*self._busy, *self._leaving, return_exceptions=True)
        everybody = (*self.members, *self.speakers)
        await asyncio.gather(*(one.leave() for one in everybody), return_exceptions=True)

    async def replace(self, member: RoomMemberLoad) -> None:
        """Another one in its place, which reads everything from the start."""
        if member in self.members and member.record in self.ledger.members:
            self.members.remove(member)
            self._leave(member)
            self.members.append(await self._joined(self._rng.choice(LANGUAGES)))

    def writer_of(self, sessions: set[str]) -> RoomMemberLoad | None:
        """A member that may write, with one of these sessions."""
        free = self._free()
        return next((one for one in self.members if one in free and one.record.session in sessions), None)

    # ------------------------------------------------------------------------------------------------

    def speaker_of(self, sessions: set[str]) -> RoomMemberLoad | None:
        """One that speaks aloud, with one of these sessions."""
        return next((one for one in self.speakers if one.record.session in sessions), None)

    async def _joined(self, lang: str, speaks: str = "") -> RoomMemberLoad:
        while True:
            at = self._numbers % len(self._urls)
            self._numbers += 1
            urls = [*self._urls[at:], *self._urls[:at]]
            member = RoomMemberLoad(f"member {self._numbers}", urls, lang, self, speaks)
            if await member.join():
                return member
            await asyncio.sleep(RETRY_S)

    def _leave(self, member: RoomMemberLoad) -> None:
        member.record.is_over = True
        task = asyncio.create_task(member.leave(), name=f"leave-{member.name}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _free(self) -> list[RoomMemberLoad]:
        busy = set(self._busy.values())
        return [one for one in self.members if one not in busy]

    def _begin(self) -> None:
        writers = set(self.members[: len(LANGUAGES)])
        free = self._free()
        readers = [one for one in free if one not in writers]
        draw = self._rng.random()
        if readers and draw < CUT + SWITCH + ASK + LEAVE:
            reader = self._rng.choice(readers)
            self._act(reader, draw)
        elif draw > 1 - SAY and (quiet := [one for one in self.speakers if one not in self._busy.values()]):
            speaker = self._rng.choice(quiet)
            self._spawn(speaker.say(), speaker)
        elif talking := [one for one in free if one in writers]:
            writer = self._rng.choice(talking)
            self._spawn(_done(writer.write), writer)

    def _act(self, reader: RoomMemberLoad, draw: float) -> None:
        if draw < CUT:
            reader.reconnect()
        elif draw < CUT + SWITCH:
            self._spawn(reader.switch(self._rng.choice([one for one in LANGUAGES if one != reader.hears])), reader)
        elif draw < CUT + SWITCH + ASK:
            self._spawn(reader.ask_again(self._rng), reader)
        else:
            self._spawn(self.replace(reader), reader)

    def _spawn(self, work: Coroutine[Any, Any, None], member: RoomMemberLoad) -> None:
        task = asyncio.create_task(work, name=f"room-{member.name}")
        self._busy[task] = member
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._busy[task]
        if not task.cancelled():
            self._error = self._error or task.exception()


async def _done(action: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    await action()


@asynccontextmanager
async def room_load(ports: Sequence[int], members: int, *, seed: int = 1) -> AsyncIterator[RoomLoad]:
    load = RoomLoad([f"ws://127.0.0.1:{port}/ws/session" for port in ports], members, Random(f"rooms-{seed}"))
    try:
        yield load
    finally:
        await load.close()
