"""The two interfaces of a chat: keyboard and screen, or lines on standard input and output, for scripts.

At the end, both wait for a limited time until the sent messages are saved. Exit status 0: all sent messages are saved.
"""

import asyncio
import codecs
import contextlib
import os
import shutil
import sys
import termios
import tty
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from signal import SIGINT, SIGTERM, SIGWINCH, Signals
from typing import TYPE_CHECKING, TypeVar

from dragoman.cli import output
from dragoman.cli.chat_screen import END, GONE, NOTE, Editor, Line, Screen, clock, history_line, legend, now
from dragoman.cli.terminal_io import STDIN_FD, read_stdin, signal_handlers

if TYPE_CHECKING:
    from dragoman.client.chat import Chat, Message, Sent, StoredMessage, Translation

QUIT = ("/quit", "/exit")
HELP = "/help"
READ_BYTES = 65536
MAX_KEPT = 1000  # messages whose translations are expected

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The two users of a chat."""

    me: str
    peer: str
    peer_id: int
    lang: str = ""  # of this user: that of its messages, and into which those of the peer are translated

    def name(self, uid: int) -> str:
        return self.peer if uid == self.peer_id else f"user {uid}"


class ChatInterface:
    """The messages that were sent, and whether the user wants to quit without waiting until they are saved."""

    def __init__(self, users: Conversation) -> None:
        self.sents: list[Sent] = []
        self._users = users
        self._at_once = asyncio.Event()
        self._shown: OrderedDict[int, None] = OrderedDict()  # received messages, by server_msg_id
        self._early: OrderedDict[int, Translation] = OrderedDict()  # translations of those not shown yet

    def on_translation(self, translation: "Translation") -> None:
        """A message may wait to be shown when its translation is there."""
        if translation.server_msg_id in self._shown:
            self._show_translation(translation)
        else:
            _keep(self._early, translation.server_msg_id, translation)

    def _was_shown(self, message: "Message") -> None:
        _keep(self._shown, message.server_msg_id, None)
        if (translation := self._early.pop(message.server_msg_id, None)) is not None:
            self._show_translation(translation)

    def _show_translation(self, translation: "Translation") -> None:
        raise NotImplementedError

    @property
    def at_once(self) -> bool:
        return self._at_once.is_set()

    @property
    def exit_code(self) -> int:
        return int(not all(sent.saved for sent in self.sents))


def _keep(known: OrderedDict[int, T], id: int, value: T) -> None:
    known[id] = value
    if len(known) > MAX_KEPT:
        known.popitem(last=False)


async def _until_first_ends(*works: Awaitable[object]) -> None:
    """Run until the first of them ends, and cancel the others. Raises the error of one that failed."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


# ---------------------------------------------------------------- keyboard and screen


class TerminalChat(ChatInterface):
    def __init__(self, users: Conversation) -> None:
        super().__init__(users)
        self._editor = Editor()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._screen = Screen(output.paint, _size, sys.stdout.encoding or "ascii")
        self._quitting = asyncio.Event()
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._running = False
        self._untranslated: dict[int, Line] = {}  # by server_msg_id

    # -- callbacks of the chat

    def on_receipt(self, sent: "Sent") -> None:
        self._screen.paint()

    def on_connection(self, up: bool, why: str) -> None:
        if up and self._running:
            self._note("reconnected")
        elif not up:
            self._note(f"offline: {why}")

    def _show_translation(self, translation: "Translation") -> None:
        line = self._untranslated.pop(translation.server_msg_id, None)
        if line is not None:
            self._screen.translated(line, translation.body or f"(not translated: {translation.reason})")

    def _note(self, text: str) -> None:
        self._screen.add(Line(NOTE, text, now()))

    async def run(self, chat: "Chat", history: "list[StoredMessage]") -> int:
        """Chat until the user quits or the chat ends. Raises the error that ended it."""
        self._running = True
        try:
            # The keyboard first: a key pressed in answer to the screen must not be buffered as part of a line.
            with _keyboard(self._keys), signal_handlers(self._signals()):
                self._greet(chat.user_id, history)
                await _until_first_ends(self._receive(chat), self._send(chat), self._quit(chat))
        finally:
            self._screen.close()
        return self.exit_code

    def _signals(self) -> dict[Signals, Callable[[], None]]:
        return {SIGINT: self._interrupt, SIGTERM: self._interrupt, SIGWINCH: self._screen.paint}

    def _greet(self, my_id: int, history: "list[StoredMessage]") -> None:
        users = self._users
        self._screen.add(
            Line(
                NOTE, f"{users.me} (user {my_id}) chats with {users.peer} (user {users.peer_id}); /quit ends the chat"
            ),
            Line(NOTE, legend(self._screen.symbols)),
            *(history_line(one, my_id, users.me, users.peer, self._screen.symbols) for one in reversed(history)),
        )

    async def _quit(self, chat: "Chat") -> None:
        """Wait until the user quits, and then until all messages are saved, unless the user quits again."""
        await self._quitting.wait()
        if chat.unsaved or not self._outgoing.empty():
            count = chat.unsaved + self._outgoing.qsize()
            what = "1 message is" if count == 1 else f"{count} messages are"
            self._note(f"waiting until {what} saved; Ctrl-C quits at once")
            await _until_first_ends(self._save_all(chat), self._at_once.wait())

    async def _save_all(self, chat: "Chat") -> None:
        await self._outgoing.join()
        await chat.flush()

    async def _receive(self, chat: "Chat") -> None:
        async for message in chat.messages():
            self._screen.add(self._received(message))
            self._was_shown(message)
            chat.read(message)  # it is on the screen

    def _received(self, message: "Message") -> Line:
        users = self._users
        awaits = bool(users.lang and message.body) and message.translation is None and message.lang != users.lang
        line = Line(
            users.name(message.from_user), message.body or GONE, clock(message.ts),
            translation=message.translation, awaits_translation=awaits,
        )  # fmt: skip
        if awaits:
            self._untranslated[message.server_msg_id] = line
        return line

    async def _send(self, chat: "Chat") -> None:
        while True:
            text = await self._outgoing.get()
            try:
                sent = await chat.send(self._users.peer_id, text, lang=self._users.lang)
            except ValueError as error:
                self._note(f"not sent: {error}")
            else:
                self.sents.append(sent)
                self._screen.add(Line(self._users.me, text, now(), sent))
            self._outgoing.task_done()

    # -- keyboard

    def _keys(self, data: bytes) -> None:
        if not data:
            self._quitting.set()  # the terminal was closed
        for line in self._editor.feed(self._decoder.decode(data)):
            if line == END or line.strip() in QUIT:
                self._quitting.set()
            elif line.strip() == HELP:
                self._note(f"/quit or Ctrl-D ends the chat.  {legend(self._screen.symbols)}")
            elif line.strip():
                self._outgoing.put_nowait(line)
        self._screen.typed(self._editor.text, self._editor.at)

    def _interrupt(self) -> None:
        if self._quitting.is_set():
            self._at_once.set()
        self._quitting.set()


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines


@contextlib.contextmanager
def _keyboard(pressed: Callable[[bytes], None]) -> Iterator[None]:
    """Read single keys without echo, and restore the terminal afterwards. Ctrl-C stays a signal."""
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(STDIN_FD)
    tty.setcbreak(STDIN_FD, termios.TCSADRAIN)  # keeps keys that were typed before

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


# ---------------------------------------------------------------- lines


class LineChat(ChatInterface):
    """Sends each line of standard input, and prints one line for each sent message, in order, when its result is known:

    saved <id> <text> · failed <reason> <text> · unknown <text>, and from <name> <id> <text> for received messages.
    With a language also: translation <id> <text> · untranslated <id> <reason>.
    """

    def __init__(self, users: Conversation) -> None:
        super().__init__(users)
        self._refused = 0

    def on_receipt(self, sent: "Sent") -> None:
        """Nothing to do: `_print_results` waits for the message."""

    def on_connection(self, up: bool, why: str) -> None:
        if not up:
            output.note(f"offline: {why}")

    def _show_translation(self, translation: "Translation") -> None:
        if translation.body is not None:
            _print("translation", str(translation.server_msg_id), translation.body)
        else:
            _print("untranslated", str(translation.server_msg_id), translation.reason)

    @property
    def exit_code(self) -> int:
        return int(self._refused > 0 or super().exit_code > 0)

    async def run(self, chat: "Chat", history: "list[StoredMessage]") -> int:
        """Chat until the end of standard input, until the chat ends, or until a signal."""
        stop = self._at_once.set
        with signal_handlers({SIGINT: stop, SIGTERM: stop}):
            await _until_first_ends(self._receive(chat), self._send(chat), self._at_once.wait())
        return self.exit_code

    async def _send(self, chat: "Chat") -> None:
        sent_messages: asyncio.Queue[Sent | None] = asyncio.Queue()
        printing = asyncio.create_task(self._print_results(sent_messages))
        try:
            async for text in _stdin_lines():
                if not text.strip():
                    continue
                try:
                    sent = await chat.send(self._users.peer_id, text, lang=self._users.lang)
                except ValueError as error:
                    self._refused += 1
                    _print("failed", str(error), text)
                else:
                    self.sents.append(sent)
                    sent_messages.put_nowait(sent)
            sent_messages.put_nowait(None)
            await printing
        finally:
            printing.cancel()

    async def _print_results(self, sent_messages: "asyncio.Queue[Sent | None]") -> None:
        from dragoman.client.chat import ChatClosed, SendFailed

        while (sent := await sent_messages.get()) is not None:
            try:
                await sent.saved
                _print("saved", str(sent.server_msg_id), sent.body)
            except SendFailed as error:
                _print("failed", error.reason, sent.body)
            except ChatClosed:
                _print("unknown", "", sent.body)

    async def _receive(self, chat: "Chat") -> None:
        async for message in chat.messages():
            _print(f"from {self._users.name(message.from_user)}", str(message.server_msg_id), message.body or GONE)
            if message.translation is not None:
                _print("translation", str(message.server_msg_id), message.translation)
            self._was_shown(message)


def _print(event: str, detail: str, text: str) -> None:
    output.columns(event, detail, " ".join(text.splitlines()))


async def _stdin_lines() -> AsyncIterator[str]:
    buffer = b""
    async for data in read_stdin(READ_BYTES):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
    if buffer:
        yield buffer.decode(errors="replace")
