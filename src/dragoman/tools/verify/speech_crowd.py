"""People who speak, by the SDK, and keep a ledger of what they were told while things break.

Half of them send chunks, which the server cuts: short turns, turns of several utterances, turns that end with a pause,
silence. The other half number whole utterances themselves. All resume by themselves, on whichever instance answers.
A part of a run has sessions of its own: those of the part before are closed when their speakers speak again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import assert_never

from dragoman.client import (
    Detected,
    Ended,
    Event,
    Failed,
    Partial,
    Progress,
    Rejected,
    Renewed,
    Result,
    Resumed,
    Session,
    SessionError,
    Throttled,
    Timing,
)
from dragoman.connection import ClientWebSocket
from dragoman.tools.verify import pieces
from dragoman.tools.verify.recording_node import LANGUAGES
from dragoman.tools.verify.slow_reader import SlowReader
from dragoman.tools.verify.speech_ledger import SpeechLedger
from dragoman.tools.verify.waiting import until

MAX_DURATION_MS = 1000
PAUSE_MS = 1200
# What the instances must be set to, so that turns of several utterances and pauses need no minutes.
SETTINGS: dict[str, object] = {"speech.max_duration_ms": MAX_DURATION_MS, "speech.pause_ms": PAUSE_MS}
PATIENT = Timing(heartbeat_s=1.0, reconnect_s=300.0, backoff_first_s=0.05, backoff_longest_s=0.5, close_s=8.0)

_SHORT, _LONG = (1, 4), (12, 28)  # pieces of a turn; MAX_DURATION_MS is ten
_SILENT = 0.1


class Speaker:
    def __init__(self, name: str, urls: Sequence[str], ledger: SpeechLedger, rng: Random, *, numbered: bool) -> None:
        self.name, self.ledger = name, ledger
        self._urls, self._rng, self._numbered = urls, rng, numbered
        self._written_in: SpeechLedger | None = None  # the ledger of the session that is open
        self._session: Session | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._number = 0
        self.slow = SlowReader(self._socket)

    # -- speaking ------------------------------------------------------------------------------------

    async def say(self) -> None:
        """One turn; a session is opened if there is none of this part."""
        try:
            session = await self._opened()
            if self._numbered:
                await self._whole(session)
            else:
                await self._turn(session)
        except SessionError as error:
            self._over(str(error))

    async def _whole(self, session: Session) -> None:
        """One utterance, or a few at once: those behind may be done before it."""
        for _ in range(self._rng.choice((1, 1, 1, 3))):
            numbers = self._next(self._rng.randint(*_SHORT), silent=self._rng.random() < _SILENT)
            index = await session.utterance(pieces.sound(numbers))
            self._gave(session, numbers, index)

    async def _turn(self, session: Session) -> None:
        kind = self._rng.random()
        count = self._rng.randint(*(_LONG if kind < 0.35 else _SHORT))
        numbers = self._next(count, silent=self._rng.random() < _SILENT)
        pace_s = self._rng.choice((0.0, 0.0, 0.02))
        ends_with_its_last = 0.35 <= kind < 0.6
        for number in numbers:
            await session.send(pieces.sound([number]), final=ends_with_its_last and number == numbers[-1])
            self._gave(session, [number])
            await asyncio.sleep(pace_s)
        if kind > 0.92:
            await asyncio.sleep(PAUSE_MS / 1000 + 0.3)  # and the server notices
        elif not ends_with_its_last:
            await session.cut()

    def _next(self, count: int, *, silent: bool) -> list[int]:
        first = self._number + 1
        self._number += count
        return [-number if silent else number for number in range(first, first + count)]

    def _gave(self, session: Session, numbers: Sequence[int], index: int | None = None) -> None:
        # Nothing was awaited since it was said, so the session is the one it was said in.
        if self._written_in is not None:
            self._written_in.opened(session.id, self.name, numbered=self._numbered)
            self._written_in.gave(session.id, numbers, index)

    # -- the session ---------------------------------------------------------------------------------

    async def _opened(self) -> Session:
        if self._session is not None and self._written_in is self.ledger:
            return self._session
        self._leave()
        session = Session(self._urls, src=LANGUAGES[0], tgt=LANGUAGES[1], resume=True, on_lost="new", timing=PATIENT)
        await session.open()
        self._session, self._written_in = session, self.ledger
        self.ledger.opened(session.id, self.name, numbered=self._numbered)
        self._listening = asyncio.create_task(self._listen(session, self.ledger), name=f"listen-{self.name}")
        return session

    def _leave(self) -> None:
        """Close the session of the part before; that may take a while, and nobody waits for it."""
        session, self._session = self._session, None
        if session is not None:
            task = asyncio.create_task(_closed(session), name=f"close-{self.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _over(self, why: str) -> None:
        if self._session is not None and self._written_in is not None:
            self._written_in.lost(self._session.id, why)
        self._leave()

    async def close(self) -> None:
        self.slow.stop()
        self._leave()
        if self._closing:
            await asyncio.wait(self._closing)
        if self._listening is not None:
            await asyncio.wait({self._listening})

    def flap(self) -> None:
        """Lose the connection without a word, and come back on the next instance."""
        socket = self._socket()
        if socket is not None:
            socket.abort()

    def stop_reading(self) -> None:
        if self._session is not None and self._written_in is not None:
            self._written_in.slowed(self._session.id)
        self.slow.start()

    def _socket(self) -> ClientWebSocket | None:
        return self._session.socket if self._session is not None else None

    # -- listening -----------------------------------------------------------------------------------

    async def _listen(self, session: Session, ledger: SpeechLedger) -> None:
        try:
            async for event in session:
                self._noted(event, ledger, session)
        except SessionError as error:
            ledger.lost(session.id, str(error))

    def _noted(self, event: Event, ledger: SpeechLedger, session: Session) -> None:
        match event:
            case Result():
                ledger.answered(
                    event.session_id, event.index, event.job_id, event.text_asr, backfilled=event.backfilled
                )
            case Failed():
                ledger.failed(event.session_id, event.index, event.job_id, event.code, event.message)
            case Progress() | Partial() | Ended():
                ledger.heard_of(event.session_id, event.index)
            case Rejected():
                ledger.refused(session.id, event.code, event.message)
            case Resumed():
                ledger.resumed(event.session_id, event.missing)
            case Renewed():
                ledger.lost(event.old_session_id, "the server does not know it any more")
                ledger.opened(event.session_id, self.name, numbered=self._numbered)
            case Throttled() | Detected():
                pass
            case _:
                assert_never(event)


async def _closed(session: Session) -> None:
    try:
        await session.close()
    except SessionError:
        pass  # it was over


class SpeechCrowd:
    def __init__(self, speakers: Sequence[Speaker], ledger: SpeechLedger, rng: Random) -> None:
        self.speakers, self.ledger = speakers, ledger
        self._rng = rng
        self._talking: asyncio.Task[None] | None = None
        self._saying: dict[asyncio.Task[None], Speaker] = {}
        self._error: BaseException | None = None

    def begin(self, ledger: SpeechLedger) -> None:
        self.ledger = ledger
        for one in self.speakers:
            one.ledger = ledger

    def talk(self, per_s: float) -> None:
        """So many turns a second, as long as somebody has nothing to say: nobody speaks twice at a time."""
        if per_s > 0 and self.speakers:
            self._talking = asyncio.create_task(self._talk(per_s), name="speech-crowd")

    async def stop_talking(self) -> None:
        """Turns that have begun are spoken to their end."""
        talking, self._talking = self._talking, None
        if talking is not None:
            talking.cancel()
            await asyncio.wait({talking})
            if not talking.cancelled():
                talking.result()
        if self._error is not None:
            raise self._error

    async def settle(self, patience_s: float) -> list[str]:
        """What is still owed after so long, in words."""
        await until(lambda: not self.owed(), patience_s)
        return self.owed()

    def owed(self) -> list[str]:
        speaking = [f"{one.name} has not been able to say all" for one in self._saying.values()]
        return speaking + list(self.ledger.owed())

    def cancel(self) -> None:
        for task in (self._talking, *self._saying):
            if task is not None:
                task.cancel()

    async def _talk(self, per_s: float) -> None:
        began, said = time.monotonic(), 0
        while True:
            while said < (time.monotonic() - began) * per_s:
                said += 1
                busy = set(self._saying.values())
                free = [one for one in self.speakers if one not in busy]
                if free:
                    self._begin(self._rng.choice(free))
            await asyncio.sleep(1 / per_s)

    def _begin(self, speaker: Speaker) -> None:
        task = asyncio.create_task(speaker.say(), name=f"say-{speaker.name}")
        self._saying[task] = speaker
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._saying[task]
        if not task.cancelled():
            self._error = self._error or task.exception()


@asynccontextmanager
async def speaking(
    ports: Sequence[int], ledger: SpeechLedger, speakers: int, *, seed: int = 1
) -> AsyncIterator[SpeechCrowd]:
    urls = [f"ws://127.0.0.1:{port}/ws/session" for port in ports]
    everybody = [
        Speaker(f"speaker {at + 1}", _from(urls, at), ledger, Random(f"{seed}-{at}"), numbered=at % 2 == 1)
        for at in range(speakers)
    ]
    crowd = SpeechCrowd(everybody, ledger, Random(seed))
    try:
        yield crowd
    finally:
        crowd.cancel()
        await asyncio.gather(*(one.close() for one in everybody))


def _from(urls: Sequence[str], at: int) -> list[str]:
    at %= len(urls)
    return [*urls[at:], *urls[:at]]
