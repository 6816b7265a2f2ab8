"""Keeps a conversation connected: dials, opens or resumes, says again what was lost on the way, beats, comes back.

    dial → session_init → ack → gate open … → lost → dial → session_resume → ack → say again → gate open …

One task runs `run`; what the server says is handled in the link's callback. The gate is open while something can be
said, and when all is over, so that nobody waits there for ever.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.client.conversation import Chunk, Conversation
from dragoman.client.dialler import Dialler
from dragoman.client.errors import SessionError, SessionLost, SessionOver
from dragoman.client.events import Pressed, Refused, Renewed
from dragoman.client.link import Frame, Link
from dragoman.client.mailbox import Mailbox
from dragoman.client.throttle import Throttle
from dragoman.protocol import codec
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.fields import Message
from dragoman.protocol.session import (
    Error,
    ServerMessage,
    SessionCloseAck,
    SessionInit,
    SessionInitAck,
    SessionResume,
    TtsStarted,
    Utterance,
)

log = logging.getLogger("dragoman.client")

OnLost = Literal["raise", "new"]


@dataclass(frozen=True, slots=True)
class Timing:
    connect_s: float = 10.0
    answer_s: float = 10.0  # for the server's word on session_init and session_resume
    heartbeat_s: float = 5.0
    reconnect_s: float = 60.0  # how long we try to get a lost connection back
    cut_s: float = 2.5  # how long a cut may take to become an utterance we hear of
    settle_s: float = 8.0  # silence after which no answer is expected; a closing server waits 5 s on top of it
    close_s: float = 10.0
    backoff_first_s: float = 0.25
    backoff_longest_s: float = 5.0
    backoff_steady_s: float = 5.0


class Keeper:
    def __init__(
        self, opening: SessionInit, mailbox: Mailbox, throttle: Throttle, timing: Timing, on_lost: OnLost
    ) -> None:
        self.talk = Conversation(opening)
        self.gate = asyncio.Event()
        self.news = asyncio.Event()  # something was heard, or all is over
        self.over = False
        self.error: Exception | None = None
        self.closing: str | None = None
        self.playing: TtsStarted | None = None
        self._mailbox = mailbox
        self._throttle = throttle
        self._timing = timing
        self._on_lost = on_lost
        self._link: Link | None = None
        self._answer: asyncio.Future[SessionInitAck | Error] | None = None
        self._old_id = ""  # of a lost session, until another has its place

    # ------------------------------------------------------------ life

    async def run(self, dialler: Dialler) -> None:
        """Be connected until the session is over; `error` says how it came to that."""
        try:
            while not self.over:
                link = await dialler.dial()
                await self._hold(link, dialler)
                if not self.over:
                    dialler.lost(link.closed.result())
        except Exception as error:
            self.end(error)

    def close(self, reason: str) -> None:
        """Ask the server to end the session; its ack makes it over."""
        if self.closing is None:
            self.closing = reason
            self.send(self.talk.goodbye(reason))

    def end(self, error: Exception | None = None) -> None:
        if not self.over:
            self.over, self.error = True, error
            self._mailbox.end(error)
        self.gate.set()
        self.news.set()
        if self._link is not None:
            self._link.hang_up()

    def give_up(self, why: str) -> None:
        """It ends without the server's word on what is outstanding."""
        if not self.over:
            for failed in self.talk.failed_with_it(why):
                self._mailbox.put(failed)
        self.end()

    async def reopen(self, opening: SessionInit) -> None:
        """Another session in the place of one that nothing was said in."""
        self.send(self.talk.goodbye("opened anew"))
        self.gate.clear()
        self.talk = Conversation(opening)
        link = self._link
        if link is None:
            return  # the next connection opens it
        try:
            if await self._shake_hands(link):
                self.gate.set()
            else:
                link.abort()  # so that there is a next connection
        except SessionError as error:
            self.end(error)
            raise

    # ------------------------------------------------------------ saying

    async def my_turn(self) -> None:
        """Wait until a piece of audio may be said: the session is open, nobody pressed, the socket takes it."""
        while True:
            await self.gate.wait()
            if self.over or self.closing is not None:
                raise self.error or SessionOver()
            if self._link is not None and await self._has_room(self._link):
                return

    def say(self, what: Chunk | Utterance) -> None:
        """On a connection that was just lost it goes nowhere, and is said again after the resume."""
        self._throttle.sent(time.monotonic(), empty_final=isinstance(what, Chunk) and not what.audio)
        if self._link is not None:
            self._link.send(self.talk.frame(what))

    def send(self, message: Message) -> None:
        """Now or never."""
        if self._link is not None and self.gate.is_set():
            self._link.send(Frame(codec.encode(message)))

    async def _has_room(self, link: Link) -> bool:
        """True at once, or False after waiting: then things may have changed."""
        wait_s = self._throttle.wait_s(time.monotonic())
        if link.closed.done():
            await asyncio.sleep(0)  # until the gate is shut: what is said to nobody may be more than we can keep
        elif wait_s > 0:
            await asyncio.wait({link.closed}, timeout=wait_s)
        elif not link.writable.is_set():
            await link.writable.wait()
        else:
            return True
        return False

    # ------------------------------------------------------------ a connection

    async def _hold(self, link: Link, dialler: Dialler) -> None:
        """From the handshake to the end of the connection; cancelled, it hangs up."""
        self._link = link
        try:
            if await self._shake_hands(link):
                dialler.opened()
                await self._say_again(link)
                await self._beat(link)
        finally:
            if not self.over:
                self.gate.clear()
            self._link = None
            await link.close()

    async def _shake_hands(self, link: Link) -> bool:
        """Open or resume the session. False: not on this connection. Raises SessionError."""
        while not self.over:
            hello = self.talk.hello()
            resuming = isinstance(hello, SessionResume)
            if self.talk.session_id and not resuming:
                self._lost("the connection was lost, and the server does not keep sessions")
                continue
            answer = await self._ask(link, hello)
            if not isinstance(answer, Error):
                return answer is not None
            if not resuming:
                raise SessionError(answer.code, answer.message)
            if answer.code != ErrorCode.INVALID_SESSION:
                log.info("not resumed for now: %s %s", answer.code, answer.message)
                return False
            self._lost(answer.message)
        return False

    async def _ask(self, link: Link, hello: Message) -> SessionInitAck | Error | None:
        answer = self._answer = asyncio.get_running_loop().create_future()
        link.send(Frame(codec.encode(hello)))
        waits: set[asyncio.Future[Any]] = {answer, link.closed}
        await asyncio.wait(waits, timeout=self._timing.answer_s, return_when=asyncio.FIRST_COMPLETED)
        if self._answer is answer:
            self._answer = None
        return answer.result() if answer.done() else None

    def _lost(self, why: str) -> None:
        """The session cannot be had back: raise, or go on with a new one, as the user wants it."""
        if self.closing is not None:
            self.give_up(why)  # so it is closed
        elif self._on_lost == "raise":
            raise SessionLost(why)
        else:
            log.warning("session %s is lost: %s", self.talk.session_id, why)
            self._old_id, self.playing = self.talk.session_id, None
            self.talk = Conversation(self.talk.opening)

    async def _say_again(self, link: Link) -> None:
        for what in self.talk.again():
            while not await self._has_room(link):
                if link.closed.done():
                    return
            self.say(what)
        self.gate.set()
        if self.playing is not None:
            self.send(self.playing)
        if self.closing is not None:
            self.send(self.talk.goodbye(self.closing))

    async def _beat(self, link: Link) -> None:
        """Heartbeats for as long as the connection lasts. They free what the server keeps for us."""
        while not (await asyncio.wait({link.closed}, timeout=self._timing.heartbeat_s))[0]:
            self.send(self.talk.heartbeat(unix_ms()))

    # ------------------------------------------------------------ what the server says

    def received(self, data: bytes) -> None:
        try:
            message = codec.decode_server(data)
        except ProtocolError as error:
            log.warning("ignored what the server sent: %s", error.message)
            return
        if self._answer is not None and not self._answer.done() and isinstance(message, SessionInitAck | Error):
            # Here and not when the waiting task wakes up: what follows the ack may come in the same read.
            self._answer.set_result(self._opened(message) if isinstance(message, SessionInitAck) else message)
        else:
            self._heard(message)

    def _opened(self, ack: SessionInitAck) -> SessionInitAck | Error:
        if self.talk.can_resume and ack.session_id != self.talk.session_id:
            return Error(code=ErrorCode.INVALID_SESSION, message="the server opened another session")
        resumed = self.talk.opened(ack)
        if resumed is not None:
            self._mailbox.put(resumed)
        elif self._old_id:
            self._mailbox.put(Renewed(self.talk.session_id, self._old_id))
            self._old_id = ""
        return ack

    def _heard(self, message: ServerMessage) -> None:
        if isinstance(message, SessionCloseAck) and message.session_id != self.talk.session_id:
            return  # of the one that was opened before this; its count is another
        event = self.talk.receive(message)
        match event:
            case Refused(code=ErrorCode.INVALID_SESSION) if self._link is not None:
                # Coming back will show whether it can be had back.
                self._link.abort()
                return
            case Pressed():
                self._throttle.press(event.action, event.resume_after_ms, time.monotonic())
        if event is not None:
            self._mailbox.put(event)
            self.news.set()
        if isinstance(message, SessionCloseAck):
            self.end()


def unix_ms() -> int:
    return time.time_ns() // 1_000_000
