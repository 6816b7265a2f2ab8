"""A compute node: stays connected and registered, sends heartbeats, and passes jobs to a Worker.

    connect → node_register → ack → heartbeat, unconfirmed results → jobs … → lost → wait → connect …

One task runs `run`; messages of the server are handled in the callback of the socket. A node leaves by draining: it
reports that it is ready for nothing, finishes its jobs, waits until the server has read the results, and closes.
"""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from dragoman.connection import Backoff, ClientWebSocket, ConnectionRefused, Connector, Frame
from dragoman.node.capabilities import Capabilities, usage_of_this_machine
from dragoman.node.job import ResultOutbox, encode_draining
from dragoman.node.preview import Preview, Previewer
from dragoman.node.worker import Handler, Worker
from dragoman.protocol import codec
from dragoman.protocol.codes import ProtocolError
from dragoman.protocol.fields import MAX_PAIRS, Message
from dragoman.protocol.node import (
    JobAssign,
    JobCancel,
    NodeControl,
    NodeRegisterAck,
    PreviewAudio,
    PreviewClose,
    PreviewOpen,
    ResourceUsage,
)
from dragoman.protocol.session import Error

log = logging.getLogger("dragoman.node")

_LEAVE_COMMANDS = ("drain", "shutdown")


class NodeRefused(Exception):
    """The server refused this node for good: reconnecting does not help.

    `code` is an HTTP status or a WebSocket close code, `reason` the server's words.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the server refused this node ({code}): {reason or 'no reason given'}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts and intervals of a node, in seconds."""

    connect_s: float = 10.0  # to connect, and to complete the handshake
    register_s: float = 10.0  # for the acknowledgement of the registration
    heartbeat_s: float = 15.0
    drain_s: float = 30.0  # a drain that takes longer ends with jobs undone
    keep_results_s: float = 30.0  # how long a result waits for a connection
    linger_results_s: float = 2.0  # how long a result is kept after the server has read it
    ask_read_s: float = 0.1  # the delay before the ping that asks whether results were read
    backoff_first_s: float = 0.25  # upper bound of the first delay before a reconnect; doubles each time
    backoff_longest_s: float = 10.0
    backoff_steady_s: float = 5.0  # a connection that lasts so long resets the delay


@dataclass(frozen=True, slots=True)
class Registered:
    """The server acknowledged the registration."""

    node_id: str
    url: str


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """An attempt to connect failed; the node tries the next address."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone."""

    url: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """The server assigned a job. The node may refuse it, because it drains, or know it from an earlier attempt."""

    assign: JobAssign


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The server cancelled a job."""

    job_id: str


NodeEvent = Registered | ConnectFailed | Disconnected | Assigned | Cancelled


class Node:
    """A compute node: connects to a server, registers, runs `handler` on each job, and sends the results.

        Node("ws://127.0.0.1:5010/ws/node", translate, languages=["en", "es"], slots=4).serve()

    `url`: one address or several; when one fails, the next is tried.
    `handler`: takes a Job, returns a Result or None (nothing was said). An async function, or a plain one, which runs
    in a thread. It may have the attributes of a Pipeline, which say what it can do: `recognises` and `has_voice`
    (True, unless it says otherwise) and `translates_text` (False, unless it says otherwise).
    `capabilities`: what the node can do, if that is more than `languages` and `slots` say: the node recognises,
    translates into and speaks each of `languages`, and takes `slots` jobs at a time. A handler that translates text
    also gets text jobs, between the same languages unless `text_pairs` names others. A handler with an async function
    `preview` also recognises utterances while they are spoken, `capabilities.previews` at a time.
    `node_id`: the id to register with; None takes the one that the server assigns, and keeps it.
    `token`: needed if the server has a secret.
    `usage`: measures the load that heartbeats report.
    `on_event`: called with each NodeEvent; must not block.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        handler: Handler,
        capabilities: Capabilities | None = None,
        *,
        languages: Sequence[str] = (),
        slots: int = 1,
        node_id: str | None = None,
        token: str | None = None,
        usage: Callable[[], ResourceUsage] = usage_of_this_machine,
        on_event: Callable[[NodeEvent], None] = lambda event: None,
        timing: Timing | None = None,
    ) -> None:
        if capabilities is not None and (languages or slots != 1):
            raise ValueError("give either capabilities, or languages and slots")
        self.node_id = node_id
        self.draining = False
        self._capabilities = _checked(capabilities or Capabilities.of(languages, slots), handler, capabilities is None)
        self._token = token
        self._usage = usage
        self._on_event = on_event
        self._timing = timing = timing or Timing()
        self._connector = Connector(
            url,
            Backoff(timing.backoff_first_s, timing.backoff_longest_s, timing.backoff_steady_s),
            log,
            connect_s=timing.connect_s,
            keep_trying=True,
            on_failure=lambda reason: on_event(ConnectFailed(self._connector.url, reason)),
        )
        self._outbox = ResultOutbox(timing.keep_results_s, timing.linger_results_s)
        self._worker = Worker(handler, self._capabilities.slots, self._my_id, self._send_now, self._finish)
        preview, previews = _preview_of(handler), self._capabilities.previews
        self._previewer = Previewer(preview, previews or 0, self._my_id, self._send_now)
        self._socket: ClientWebSocket | None = None
        self._registered = asyncio.Event()
        self._asked_read = False
        self._all_read = asyncio.Event()
        self._left = asyncio.Event()
        self._drainer: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ running and leaving

    def serve(self) -> None:
        """Run until SIGTERM or SIGINT: the first signal drains, the second stops at once.

        If the program has not configured logging, the node logs to stderr.
        """
        if not log.hasHandlers():
            _log_to_stderr()
        asyncio.run(self.run(signals=True))

    async def run(self, *, signals: bool = False) -> None:
        """Be a node until drained or stopped. `signals`: SIGTERM and SIGINT drain. Raises NodeRefused."""
        if signals:
            self._handle_signals()
        try:
            await _cancel_when(self._left, self._stay_connected())
        except ConnectionRefused as error:
            refused = NodeRefused(error.code, error.reason)
            log.error("%s: %s", error.url, refused)
            raise refused from error
        finally:
            if self._drainer is not None:
                self._drainer.cancel()
            await self._worker.abandon()

    def drain(self) -> None:
        """Finish the jobs, accept no more, and end `run`. Returns at once."""
        if not self.draining:
            self.draining = True
            self._heartbeat()
            self._drainer = asyncio.get_running_loop().create_task(self._leave_when_done())

    def stop(self) -> None:
        """End `run` now. Jobs are cancelled; results that the server has not read are lost."""
        self._left.set()

    def die(self) -> None:
        """End `run` and cut the connection without a close frame, as a machine that loses its power does."""
        if self._socket is not None:
            self._socket.abort()
        self._left.set()

    async def _leave_when_done(self) -> None:
        try:
            async with asyncio.timeout(self._timing.drain_s):
                await self._worker.until_idle()
                while not self._outbox.all_read:
                    self._all_read.clear()
                    await self._all_read.wait()
        except TimeoutError:
            log.warning("not drained within %s s; leaving with jobs undone", self._timing.drain_s)
        self._left.set()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not possible on Windows and outside the main thread: there a signal ends the process.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.draining:
            self.stop()
        else:
            self.drain()

    # ------------------------------------------------------------ connections

    async def _stay_connected(self) -> None:
        while True:
            socket = await self._connector.connect(self._on_message, self._on_pong)
            await self._use(socket)
            self._connector.lost(socket.closed.result())

    async def _use(self, socket: ClientWebSocket) -> None:
        """From the registration to the end of the connection. Closes the connection if cancelled."""
        self._socket = socket
        self._registered.clear()
        self._asked_read = False
        register = self._capabilities.register(self.node_id, self._token, self.draining)
        socket.send(Frame(codec.encode(register)))
        heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats(socket))
        try:
            await asyncio.wait({socket.closed})
        finally:
            self._socket = None
            self._previewer.close_all()
            heartbeats.cancel()
            await socket.close()
            self._on_event(Disconnected(self._connector.url))

    async def _send_heartbeats(self, socket: ClientWebSocket) -> None:
        """For as long as the connection lasts. `_on_ack` sends the first one."""
        try:
            async with asyncio.timeout(self._timing.register_s):
                await self._registered.wait()
        except TimeoutError:
            log.warning("the server did not acknowledge the registration")
            socket.abort()
            return
        while True:
            await asyncio.sleep(self._timing.heartbeat_s)
            self._heartbeat()

    # ------------------------------------------------------------ receiving

    def _on_message(self, data: bytes) -> None:
        try:
            message = codec.decode_to_node(data)
        except ProtocolError as error:
            log.warning("ignored an invalid message of the server: %s", error.message)
            return
        match message:
            case NodeRegisterAck():
                self._on_ack(message)
            case JobAssign():
                self._on_assign(message)
            case PreviewOpen():
                self._previewer.open(message, draining=self.draining)
            case PreviewAudio():
                self._previewer.audio(message)
            case PreviewClose():
                self._previewer.close(message)
            case JobCancel(job_id=job_id):
                self._on_event(Cancelled(job_id))
                self._worker.cancel(job_id)
            case NodeControl(command=command) if command in _LEAVE_COMMANDS:
                self.drain()
            case NodeControl(command=command):
                log.info("ignored the command %r", command)
            case Error(code=code, message=sentence):
                log.warning("the server reports %s: %s", code, sentence)
            case _:
                assert_never(message)

    def _on_ack(self, ack: NodeRegisterAck) -> None:
        self.node_id = ack.node_id
        self._registered.set()
        self._connector.opened()
        log.info("registered at %s as %s: %s", self._connector.url, ack.node_id, self._capabilities.summary)
        self._heartbeat()
        for data in self._outbox.to_resend(time.monotonic()):
            self._send(data)
        self._ask_read()
        self._on_event(Registered(ack.node_id, self._connector.url))

    def _on_assign(self, assign: JobAssign) -> None:
        self._on_event(Assigned(assign))
        if not self._registered.is_set():
            log.warning("ignored a job that arrived before the registration was acknowledged")
        elif self.draining:
            self._finish(encode_draining(assign, self._my_id()))
        else:
            self._worker.assign(assign)

    def _on_pong(self, mark: int) -> None:
        self._outbox.read(mark, time.monotonic())
        self._asked_read = False
        self._ask_read()
        if self._outbox.all_read:
            self._all_read.set()

    # ------------------------------------------------------------ sending

    def _my_id(self) -> str:
        return self.node_id or ""

    def _send_now(self, message: Message) -> None:
        """Dropped if the node is not connected."""
        self._send(codec.encode(message))

    def _finish(self, data: bytes) -> None:
        lost = self._outbox.lost
        self._outbox.add(data, time.monotonic())
        if self._outbox.lost > lost:
            log.warning("dropped %d results that no server read in time", self._outbox.lost - lost)
        self._send(data)
        self._ask_read()

    def _send(self, data: bytes) -> None:
        if self._socket is not None and self._registered.is_set():
            self._socket.send(Frame(data))

    def _ask_read(self) -> None:
        """Ping for a pong that proves what the server has read: one ping at a time, not one for each result."""
        if self._socket is not None and self._registered.is_set() and not (self._asked_read or self._outbox.all_read):
            self._asked_read = True
            asyncio.get_running_loop().call_later(self._timing.ask_read_s, self._ask_read_now, self._socket)

    def _ask_read_now(self, socket: ClientWebSocket) -> None:
        if socket is self._socket:
            socket.ping(self._outbox.last_mark)

    def _heartbeat(self) -> None:
        usage = msgspec.structs.replace(self._usage(), running_jobs=self._worker.running)
        self._send_now(self._capabilities.heartbeat(self._my_id(), usage, self.draining))
        self._outbox.prune(time.monotonic())


def _preview_of(handler: Handler) -> Preview | None:
    preview: Preview | None = getattr(handler, "preview", None)
    return preview


def _checked(capabilities: Capabilities, handler: Handler, short_form: bool) -> Capabilities:
    """The capabilities without what the handler cannot do; raises ValueError if they were given so."""
    text_pairs = capabilities.text_pairs
    if text_pairs is None and getattr(handler, "translates_text", False):
        text_pairs = _pairs(capabilities.asr, capabilities.semantic)
    left_out: dict[str, Any] = {}
    if not getattr(handler, "has_voice", True) and capabilities.tts:
        left_out["tts"] = ()
    if not getattr(handler, "recognises", True) and capabilities.asr:
        left_out |= {"asr": (), "semantic": ()}
    if left_out and not short_form:
        lacks = "voice: leave tts out, or give it a synthesiser" if "tts" in left_out else "recogniser: leave asr out"
        raise ValueError(f"{next(iter(left_out))} names languages, but the handler has no {lacks}")
    can_preview = _preview_of(handler) is not None
    previews = capabilities.previews if capabilities.previews is not None else capabilities.slots if can_preview else 0
    if previews and not can_preview:
        raise ValueError("previews is set, but the handler has no function `preview`")
    return dataclasses.replace(capabilities, text_pairs=text_pairs, previews=previews, **left_out)


def _pairs(sources: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(source, target) for source in sources for target in targets if source != target]
    if len(pairs) > MAX_PAIRS:
        log.warning("text jobs for %d of %d pairs only: set text_pairs to choose them", MAX_PAIRS, len(pairs))
    return pairs[:MAX_PAIRS]


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    ours = logging.getLogger("dragoman")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)


async def _cancel_when(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or `stop` is set; it is cancelled and awaited in that case, and if we are cancelled."""
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
    if not working.cancelled():
        working.result()
