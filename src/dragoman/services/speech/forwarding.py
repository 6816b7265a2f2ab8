"""Utterances that arrive at another instance than their session's, and the way back of their results.

    local socket ─▶ ForwardedUtterance ─▶ owner of the session ─▶ ToSocket ─▶ this instance ─▶ local socket

While Redis is unavailable both wait until a time-out. An utterance that cannot be forwarded fails, and so does one
whose outcome is unknown: forwarded twice, its index would be used already. A message to a remote socket exists only
here: it is sent until Redis confirms it, in order, and in the worst case arrives twice.
"""

from collections import deque
from functools import partial
from time import monotonic

import msgspec
import structlog

from dragoman.protocol.codec import encode
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.peer import ForwardedUtterance, ToSocket
from dragoman.protocol.session import Error, Utterance
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import NoRoom, Router
from dragoman.services.sockets import Socket
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Owners

log = structlog.get_logger(__name__)

TIMEOUT_S = 30.0
NO_SUCH_SESSION = "There is no such session."
NOT_FORWARDED = "The utterance could not be forwarded to its session; send it again later."


class UtteranceForwarder:
    """Forwards utterances to the owner of their session, and knows the local sockets that wait for results."""

    def __init__(self, owners: Owners, router: Router, metrics: Metrics, tasks: Tasks, *, timeout_s: float) -> None:
        self._owners, self._router, self._metrics, self._tasks = owners, router, metrics, tasks
        self._timeout_s = timeout_s
        self._sockets: dict[int, Socket] = {}

    def forward(self, socket: Socket, message: Utterance, subject: str, tenant: str, frame: bytes) -> None:
        """To the session's owner, which sends the result back to this socket. An utterance of a closed socket is
        dropped: if the session was resumed on another instance, its client sends the utterance there again and must
        find the index unused."""
        if socket.closed:
            return
        self._sockets[socket.id] = socket
        instance = self._router.instance
        forwarded = ForwardedUtterance(message.session_id, instance, socket.id, subject, tenant, msgspec.Raw(frame))
        self._tasks.spawn(self._forward(socket, message.utterance_index, forwarded), "forward-utterance")

    async def _forward(self, socket: Socket, index: int, message: ForwardedUtterance) -> None:
        try:
            if await self._push_to_owner(socket, message):
                return
            error = Error(code=ErrorCode.INVALID_SESSION, message=NO_SUCH_SESSION)
        except (StoreError, NoRoom) as why:
            log.warning("utterance not forwarded", session=message.session_id, error=str(why), limited=True)
            code, details = ErrorCode.SCHEDULER_DEPENDENCY_DOWN, {"utterance_index": index}
            error = Error(code=code, message=NOT_FORWARDED, details=details)
        if not socket.closed:
            socket.send(encode(error))

    async def _push_to_owner(self, socket: Socket, message: ForwardedUtterance) -> bool:
        """False: no instance owns the session. Raises StoreError, NoRoom."""

        async def step() -> bool:
            owner = await self._owners.session_owner(message.session_id)
            if socket.closed or owner is None or owner == self._router.instance:
                return False
            verdict = await self._router.push(owner, message)
            if verdict is PushReply.FULL:
                raise NoRoom(f"the inbox of {owner} is full")
            return verdict is PushReply.OK

        # Not after UnknownOutcome: forwarded twice, the utterance's index would be used already.
        return await retry(step, until=monotonic() + self._timeout_s, on=(RedisAway, NoRoom))

    def reply(self, message: ToSocket) -> None:
        socket = self._sockets.get(message.connection)
        if socket is not None and not socket.closed:
            socket.send(bytes(message.frame))
        else:
            self._metrics.dropped.labels("sender_gone").inc()

    def forget(self, socket: Socket) -> None:
        self._sockets.pop(socket.id, None)

    def forget_closed(self) -> None:
        """Forget sockets whose close was not reported."""
        self._sockets = {id: socket for id, socket in self._sockets.items() if not socket.closed}


class RemoteSocket:
    """The socket of another instance at which an utterance arrived."""

    closed = False
    buffered = 0
    peer = ("", 0)

    def __init__(self, session_id: str, instance: str, connection: int, router: Router, tasks: Tasks) -> None:
        self.id = -connection
        self._session_id, self._instance, self._connection = session_id, instance, connection
        self._router, self._tasks = router, tasks
        self._waiting: deque[ToSocket] = deque()
        self._pushing = False

    def send(self, data: bytes | str) -> None:
        frame = data if isinstance(data, bytes) else data.encode()
        self._waiting.append(ToSocket(self._connection, self._session_id, msgspec.Raw(frame)))
        if not self._pushing:
            self._pushing = True
            self._tasks.spawn(self._push_all(), "to-socket")

    async def _push_all(self) -> None:
        try:
            while self._waiting:
                await self._push(self._waiting.popleft())
        finally:
            self._pushing = False

    async def _push(self, message: ToSocket) -> None:
        """The session counts the message as sent, so it is retried for long."""
        push = partial(self._router.push, self._instance, message)
        try:
            await self._router.push_until(self._instance, push, TIMEOUT_S)
        except (StoreError, NoRoom) as error:
            log.warning("not sent to a remote socket", session=self._session_id, error=str(error), limited=True)

    def flush(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None: ...
