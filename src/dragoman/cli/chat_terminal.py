"""The two ways to hold a chat: by keyboard and screen, or by lines on standard input and output, for scripts.

Both say what is sent to the end: leaving waits a while for what is not saved. Status 0: all that was sent is saved.
"""

import asyncio
import codecs
import contextlib
import os
import shutil
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from signal import SIGINT, SIGTERM, SIGWINCH
from typing import TYPE_CHECKING

from dragoman.cli import output
from dragoman.cli.chat_editor import END, Editor
from dragoman.cli.chat_lines import NOTE, Line, clock, legend, now, said_before
from dragoman.cli.chat_screen import Screen

if TYPE_CHECKING:
    from dragoman.client.chat import Chat, Sent, StoredMessage

STDIN_FD = 0
QUIT = ("/quit", "/exit")
HELP = "/help"
READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Talk:
    """Who talks with whom."""

    me: str
    peer: str
    peer_id: int

    def name(self, uid: int) -> str:
        return self.peer if uid == self.peer_id else f"user {uid}"


class Outcome:
    """What became of what was sent, and whether the person waits for more of it."""

    def __init__(self) -> None:
        self.sents: list[Sent] = []
        self._at_once = asyncio.Event()

    @property
    def at_once(self) -> bool:
        return self._at_once.is_set()

    @property
    def exit_code(self) -> int:
        return int(not all(sent.saved for sent in self.sents))


# ---------------------------------------------------------------- keyboard and screen


class Terminal(Outcome):
    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self._talk = talk
        self._editor = Editor()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._screen = Screen(output.paint, _size, sys.stdout.encoding or "ascii")
        self._leaving = asyncio.Event()
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._begun = False

    # -- told by the chat

    def on_receipt(self, sent: "Sent") -> None:
        self._screen.paint()

    def on_connection(self, up: bool, why: str) -> None:
        if up and self._begun:
            self._note("connected again")
        elif not up:
            self._note(f"offline: {why.rstrip('.')}; what you write goes out when the connection is back")

    def _note(self, text: str) -> None:
        self._screen.add(Line(NOTE, text, now()))

    # -- life

    async def hold(self, chat: "Chat", history: "list[StoredMessage]") -> int:
        """Until the person leaves, or the chat is over. Raises what ended it."""
        self._begun = True
        listening = asyncio.create_task(self._listen(chat))
        saying = asyncio.create_task(self._say(chat))
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            # Keys before anything is shown: what somebody presses in answer to it, a terminal would keep as a line.
            with _keys(self._keys), _signals(self._interrupt, self._screen.paint):
                self._greet(chat.user_id, history)
                await asyncio.wait({listening, saying, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if self._leaving.is_set():
                    await self._say_goodbye(chat)
        finally:
            self._screen.close()
            for task in (listening, saying, leaving):
                task.cancel()
            await asyncio.wait({listening, saying, leaving})
        for task in (listening, saying):
            if not task.cancelled():
                task.result()
        return self.exit_code

    def _greet(self, my_id: int, history: "list[StoredMessage]") -> None:
        talk = self._talk
        self._screen.add(
            Line(NOTE, f"{talk.me} (user {my_id}) talks with {talk.peer} (user {talk.peer_id}); /quit leaves"),
            Line(NOTE, legend(self._screen.signs)),
            *(said_before(one, my_id, talk.me, talk.peer, self._screen.signs) for one in reversed(history)),
        )

    async def _say_goodbye(self, chat: "Chat") -> None:
        """What is not saved gets a while, unless the person wants to leave at once."""
        if chat.unsaved or not self._outgoing.empty():
            many = chat.unsaved + self._outgoing.qsize()
            self._note(f"leaving when {many} message{'' if many == 1 else 's'} are saved; Ctrl-C leaves at once")
            settled = asyncio.create_task(self._settle(chat))
            at_once = asyncio.create_task(self._at_once.wait())
            await asyncio.wait({settled, at_once}, return_when=asyncio.FIRST_COMPLETED)
            for task in (settled, at_once):
                task.cancel()

    async def _settle(self, chat: "Chat") -> None:
        await self._outgoing.join()
        await chat.flush()

    async def _listen(self, chat: "Chat") -> None:
        async for message in chat.messages():
            self._screen.add(Line(self._talk.name(message.from_user), message.body, clock(message.ts)))
            chat.read(message)  # it is on the screen, in front of somebody

    async def _say(self, chat: "Chat") -> None:
        while True:
            text = await self._outgoing.get()
            try:
                sent = await chat.send(self._talk.peer_id, text)
            except ValueError as error:
                self._note(f"not sent: {error}")
            else:
                self.sents.append(sent)
                self._screen.add(Line(self._talk.me, text, now(), sent))
            self._outgoing.task_done()

    # -- told by the keyboard

    def _keys(self, data: bytes) -> None:
        if not data:
            self._leaving.set()  # the terminal is gone
        for line in self._editor.feed(self._decoder.decode(data)):
            if line == END or line.strip() in QUIT:
                self._leaving.set()
            elif line.strip() == HELP:
                self._note(f"/quit or Ctrl-D leaves.  {legend(self._screen.signs)}")
            elif line.strip():
                self._outgoing.put_nowait(line)
        self._screen.typed(self._editor.text, self._editor.at)

    def _interrupt(self) -> None:
        if self._leaving.is_set():
            self._at_once.set()
        self._leaving.set()


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines


@contextlib.contextmanager
def _keys(pressed: Callable[[bytes], None]) -> Iterator[None]:
    """Key by key, without echo; the terminal is as it was afterwards. Ctrl-C stays a signal."""
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(STDIN_FD)
    tty.setcbreak(STDIN_FD, termios.TCSADRAIN)  # what was typed already is not thrown away

    def readable() -> None:
        try:
            data = os.read(STDIN_FD, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(STDIN_FD)
        pressed(data)

    loop.add_reader(STDIN_FD, readable)
    try:
        yield
    finally:
        loop.remove_reader(STDIN_FD)
        termios.tcsetattr(STDIN_FD, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _signals(interrupt: Callable[[], None], resized: Callable[[], None] = lambda: None) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handlers = {SIGINT: interrupt, SIGTERM: interrupt, SIGWINCH: resized}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


# ---------------------------------------------------------------- lines


class Lines(Outcome):
    """Standard input line by line. Each message is told once, in order, when its fate is known:

    saved <id> <text> · failed <reason> <text> · unknown <text>, and from <name> <id> <text> as they arrive.
    """

    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self._talk = talk
        self._refused = 0

    def on_receipt(self, sent: "Sent") -> None:
        """Whoever waits for it is woken."""

    def on_connection(self, up: bool, why: str) -> None:
        if not up:
            output.note(f"offline: {why}")

    @property
    def exit_code(self) -> int:
        return int(self._refused > 0 or super().exit_code > 0)

    async def hold(self, chat: "Chat", history: "list[StoredMessage]") -> int:
        listening = asyncio.create_task(self._listen(chat))
        saying = asyncio.create_task(self._say_all(chat))
        stopping = asyncio.create_task(self._at_once.wait())
        try:
            with _signals(self._at_once.set):
                await asyncio.wait({listening, saying, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (listening, saying, stopping):
                task.cancel()
            await asyncio.wait({listening, saying, stopping})
        for task in (listening, saying):
            if not task.cancelled():
                task.result()
        return self.exit_code

    async def _say_all(self, chat: "Chat") -> None:
        told: asyncio.Queue[Sent | None] = asyncio.Queue()
        telling = asyncio.create_task(self._tell_all(told))
        try:
            async for text in _standard_input():
                if not text.strip():
                    continue
                try:
                    sent = await chat.send(self._talk.peer_id, text)
                except ValueError as error:
                    self._refused += 1
                    _tell("failed", str(error), text)
                else:
                    self.sents.append(sent)
                    told.put_nowait(sent)
            told.put_nowait(None)
            await telling
        finally:
            telling.cancel()

    async def _tell_all(self, told: "asyncio.Queue[Sent | None]") -> None:
        from dragoman.client.chat import ChatClosed, SendFailed

        while (sent := await told.get()) is not None:
            try:
                await sent.saved
                _tell("saved", str(sent.server_msg_id), sent.body)
            except SendFailed as error:
                _tell("failed", error.reason, sent.body)
            except ChatClosed:
                _tell("unknown", "", sent.body)

    async def _listen(self, chat: "Chat") -> None:
        async for message in chat.messages():
            _tell(f"from {self._talk.name(message.from_user)}", str(message.server_msg_id), message.body)


def _tell(what: str, which: str, text: str) -> None:
    output.columns(what, which, " ".join(text.splitlines()))


async def _standard_input() -> AsyncIterator[str]:
    """Lines, read by a thread that is left behind if it must be: one that waits in a read cannot be told to stop."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue(64)

    def put(line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()

    def read() -> None:
        with contextlib.suppress(RuntimeError, asyncio.CancelledError, OSError):  # the loop has ended
            buffer = b""
            while data := os.read(STDIN_FD, READ_BYTES):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    put(line.decode(errors="replace").rstrip("\r"))
            if buffer:
                put(buffer.decode(errors="replace"))
            put(None)

    threading.Thread(target=read, daemon=True, name="standard-input").start()
    while (line := await queue.get()) is not None:
        yield line
