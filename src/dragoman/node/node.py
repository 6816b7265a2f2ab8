"""A compute node: stays connected, registered and alive, and hands jobs to a Worker.

    connect → node_register → ack → heartbeat, kept results → jobs … → lost → wait → connect …

One task runs `run`; everything the server says is handled in the link's callback. Leaving is a drain: tell the server
that nothing is ready any more, finish what was taken, see that the results were read, close.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from picows import WSError, WSInvalidStatusError, WSInvalidURL

from dragoman.node import answer
from dragoman.node.backoff import Backoff
from dragoman.node.link import Closed, Link
from dragoman.node.outbox import Outbox
from dragoman.node.profile import Profile, usage_of_this_machine
from dragoman.node.worker import Handler, Worker
from dragoman.protocol import codec
from dragoman.protocol.codes import may_come_back
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.fields import Message
from dragoman.protocol.node import (
    InstalledService,
    JobAssign,
    JobCancel,
    NodeControl,
    NodeRegisterAck,
    ResourceUsage,
)
from dragoman.protocol.session import Error

log = logging.getLogger("dragoman.node")

_LEAVE_COMMANDS = ("drain", "shutdown")
_REFUSED_STATUS = (401, 403)


class NodeRefused(Exception):
    """The server does not want this node, and says that coming back will not help."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the server refused this node ({code}): {reason or 'no reason given'}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Timing:
    connect_s: float = 10.0
    register_s: float = 10.0
    heartbeat_s: float = 15.0
    drain_s: float = 30.0
    keep_results_s: float = 30.0
    linger_results_s: float = 2.0
    ask_read_s: float = 0.1
    backoff_first_s: float = 0.25
    backoff_longest_s: float = 10.0
    backoff_steady_s: float = 5.0


class Node:
    """`url` may be several: the next one is tried when one fails. `languages` stands for asr, semantic and tts alike.

    A handler whose `has_voice` is False, such as a Pipeline without a synthesise function, serves text only.
    `node_id` is the one to claim; None takes what the server gives and claims it from then on.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        handler: Handler,
        *,
        languages: Sequence[str] = (),
        asr: Sequence[str] | None = None,
        semantic: Sequence[str] | None = None,
        tts: Sequence[str] | None = None,
        slots: int = 1,
        node_id: str | None = None,
        token: str | None = None,
        version: str = "1.0.0",
        services: Sequence[InstalledService] | None = None,
        ready: Mapping[str, bool] | None = None,
        public: bool = True,
        usage: Callable[[], ResourceUsage] = usage_of_this_machine,
        on_registered: Callable[[str], None] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.node_id = node_id
        self.draining = False
        self._urls = cycle([url] if isinstance(url, str) else url)
        self._token = token
        self._timing = timing = timing or Timing()
        self._profile = Profile(
            asr=languages if asr is None else asr,
            semantic=languages if semantic is None else semantic,
            tts=_spoken(handler, languages, tts),
            slots=slots,
            version=version,
            services=services,
            ready=ready,
            public=public,
            usage=usage,
        )
        self._on_registered = on_registered
        self._backoff = Backoff(timing.backoff_first_s, timing.backoff_longest_s, timing.backoff_steady_s)
        self._outbox = Outbox(timing.keep_results_s, timing.linger_results_s)
        self._worker = Worker(handler, slots, self._my_id, self._say, self._finish)
        self._link: Link | None = None
        self._url = ""  # of the connection under way, as the log may show it
        self._registered = asyncio.Event()
        self._asked_read = False
        self._all_read = asyncio.Event()
        self._left = asyncio.Event()
        self._drainer: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    def serve(self) -> None:
        """Run until SIGTERM or SIGINT; the first drains, the second leaves at once.

        If the program has not set up logging, the node's lines go to stderr.
        """
        if not log.hasHandlers():
            _log_to_stderr()
        asyncio.run(self.run(signals=True))

    async def run(self, *, signals: bool = False) -> None:
        """Be a node until drained or stopped. Raises NodeRefused."""
        if signals:
            self._listen_to_signals()
        try:
            await self._stay_connected()
        finally:
            if self._drainer is not None:
                self._drainer.cancel()
            await self._worker.abandon()

    def drain(self) -> None:
        """Finish what was taken, take nothing more, leave. Returns at once; `run` ends."""
        if not self.draining:
            self.draining = True
            self._heartbeat()
            self._drainer = asyncio.get_running_loop().create_task(self._leave_when_done())

    def stop(self) -> None:
        """Leave now; jobs are cancelled, results that were not read are lost."""
        self._left.set()

    def die(self) -> None:
        """Leave without closing the connection, as if the machine had lost its power."""
        if self._link is not None:
            self._link.abort()
        self._left.set()

    async def _leave_when_done(self) -> None:
        try:
            async with asyncio.timeout(self._timing.drain_s):
                await self._worker.until_idle()
                while not self._outbox.all_read:
                    self._all_read.clear()
                    await self._all_read.wait()
        except TimeoutError:
            log.warning("drained for %s s; leaving with work undone", self._timing.drain_s)
        self._left.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Windows has no such handlers; there, and outside the main thread, the process just ends.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.draining:
            self.stop()
        else:
            self.drain()

    # ------------------------------------------------------------ connections

    async def _stay_connected(self) -> None:
        leaving = asyncio.get_running_loop().create_task(self._left.wait())
        try:
            while not leaving.done():
                url = next(self._urls)
                connection = asyncio.get_running_loop().create_task(self._one_connection(url))
                await _first_of(connection, leaving)
                if not connection.cancelled():
                    why = self._why_it_ended(connection, _without_query(url))
                    delay_s = self._backoff.delay()
                    log.info("%s; trying again in %.1f s", why, delay_s)
                    await asyncio.wait({leaving}, timeout=delay_s)
        finally:
            leaving.cancel()

    def _why_it_ended(self, connection: asyncio.Task[Closed], url: str) -> str:
        """Raises what makes coming back pointless."""
        try:
            closed = connection.result()
            if not may_come_back(closed.code):
                raise NodeRefused(*closed)
            return f"lost the connection to {url}: {closed.code} {closed.reason}".rstrip()
        except WSInvalidURL:
            raise
        except WSInvalidStatusError as error:
            status = int(error.response.status) if error.response is not None else 0
            if status not in _REFUSED_STATUS:
                return f"not connected to {url}: HTTP {status}"
            refused = NodeRefused(status, str(error))
            log.error("%s: %s", url, refused)
            raise refused from error
        except NodeRefused as refused:
            log.error("%s: %s", url, refused)
            raise
        except (OSError, WSError, TimeoutError) as error:
            return f"not connected to {url}: {str(error) or type(error).__name__}"

    async def _one_connection(self, url: str) -> Closed:
        """From connecting to the end of the connection; cancelled, it says goodbye."""
        began = time.monotonic()
        self._url = _without_query(url)
        log.info("connecting to %s", self._url)
        link = await Link.open(url, self._received, self._read, self._timing.connect_s)
        self._link = link
        self._registered.clear()
        self._asked_read = False
        link.send(codec.encode(self._profile.register(self.node_id, self._token, self.draining)))
        beating = asyncio.get_running_loop().create_task(self._beat(link))
        try:
            await asyncio.wait({link.closed})
            return link.closed.result()
        finally:
            self._link = None
            beating.cancel()
            await link.close()
            if self._registered.is_set():
                self._backoff.lasted(time.monotonic() - began)

    async def _beat(self, link: Link) -> None:
        """Heartbeats for as long as the connection lasts; the first goes out with the ack, in `_on_ack`."""
        try:
            async with asyncio.timeout(self._timing.register_s):
                await self._registered.wait()
        except TimeoutError:
            log.warning("the server did not acknowledge the registration")
            link.abort()
            return
        while True:
            await asyncio.sleep(self._timing.heartbeat_s)
            self._heartbeat()

    # ------------------------------------------------------------ what the server says

    def _received(self, data: bytes) -> None:
        try:
            message = codec.decode_to_node(data)
        except ProtocolError as error:
            log.warning("ignored what the server sent: %s", error.message)
            return
        match message:
            case NodeRegisterAck():
                self._on_ack(message)
            case JobAssign():
                self._on_assign(message)
            case JobCancel(job_id=job_id):
                self._worker.cancel(job_id)
            case NodeControl(command=command) if command in _LEAVE_COMMANDS:
                self.drain()
            case NodeControl(command=command):
                log.info("ignored the command %r", command)
            case Error(code=code, message=sentence):
                log.warning("the server says %s: %s", code, sentence)

    def _on_ack(self, ack: NodeRegisterAck) -> None:
        self.node_id = ack.node_id
        self._registered.set()
        log.info("registered at %s as %s: %s", self._url, ack.node_id, self._profile.summary)
        self._heartbeat()
        for data in self._outbox.again(time.monotonic()):
            self._send(data)
        self._ask_read()
        if self._on_registered is not None:
            self._on_registered(ack.node_id)

    def _on_assign(self, assign: JobAssign) -> None:
        if not self._registered.is_set():
            log.warning("ignored a job that came before the registration was acknowledged")
        elif self.draining:
            self._finish(answer.draining(assign, self._my_id()))
        else:
            self._worker.assign(assign)

    def _read(self, mark: int) -> None:
        self._outbox.read(mark, time.monotonic())
        self._asked_read = False
        self._ask_read()
        if self._outbox.all_read:
            self._all_read.set()

    # ------------------------------------------------------------ what we say

    def _my_id(self) -> str:
        return self.node_id or ""

    def _say(self, message: Message) -> None:
        """Tell it if anybody listens; it is not worth keeping."""
        if self._link is not None and self._registered.is_set():
            self._link.send(codec.encode(message))

    def _finish(self, data: bytes) -> None:
        lost = self._outbox.lost
        self._outbox.add(data, time.monotonic())
        if self._outbox.lost > lost:
            log.warning("gave up %d results that nobody took", self._outbox.lost - lost)
        self._send(data)
        self._ask_read()

    def _send(self, data: bytes) -> None:
        if self._link is not None and self._registered.is_set():
            self._link.send(data)

    def _ask_read(self) -> None:
        """One question at a time and not for every result: its answer asks the next, if there is more by then."""
        if self._link is not None and self._registered.is_set() and not (self._asked_read or self._outbox.all_read):
            self._asked_read = True
            asyncio.get_running_loop().call_later(self._timing.ask_read_s, self._ask_read_now, self._link)

    def _ask_read_now(self, link: Link) -> None:
        if link is self._link:
            link.ask_read(self._outbox.last_mark)

    def _heartbeat(self) -> None:
        self._say(self._profile.heartbeat(self._my_id(), self._worker.running, self.draining))
        self._outbox.prune(time.monotonic())


def _spoken(handler: Handler, languages: Sequence[str], tts: Sequence[str] | None) -> Sequence[str]:
    if getattr(handler, "has_voice", True):
        return languages if tts is None else tts
    if tts:
        raise ValueError("tts names languages, but the handler has no voice: leave tts out, or give it a synthesiser")
    return ()


def _without_query(url: str) -> str:
    """A token may be in the query; it is not for the log."""
    return url.partition("?")[0]


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    ours = logging.getLogger("dragoman")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)


async def _first_of(work: asyncio.Task[Any], enough: asyncio.Task[Any]) -> None:
    """Wait for `work`, but cancel it as soon as it is `enough` or nobody waits any more."""
    try:
        await asyncio.wait({work, enough}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
