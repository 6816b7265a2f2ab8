"""One client that says nothing, as bytes: what it sends, and what it makes of what it hears. No socket, no clock.

    connected ─▶ upgrade ─▶ 101 ─▶ hello (session_init, session_resume or AUTH) ─▶ accepted ─▶ answers pings

Ten thousand of them live in one process beside what is measured, so nothing is read that need not be: frames are told
apart by how they begin. A speech session asks to be resumable, and comes back as the SDK does: by resuming, and by a
new session where that one is over.
"""

from enum import Enum, auto

import msgspec

_UPGRADE = (
    b"GET %b HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_INIT = (
    b'{"type":"session_init","client_version":"bench","platform":"web","src_lang":"en","tgt_lang":"es","resume":true}'
)
_RESUME = b'{"type":"session_resume","session_id":"%b","resume_token":"%b","last_seq":%d}'
_AUTH = b'{"type":"AUTH","token":"%b"}'
_PONG_TEXT = b'{"type":"PONG"}'
_END_OF_HEAD = b"\r\n\r\n"
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_NO_CODE = 1005


class State(Enum):
    CONNECTING = auto()
    UPGRADING = auto()
    GREETING = auto()
    OPEN = auto()
    OVER = auto()


class Ack(msgspec.Struct, gc=False):
    """Of session_init and session_resume."""

    session_id: str
    resume_token: str | None = None
    seq: int | None = None


class Refusal(msgspec.Struct, gc=False):
    code: str = ""
    reason: str = ""


_ack = msgspec.json.Decoder(Ack).decode
_refusal = msgspec.json.Decoder(Refusal).decode


def frame(opcode: int, payload: bytes) -> bytes:
    """Masked by a key of zeros: what is masked is what was there."""
    size = len(payload)
    head = bytes((0x80 | opcode, 0x80 | size)) if size < 126 else bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
    return head + bytes(4) + payload


class IdleSocket:
    """`receive` answers what is to be written; `why` is set when it is over: a status, a close code, a word."""

    __slots__ = ("_buffer", "_resume_token", "_seq", "_session", "path", "resumed", "state", "token", "why")

    def __init__(self, path: bytes, token: bytes = b"") -> None:
        self.path, self.token = path, token  # a token: of a chat user
        self._session = self._resume_token = b""
        self._seq = 0
        self.begin()

    def begin(self) -> None:
        """A new connection is being made."""
        self.state, self.why, self._buffer, self.resumed = State.CONNECTING, "", b"", False

    def connected(self) -> bytes:
        self.state = State.UPGRADING
        return _UPGRADE % self.path

    def receive(self, data: bytes) -> bytes:
        self._buffer += data
        if self.state is State.UPGRADING:
            head, end, rest = self._buffer.partition(_END_OF_HEAD)
            if not end:
                return b""
            if not head.startswith(b"HTTP/1.1 101"):
                return self._end(f"HTTP {head[9:12].decode(errors='replace')}")
            self._buffer, self.state = rest, State.GREETING
            return self._greeting() + self._frames()
        return self._frames()

    def lost(self) -> None:
        """The connection was closed without a word."""
        self._end(self.why or ("closed" if self.state is State.OPEN else "closed before it was accepted"))

    # -- inside ----------------------------------------------------------------------------------

    def _greeting(self) -> bytes:
        if self.token:
            return frame(_TEXT, _AUTH % self.token)
        if self._resume_token:
            return frame(_TEXT, _RESUME % (self._session, self._resume_token, self._seq))
        return frame(_TEXT, _INIT)

    def _frames(self) -> bytes:
        out = b""
        while len(self._buffer) >= 2 and self.state is not State.OVER:
            opcode, size, at = self._buffer[0] & 0x0F, self._buffer[1] & 0x7F, 2
            if size >= 126:
                at += 2 if size == 126 else 8
                size = int.from_bytes(self._buffer[2:at], "big")
            if len(self._buffer) < at + size:
                break
            payload, self._buffer = self._buffer[at : at + size], self._buffer[at + size :]
            out += self._receive_frame(opcode, payload)
        return out

    def _receive_frame(self, opcode: int, payload: bytes) -> bytes:
        if opcode == _TEXT:
            return self._text(payload)
        if opcode == _PING:
            return frame(_PONG, payload)
        if opcode == _CLOSE:
            return self._end(str(int.from_bytes(payload[:2], "big") or _NO_CODE))
        return b""

    def _text(self, payload: bytes) -> bytes:
        if payload.startswith(b'{"type":"PING"'):
            return frame(_TEXT, _PONG_TEXT)
        if payload.startswith(b'{"type":"AUTH_OK"'):
            self.state = State.OPEN
        elif payload.startswith(b'{"type":"session_init_ack"'):
            self._accepted(_ack(payload))
        elif payload.startswith((b'{"type":"error"', b'{"type":"ERROR"', b'{"type":"AUTH_FAIL"')):
            return self._refused(_refusal(payload))
        return b""

    def _accepted(self, ack: Ack) -> None:
        self.resumed = bool(self._resume_token)
        self._session, self._seq = ack.session_id.encode(), ack.seq or self._seq
        self._resume_token = (ack.resume_token or "").encode() or self._resume_token
        self.state = State.OPEN

    def _refused(self, refusal: Refusal) -> bytes:
        if self.state is State.GREETING and self._resume_token and refusal.code == "INVALID_SESSION":
            self._session = self._resume_token = b""
            return self._greeting()
        return self._end(refusal.code or refusal.reason)

    def _end(self, why: str) -> bytes:
        self.state, self.why = State.OVER, why
        return b""
