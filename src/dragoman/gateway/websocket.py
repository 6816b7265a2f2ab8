"""A `Connection` on top of picows.

A connection has no task or timer of its own; `OpenConnections` checks its time limits. Frames arrive one at a time:
fragments are joined here under the size limit of the whole message, control frames may lie between them, and every
frame, control frames too, takes a token of the rate limit. What waits for a slow reader is bounded in bytes and in age.

`flow_control` decides whether the connection is read, and how many of its messages one turn of the loop handles.
"""

import asyncio
from functools import partial
from itertools import count
from secrets import randbits

import structlog

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.domain.limits.frames import FrameBucket
from dragoman.gateway.connection import Endpoint
from dragoman.gateway.flow_control import Backlog, InboundQueue, LingeringClose, Pause, ReadGate
from dragoman.gateway.handshake import Request
from dragoman.gateway.open_connections import OpenConnections
from dragoman.gateway.picows_listener import (
    TOO_BIG,
    PicowsListener,
    WSFrame,
    WSMsgType,
    WSTransport,
    adopt,
    frame_header,
)
from dragoman.protocol.codes import Close

_TEXT, _BINARY, _CONTINUATION = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION
_PING, _PONG, _CLOSE = WSMsgType.PING, WSMsgType.PONG, WSMsgType.CLOSE
_NORMAL = 1000
_PROTOCOL_ERROR = 1002
_INTERNAL_ERROR = 1011
_MAX_REASON_BYTES = 123
# More than this is written before the end of the turn.
_FLUSH_BYTES = 256 << 10
# A read buffer that held this much is replaced by a small one after `grown_buffer_s` without need.
_GROWN_BYTES = 64 << 10

# Other instances name a connection by this number and the instance id, which the next process may have as well.
_ids = count(randbits(48))
_log = structlog.get_logger(__name__)


class WebSocket(PicowsListener):
    __slots__ = (
        "_active_at",
        "_backlog",
        "_bucket",
        "_counters",
        "_endpoint",
        "_frames",
        "_frames_before",
        "_gate",
        "_grown_at",
        "_idle_fd",
        "_kind",
        "_loop",
        "_out",
        "_out_bytes",
        "_partial",
        "_pinged_at",
        "_queue",
        "_registry",
        "_tokens",
        "_transport",
        "_ws",
        "closed",
        "headers",
        "id",
        "limits",
        "path",
        "peer",
        "query",
    )

    def __init__(
        self,
        request: Request,
        endpoint: Endpoint,
        limits: ConnectionLimits,
        registry: OpenConnections,
        transport: asyncio.Transport,
    ) -> None:
        now = registry.clock()
        self.id = next(_ids)
        self.path = request.path
        self.query = request.query
        self.headers = request.headers
        self.peer = request.peer
        self.limits = limits
        self.closed = False
        self._endpoint: Endpoint | None = endpoint
        self._registry = registry
        self._counters = registry.counters
        self._transport = transport
        self._ws: WSTransport | None = None
        self._partial: bytearray | None = None
        self._kind = _TEXT
        self._bucket = FrameBucket(limits.max_frames_per_s, limits.burst_frames, now)
        self._tokens = 0.0
        self._frames = self._frames_before = 0
        self._active_at = now
        self._pinged_at: float | None = None
        self._loop = asyncio.get_running_loop()  # each look-up is a system call in Python 3.11
        self._out: list[bytes] = []  # frames of this turn of the loop, written together
        self._out_bytes = 0
        self._backlog: Backlog | None = None
        self._grown_at: float | None = None
        self._gate = ReadGate(transport)
        self._queue = InboundQueue(self._gate)
        self._idle_fd: int | None = None  # of a socket that the idle poller watches in place of the loop

    # --- called by endpoints ---

    @property
    def buffered(self) -> int:
        return self._transport.get_write_buffer_size() + self._out_bytes

    @property
    def frames(self) -> int:
        return self._frames

    @property
    def max_frame_bytes(self) -> int:
        return self.limits.max_frame_bytes

    def ping(self) -> None:
        self._send(_PING, b"")

    def send(self, data: bytes | str) -> None:
        self._send(_TEXT, data.encode() if isinstance(data, str) else data)

    def send_binary(self, data: bytes) -> None:
        self._send(_BINARY, data)

    def frame(self, data: bytes) -> bytes:
        return frame_header(_TEXT, len(data)) + data

    def send_frame(self, frame: bytes) -> None:
        """Without a callback and a join at the end of the turn: a connection gets at most one message for all in it."""
        if self._out or self._backlog is not None:
            self._queue_frame(frame)
        elif not self.closed and self._ws is not None:
            counters = self._counters
            counters.frames_out += 1
            counters.bytes_out += len(frame)
            counters.writes += 1
            self._transport.write(frame)

    def pause_reading(self) -> None:
        if not self.closed and not self._transport.is_closing():
            self.resume()
            self._gate.pause(Pause.ENDPOINT)

    def resume_reading(self) -> None:
        if not self.closed:
            self._gate.resume(Pause.ENDPOINT)

    def hold(self, seconds: float) -> None:
        if self._transport.is_closing():
            self._queue.clear()  # what the peer sent before it left is not handled at once instead
        elif not self.closed:
            self.resume()
            self._queue.hold(seconds)

    def close(self, code: int, reason: str = "") -> None:
        if self._ws is None:
            self._queue.clear()  # nothing more is delivered
        if self.closed or self._ws is None:
            return
        self.flush()
        if self._is_closed():  # by the flush: too much was waiting
            return
        self.closed = True
        self._counters.closed[int(code)] += 1
        text = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        self._ws.send_close(code, text)  # type: ignore[arg-type]  # any int will do
        self._start_closing(peer_is_done=False)

    def _send(self, kind: WSMsgType, data: bytes) -> None:
        """Write once per turn of the loop, however many messages: each write is a system call."""
        self._queue_frame(frame_header(kind, len(data)), data)

    def _queue_frame(self, *parts: bytes) -> None:
        if self.closed or self._ws is None:
            return
        if not self._out:
            self._loop.call_soon(self.flush)
        size = sum(map(len, parts))
        self._out += parts
        self._out_bytes += size
        counters = self._counters
        counters.frames_out += 1
        counters.bytes_out += size
        if self._out_bytes > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._out:
            return
        data = b"".join(self._out)
        self._out = []
        self._out_bytes = 0
        if self.closed or self._ws is None:
            return
        before = self.buffered if self._backlog is not None else None
        self._transport.write(data)
        self._counters.writes += 1
        if self._backlog is not None:
            self._check_backlog_size(self._backlog, before)

    def _is_closed(self) -> bool:
        return self.closed

    def _check_backlog_size(self, backlog: Backlog, before: int | None) -> None:
        waiting = self.buffered
        if before is not None:  # else the backlog began with this message and includes it
            backlog.grew(waiting - before)
        if waiting > self.limits.out_queue_bytes:
            self.close(Close.SLOW_CONSUMER, "too much data waits to be read")

    # --- called by picows ---

    def on_ws_connected(self, transport: WSTransport) -> None:
        again = self._ws is not None
        self._ws = transport
        if again:
            return
        # So that pause_writing means that something waits.
        self._transport.set_write_buffer_limits(high=0)
        self._registry.add(self)
        self._counters.opened += 1
        assert self._endpoint is not None
        try:
            self._endpoint.opened(self)
        except Exception:
            self._fail()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self.closed or self._queue.has_ended:
            return
        size = frame.payload_size
        counters = self._counters
        counters.frames_in += 1
        counters.bytes_in += size
        self._frames += 1
        self._tokens -= 1
        if self._tokens < 0 and not self._take_tokens():
            self._refuse(Close.RATE, "too many frames a second")
            return
        kind = frame.msg_type
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._refuse(_PROTOCOL_ERROR, "no extension was negotiated")
        elif (kind is _TEXT or kind is _BINARY) and frame.fin and self._partial is None:
            self._deliver_in_turn(kind, frame.get_payload_as_bytes(), is_last_read=not frame.tail_size)
        else:
            self._on_unusual(kind, frame)
            if not frame.tail_size:
                self._queue.read_ended()
        if self._grown_at is not None or size + frame.tail_size > _GROWN_BYTES:
            self._return_grown_buffer(size, frame.tail_size)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._on_lost()

    def pause_writing(self) -> None:
        if not self.closed:
            self._backlog = Backlog(self.buffered, self._registry.clock())
            self._registry.backlogged.add(self)

    def resume_writing(self) -> None:
        self._backlog = None
        self._registry.backlogged.discard(self)

    def on_protocol_error(self, code: int) -> None:
        self._queue.handle_all()  # the close frame must follow the answers to them
        if code == TOO_BIG:
            self._too_big()
        else:
            self._refuse(code, "WebSocket protocol error")

    # --- called by the sweep ---

    def check_backlog(self, now: float) -> None:
        if self._backlog is not None and self._backlog.age(self.buffered, now) > self.limits.out_queue_age_s:
            self.close(Close.SLOW_CONSUMER, "the client does not read what was sent")

    def check_silence(self, now: float) -> None:
        if self.closed:
            return
        if self._frames != self._frames_before or self._gate.is_paused(Pause.ENDPOINT | Pause.HOLD):
            self._frames_before = self._frames
            self._active_at = now
            self._pinged_at = None
            return
        self._become_idle()
        if self._pinged_at is None:
            if now - self._active_at >= self.limits.ping_idle_s:
                self._pinged_at = now
                self.ping()
        elif now - self._pinged_at >= self.limits.ping_reply_s:
            self.close(Close.TIMEOUT, "no answer to a ping")

    # --- while it is idle ---

    def _become_idle(self) -> None:
        if self._idle_fd is None and self._queue.is_empty and not self._transport.is_closing():
            self._idle_fd = self._transport.get_extra_info("socket").fileno()
            self._gate.pause(Pause.IDLE)
            self._registry.idle_poller.watch(self._idle_fd, self)

    def resume(self) -> None:
        if self._idle_fd is not None:
            self._registry.idle_poller.forget(self._idle_fd)
            self._idle_fd = None
            self._gate.resume(Pause.IDLE)

    # --- messages ---

    def _deliver_in_turn(self, kind: WSMsgType, data: bytes, *, is_last_read: bool = False) -> None:
        if self._queue.admits(is_last_read=is_last_read):
            self._deliver(kind, data)
        else:
            self._queue.add(partial(self._deliver, kind, data), len(data))

    def _deliver(self, kind: WSMsgType, data: bytes) -> None:
        assert self._endpoint is not None
        try:
            if kind is _TEXT:
                self._endpoint.text(self, data)
            else:
                self._endpoint.binary(self, data)
        except Exception:
            self._fail()

    def _on_unusual(self, kind: WSMsgType, frame: WSFrame) -> None:
        if kind is _PING:
            self._queue.in_turn(partial(self._send, _PONG, frame.get_payload_as_bytes()))
        elif kind is _CLOSE:
            self._queue.finish(partial(self._on_close, frame.get_payload_as_bytes()))
        elif kind is not _PONG:
            self._on_fragment(kind, frame)

    def _on_fragment(self, kind: WSMsgType, frame: WSFrame) -> None:
        if (kind is _CONTINUATION) != (self._partial is not None):
            self._refuse(_PROTOCOL_ERROR, "a fragment out of place")
            return
        if self._partial is None:
            self._partial = bytearray()
            self._kind = kind
        if len(self._partial) + frame.payload_size > self.limits.max_frame_bytes:
            self._too_big()
            return
        self._partial += frame.get_payload_as_memoryview()
        if frame.fin:
            data, self._partial = bytes(self._partial), None
            self._deliver_in_turn(self._kind, data)

    def _on_close(self, payload: bytes) -> None:
        if self._ws is None:
            return
        self.closed = True
        code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else _NORMAL
        self._ws.send_close(code)  # type: ignore[arg-type]  # any int will do
        self._start_closing(peer_is_done=True)

    def refund(self) -> None:
        self._tokens += 1

    def _take_tokens(self) -> bool:
        self._tokens += self._bucket.portion(self._registry.clock())
        return self._tokens >= 0

    def _return_grown_buffer(self, size: int, tail: int) -> None:
        now = self._registry.clock()
        if self._grown_at is None or size + tail > _GROWN_BYTES:
            self._grown_at = now
        elif tail == 0 and now - self._grown_at >= self.limits.grown_buffer_s and not self.closed:
            self._grown_at = None
            self._counters.buffers_returned += 1
            adopt(self._transport, self)

    # --- the end ---

    def _refuse(self, code: int, reason: str) -> None:
        """Close for what the peer has sent, after the messages before it."""
        self._queue.finish(partial(self.close, code, reason))

    def _too_big(self) -> None:
        self._refuse(Close.TOO_BIG, f"a message has at most {self.limits.max_frame_bytes} bytes")

    def _fail(self) -> None:
        _log.exception("endpoint failed", connection=self.id, path=self.path)
        self._counters.endpoint_errors += 1
        self.close(_INTERNAL_ERROR, "internal error")

    def _start_closing(self, *, peer_is_done: bool) -> None:
        self._partial = None
        self.resume_writing()
        self.resume()
        self._gate.open()  # the peer's side of the close must be read
        self._queue.clear()
        LingeringClose(self._transport, self._registry, self._on_lost).start(peer_is_done=peer_is_done)
        # Later: an endpoint that closes a connection must not get `closed` in the middle of its own call.
        self._loop.call_soon(self.notify_closed)

    def _on_lost(self) -> None:
        self.resume()
        self._ws = None
        self._queue.handle_all()
        self.closed = True
        self._backlog = None
        self._registry.ended(self)

    def notify_closed(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is None:
            return
        try:
            endpoint.closed(self)
        except Exception:
            _log.exception("endpoint failed", connection=self.id, path=self.path)
            self._counters.endpoint_errors += 1
