"""Speakers that use the SDK and keep a ledger of what they were promised while things break.

Half of them send chunks, which the server cuts: short turns, turns of several utterances, turns that end with a pause,
silence. The other half number whole utterances themselves. All resume by themselves, on whichever instance answers.
Each phase has sessions of its own: those of the phase before are closed when their speakers speak again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import assert_never

from dragoman.client import (
    Detected,
    Ended,
    Event,
    Failed,
    InRoom,
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
from dragoman.tools.processes import until
from dragoman.tools.verify import pieces
from dragoman.tools.verify.recording_node import LANGUAGES
from dragoman.tools.verify.speech_ledger import SpeechLedger

# -- pacing ----------------------------------------------------------------------------------------
#
# Shared by the loads: the pace at which actions begin, and clients that stop reading.


POLL_S = 0.05


class Pacer:
    """Begins an action so many times a second, whether the earlier ones have ended or not."""

    def __init__(self, begin: Callable[[], None], name: str) -> None:
        self._begin, self._name = begin, name
        self._task: asyncio.Task[None] | None = None

    def start(self, per_s: float) -> None:
        if per_s > 0:
            self._task = asyncio.create_task(self._pace(per_s), name=self._name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _pace(self, per_s: float) -> None:
        began, count = time.monotonic(), 0
        while True:
            while count < (time.monotonic() - began) * per_s:
                count += 1
                self._begin()
            await asyncio.sleep(1 / per_s)


class SlowReader:
    """Stops reading a client's socket: the kernel's buffers fill, and then the server's.

    The client may reconnect meanwhile, so the current socket is paused again and again until `stop`.
    """

    def __init__(self, current: Callable[[], ClientWebSocket | None]) -> None:
        self._current = current
        self._paused: ClientWebSocket | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._pause(), name="slow-reader")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._paused is not None:
            self._paused.resume_reading()
        self._paused = None

    async def _pause(self) -> None:
        while True:
            socket = self._current()
            if socket is not None and socket is not self._paused:
                self._paused = socket
                socket.pause_reading()
            await asyncio.sleep(POLL_S)


MAX_DURATION_MS = 1000
PAUSE_MS = 1200
# What the instances must be set to, so that turns of several utterances and pauses need no minutes.
SETTINGS: dict[str, object] = {"speech.max_duration_ms": MAX_DURATION_MS, "speech.pause_ms": PAUSE_MS}
LOAD_TIMING = Timing(heartbeat_s=1.0, reconnect_s=300.0, backoff_first_s=0.05, backoff_longest_s=0.5, close_s=8.0)

_SHORT, _LONG = (1, 4), (12, 28)  # pieces of a turn; MAX_DURATION_MS is ten
_SILENT = 0.1


class SpeakerLoad:
    def __init__(self, name: str, urls: Sequence[str], ledger: SpeechLedger, rng: Random, *, numbered: bool) -> None:
        self.name, self.ledger = name, ledger
        self._urls, self._rng, self._numbered = urls, rng, numbered
        self._session_ledger: SpeechLedger | None = None  # of the open session
        self._session: Session | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._number = 0
        self.slow = SlowReader(self._socket)

    # -- sending -------------------------------------------------------------------------------------

    async def speak(self) -> None:
        """One turn; opens a session if there is none of this phase."""
        try:
            session = await self._opened()
            if self._numbered:
                await self._whole(session)
            else:
                await self._turn(session)
        except SessionError as error:
            self._session_lost(str(error))

    async def _whole(self, session: Session) -> None:
        """One utterance, or a few at once: the later ones may be answered first."""
        for _ in range(self._rng.choice((1, 1, 1, 3))):
            numbers = self._next(self._rng.randint(*_SHORT), silent=self._rng.random() < _SILENT)
            index = await session.utterance(pieces.sound(numbers))
            self._sent(session, numbers, index)

    async def _turn(self, session: Session) -> None:
        kind = self._rng.random()
        count = self._rng.randint(*(_LONG if kind < 0.35 else _SHORT))
        numbers = self._next(count, silent=self._rng.random() < _SILENT)
        pace_s = self._rng.choice((0.0, 0.0, 0.02))
        ends_final = 0.35 <= kind < 0.6
        for number in numbers:
            await session.send(pieces.sound([number]), final=ends_final and number == numbers[-1])
            self._sent(session, [number])
            await asyncio.sleep(pace_s)
        if kind > 0.92:
            await asyncio.sleep(PAUSE_MS / 1000 + 0.3)  # the server ends the turn
        elif not ends_final:
            await session.cut()

    def _next(self, count: int, *, silent: bool) -> list[int]:
        first = self._number + 1
        self._number += count
        return [-number if silent else number for number in range(first, first + count)]

    def _sent(self, session: Session, numbers: Sequence[int], index: int | None = None) -> None:
        # Nothing was awaited since it was sent, so the session is the one in which it was sent.
        if self._session_ledger is not None:
            self._session_ledger.opened(session.id, self.name, numbered=self._numbered)
            self._session_ledger.gave(session.id, numbers, index)

    # -- the session ---------------------------------------------------------------------------------

    async def _opened(self) -> Session:
        if self._session is not None and self._session_ledger is self.ledger:
            return self._session
        self._close_session()
        session = Session(
            self._urls,
            src=LANGUAGES[0],
            tgt=LANGUAGES[1],
            resume=True,
            on_lost="new",
            timing=LOAD_TIMING,
            previews=not self._numbered,
        )
        await session.open()
        self._session, self._session_ledger = session, self.ledger
        self.ledger.opened(session.id, self.name, numbered=self._numbered)
        self._receiving = asyncio.create_task(self._receive(session, self.ledger), name=f"receive-{self.name}")
        return session

    def _close_session(self) -> None:
        """Close the session of the phase before; nothing waits for that."""
        session, self._session = self._session, None
        if session is not None:
            task = asyncio.create_task(_closed(session), name=f"close-{self.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _session_lost(self, why: str) -> None:
        if self._session is not None and self._session_ledger is not None:
            self._session_ledger.lost(self._session.id, why)
        self._close_session()

    async def close(self) -> None:
        self.slow.stop()
        self._close_session()
        if self._closing:
            await asyncio.wait(self._closing)
        if self._receiving is not None:
            await asyncio.wait({self._receiving})

    def reconnect(self) -> None:
        """Lose the connection without a close frame, and come back on the next instance."""
        socket = self._socket()
        if socket is not None:
            socket.abort()

    def stop_reading(self) -> None:
        if self._session is not None and self._session_ledger is not None:
            self._session_ledger.slowed(self._session.id)
        self.slow.start()

    def _socket(self) -> ClientWebSocket | None:
        return self._session.socket if self._session is not None else None

    # -- receiving -----------------------------------------------------------------------------------

    async def _receive(self, session: Session, ledger: SpeechLedger) -> None:
        try:
            async for event in session:
                self._record(event, ledger, session)
        except SessionError as error:
            ledger.lost(session.id, str(error))

    def _record(self, event: Event, ledger: SpeechLedger, session: Session) -> None:
        match event:
            case Result():
                ledger.answered(
                    event.session_id, event.index, event.job_id, event.text_asr, backfilled=event.backfilled
                )
            case Failed():
                ledger.failed(event.session_id, event.index, event.job_id, event.code, event.message)
            case Partial(job_id=""):
                ledger.previewed(event.session_id, event.index, event.text)
            case Progress() | Partial() | Ended():
                ledger.mentioned(event.session_id, event.index)
            case Rejected():
                ledger.refused(session.id, event.code, event.message)
            case Resumed():
                ledger.resumed(event.session_id, event.missing)
            case Renewed():
                ledger.lost(event.old_session_id, "the server does not know it any more")
                ledger.opened(event.session_id, self.name, numbered=self._numbered)
            case Throttled() | Detected() | InRoom():
                pass
            case _:
                assert_never(event)


async def _closed(session: Session) -> None:
    try:
        await session.close()
    except SessionError:
        pass  # it was over


class SpeechLoad:
    def __init__(self, speakers: Sequence[SpeakerLoad], ledger: SpeechLedger, rng: Random) -> None:
        self.speakers, self.ledger = speakers, ledger
        self._rng = rng
        self._pacer = Pacer(self._begin, "speech-load")
        self._sending: dict[asyncio.Task[None], SpeakerLoad] = {}
        self._error: BaseException | None = None

    def begin(self, ledger: SpeechLedger) -> None:
        self.ledger = ledger
        for one in self.speakers:
            one.ledger = ledger

    def start(self, per_s: float) -> None:
        """So many turns a second, as long as a speaker is free: none speaks two turns at a time."""
        if self.speakers:
            self._pacer.start(per_s)

    async def stop(self) -> None:
        """Turns that have begun are spoken to their end."""
        await self._pacer.stop()
        if self._error is not None:
            raise self._error

    async def settle(self, timeout_s: float) -> list[str]:
        """What is outstanding after so long, as sentences."""
        await until(lambda: not self.outstanding(), timeout_s)
        return self.outstanding()

    def outstanding(self) -> list[str]:
        sending = [f"{one.name} has not sent its whole turn" for one in self._sending.values()]
        return sending + list(self.ledger.outstanding())

    def cancel(self) -> None:
        self._pacer.cancel()
        for task in self._sending:
            task.cancel()

    def _begin(self) -> None:
        busy = set(self._sending.values())
        free = [one for one in self.speakers if one not in busy]
        if not free:
            return
        speaker = self._rng.choice(free)
        task = asyncio.create_task(speaker.speak(), name=f"speak-{speaker.name}")
        self._sending[task] = speaker
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        if not task.cancelled():
            self._error = self._error or task.exception()


@asynccontextmanager
async def speech_load(
    ports: Sequence[int], ledger: SpeechLedger, speakers: int, *, seed: int = 1
) -> AsyncIterator[SpeechLoad]:
    urls = [f"ws://127.0.0.1:{port}/ws/session" for port in ports]
    everybody = [
        SpeakerLoad(f"speaker {at + 1}", _from(urls, at), ledger, Random(f"{seed}-{at}"), numbered=at % 2 == 1)
        for at in range(speakers)
    ]
    load = SpeechLoad(everybody, ledger, Random(seed))
    try:
        yield load
    finally:
        load.cancel()
        await asyncio.gather(*(one.close() for one in everybody))


def _from(urls: Sequence[str], at: int) -> list[str]:
    at %= len(urls)
    return [*urls[at:], *urls[:at]]
