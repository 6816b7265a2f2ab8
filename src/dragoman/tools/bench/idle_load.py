"""Clients that send nothing, by the ten thousand, in one process: opened, held, cut off all at once, coming back.

    connect ─▶ hello (session_init, session_resume or AUTH) ─▶ accepted ─▶ answers pings

A speech session asks to be resumable, and comes back as the SDK does: by resuming, and by a new session where that one
is over. They come back after a delay that doubles with each failure and is drawn from all of it (`jitter`), or after
exactly that delay, the first time at once. Everything that kept one of them out is counted by its name. Frames are told
apart by how they begin: the clients share the machine with what is measured.
"""

import asyncio
import errno
import os
import socket
import struct
from collections import Counter
from random import Random
from time import monotonic
from typing import Any

import msgspec
from picows import WSError, WSFrame, WSInvalidStatusError, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.connection import Backoff
from dragoman.tools.bench.chat_load import FIRST_UID, chat_token
from dragoman.tools.processes import serve

IDLE_UID = FIRST_UID + 10_000_000  # no other user writes to these
CONNECT_S, ANSWER_S = 10.0, 10.0  # as patient as the SDK
PER_SOURCE = 10_000  # sockets of one source address; it has some 28,000 ports
READ_BUFFER_BYTES = 1024  # they receive little
NICE = 15  # they would be on machines of their own: whatever is measured beside them comes first
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: gone at once, no TIME_WAIT that would keep the port
_TEXT = WSMsgType.TEXT
_INIT = (
    b'{"type":"session_init","client_version":"bench","platform":"web","src_lang":"en","tgt_lang":"es","resume":true}'
)
_RESUME = b'{"type":"session_resume","session_id":"%b","resume_token":"%b","last_seq":%d}'
_AUTH = b'{"type":"AUTH","token":"%b"}'
_REFUSALS = (b'{"type":"error"', b'{"type":"ERROR"', b'{"type":"AUTH_FAIL"')


class Answer(msgspec.Struct, gc=False):
    """To session_init, session_resume and AUTH: of an ack, or of a refusal."""

    session_id: str = ""
    resume_token: str | None = None
    seq: int | None = None
    code: str = ""
    reason: str = ""


_decode = msgspec.json.Decoder(Answer).decode


class WithoutJitter(Random):
    """Draws what everybody else draws: a storm without jitter."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Refused(Exception):
    """The server did not accept a client; `str()` is the reason: a status, a close code, a code."""


class IdleClient(WSListener):
    """One client, over all its connections. With a token it is a chat user, without one a speech session."""

    def __init__(self, all: "IdleLoad", url: str, source: str, token: bytes) -> None:
        self._all, self._url, self._source, self._token = all, url, source, token
        self._session = self._resume_token = b""
        self._seq = 0
        self._why = "closed"
        self._transport: WSTransport | None = None
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = self.resumed = False

    async def connect(self) -> None:
        """Returns when the server has accepted it. Raises Refused."""
        self._accepted = asyncio.get_running_loop().create_future()
        self._why = "closed before it was accepted"
        try:
            async with asyncio.timeout(CONNECT_S + ANSWER_S):
                await ws_connect(
                    lambda: self, self._url, socket_factory=self._socket, websocket_handshake_timeout=CONNECT_S,
                    read_buffer_init_size=READ_BUFFER_BYTES,
                )  # fmt: skip
                await self._accepted
        except TimeoutError:
            self.cut()
            raise Refused("no answer") from None
        except WSInvalidStatusError as error:
            raise Refused(f"HTTP {int(error.response.status) if error.response is not None else 0}") from None
        except (OSError, WSError) as error:
            raise Refused(errno.errorcode.get(getattr(error, "errno", 0) or 0, "error")) from None

    def cut(self) -> None:
        """Gone at once, without a close frame."""
        self.is_open, transport, self._transport = False, self._transport, None
        if transport is not None:
            transport.disconnect(graceful=False)

    def _socket(self, _: object) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self._source != "127.0.0.1":
            made.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            made.bind((self._source, 0))
        return made

    def _hello(self) -> bytes:
        if self._token:
            return _AUTH % self._token
        return _RESUME % (self._session, self._resume_token, self._seq) if self._resume_token else _INIT

    # -- callbacks of picows -----------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.send(_TEXT, self._hello())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if frame.msg_type is WSMsgType.CLOSE:
            self._why = str(int.from_bytes(payload[:2], "big") or 1005)
        else:
            self.receive(transport, payload)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if transport is not self._transport:  # it was cut, and may have another one by now
            return
        self._transport = None
        if self.is_open:
            self.is_open = False
            self._all.lost(self, self._why)
        elif not self._accepted.done():
            self._accepted.set_exception(Refused(self._why))

    # -- messages ----------------------------------------------------------------------------------

    def receive(self, transport: WSTransport, payload: bytes) -> None:
        if payload.startswith(b'{"type":"PING"'):
            transport.send(_TEXT, b'{"type":"PONG"}')
        elif payload.startswith((b'{"type":"AUTH_OK"', b'{"type":"session_init_ack"')):
            self._opened(_decode(payload))
        elif payload.startswith(_REFUSALS):
            self._refused(transport, _decode(payload))

    def _opened(self, ack: Answer) -> None:
        self.resumed = bool(self._resume_token)
        self._session, self._seq = ack.session_id.encode(), ack.seq or self._seq
        self._resume_token = (ack.resume_token or "").encode() or self._resume_token
        self._why, self.is_open = "closed", True
        if not self._accepted.done():
            self._accepted.set_result(None)

    def _refused(self, transport: WSTransport, refusal: Answer) -> None:
        if not self.is_open and self._resume_token and refusal.code == "INVALID_SESSION":
            self._session = self._resume_token = b""
            transport.send(_TEXT, self._hello())
        else:
            self._why = refusal.code or refusal.reason
            transport.disconnect(graceful=False)


class IdleLoad:
    """All of this process."""

    def __init__(self) -> None:
        self.clients: list[IdleClient] = []
        self.closed: Counter[str] = Counter()  # that were in
        self.refused: Counter[str] = Counter()  # before they were accepted, by the reason
        self.accepted = self.resumed = 0
        self._returning = False
        self._rng = Random(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._dropped_at = self._all_back_at = self._changed_at = 0.0

    @property
    def _open(self) -> int:
        return sum(one.is_open for one in self.clients)

    # -- commands of the bench -------------------------------------------------------------------

    async def open(
        self, urls: list[str], speech: int, chat: int, secret: str, issuer: str, opening: int, quiet_s: float
    ) -> dict[str, Any]:
        """So many more, `opening` at a time, dealt out to `urls`; returns when no more come in."""
        gate, first = asyncio.Semaphore(opening), len(self.clients)

        async def opened(client: IdleClient) -> None:
            async with gate:
                await self._connect(client)

        for number in range(first, first + speech + chat):
            token = chat_token(IDLE_UID + number, secret, issuer).encode() if number - first >= speech else b""
            url = f"{urls[number % len(urls)]}{'/ws' if token else '/ws/session'}"
            self.clients.append(IdleClient(self, url, f"127.0.0.{1 + number // PER_SOURCE}", token))
        self._changed_at = monotonic()
        tasks = {asyncio.create_task(opened(client)) for client in self.clients[first:]}
        while tasks and self._changed_at + quiet_s > monotonic():
            _, tasks = await asyncio.wait(tasks, timeout=quiet_s / 10)
        for task in tasks:
            task.cancel()
        return await self.count()

    async def drop(self, jitter: bool) -> None:
        """All at once, and back."""
        self._returning, self._rng = True, Random(1) if jitter else WithoutJitter(1)
        self.refused.clear()
        self.accepted = self.resumed = 0
        self._dropped_at, self._all_back_at = monotonic(), 0.0
        for client in self.clients:
            client.cut()
            self._bring_back(client, at_once=not jitter)

    async def count(self) -> dict[str, Any]:
        back_s = self._all_back_at - self._dropped_at if self._all_back_at else None
        counts = {"sockets": len(self.clients), "open": self._open, "closed": dict(self.closed)}
        counts |= {"refused": dict(self.refused), "accepted": self.accepted, "resumed": self.resumed}
        return counts | {"back_s": back_s}

    # -- one of them -----------------------------------------------------------------------------

    def lost(self, client: IdleClient, why: str) -> None:
        self.closed[why] += 1
        if self._returning:
            self._bring_back(client)

    async def _connect(self, client: IdleClient) -> None:
        try:
            await client.connect()
        except Refused as why:
            self.refused[str(why)] += 1
            return
        self.accepted += 1
        self.resumed += client.resumed
        self._changed_at = monotonic()
        if self._returning and not self._all_back_at and self.accepted >= len(self.clients) == self._open:
            self._all_back_at = self._changed_at

    def _bring_back(self, client: IdleClient, at_once: bool = False) -> None:
        async def come_back() -> None:
            backoff = Backoff(rng=self._rng)
            await asyncio.sleep(0.0 if at_once else backoff.delay_s())
            while not client.is_open:
                await self._connect(client)
                if not client.is_open:
                    await asyncio.sleep(backoff.delay_s())

        task = asyncio.create_task(come_back())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


if __name__ == "__main__":
    os.nice(NICE)
    load = IdleLoad()
    serve({"open": load.open, "drop": load.drop, "count": load.count})
