"""Utterances that come by a socket on another instance than their session, and the way back of what is said to them.

    socket here ─▶ UtteranceFor ─▶ owner of the session ─▶ ToSocket ─▶ here ─▶ socket

With Redis away both wait for a while. An utterance that cannot be handed on is told failed, as is one of which it
is not known: handed on twice, its number would be used before. What is said to a socket has nobody else to say it:
it is sent until that is known to have been done, in order, and in the worst case comes twice.
"""

import asyncio
from collections import deque
from time import monotonic

import msgspec
import structlog

from dragoman.protocol.codec import encode
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.peer import ToSocket, UtteranceFor
from dragoman.protocol.session import Error, Utterance
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.services.speech.router import NoRoom, Router
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.inbox import Push
from dragoman.store.owners import Owners

log = structlog.get_logger(__name__)

PATIENCE_S = 30.0
REDIS_PAUSE_S = 0.25
NO_SUCH_SESSION = "There is no such session here."
NOT_HANDED_ON = "The utterance could not be handed to its session; say it again later."


class Senders:
    """Sockets here that wait for results of sessions elsewhere."""

    def __init__(self, owners: Owners, router: Router, metrics: Metrics, tasks: Tasks, *, patience_s: float) -> None:
        self._owners, self._router, self._metrics, self._tasks = owners, router, metrics, tasks
        self._patience_s = patience_s
        self._sockets: dict[int, Socket] = {}

    def forward(self, socket: Socket, message: Utterance, subject: str, tenant: str, frame: bytes) -> None:
        """The session is not here: to its owner, who sends the result back to this socket. Who is gone by now could not
        be answered, and may have been the session's own socket before it was resumed elsewhere: its client says this
        again there, and must find the index unused."""
        if socket.closed:
            return
        self._sockets[socket.id] = socket
        here = self._router.instance
        forwarded = UtteranceFor(message.session_id, here, socket.id, subject, tenant, msgspec.Raw(frame))
        self._tasks.spawn(self._forward(socket, message.utterance_index, forwarded), "forward-utterance")

    async def _forward(self, socket: Socket, index: int, message: UtteranceFor) -> None:
        try:
            if await self._hand_on(socket, message):
                return
            error = Error(code=ErrorCode.INVALID_SESSION, message=NO_SUCH_SESSION)
        except (StoreError, NoRoom) as why:
            log.warning("an utterance was not handed on", session=message.session_id, error=str(why), limited=True)
            code, details = ErrorCode.SCHEDULER_DEPENDENCY_DOWN, {"utterance_index": index}
            error = Error(code=code, message=NOT_HANDED_ON, details=details)
        if not socket.closed:
            socket.send(encode(error))

    async def _hand_on(self, socket: Socket, message: UtteranceFor) -> bool:
        """False: nobody has the session. Raises StoreError, NoRoom."""
        give_up_at = monotonic() + self._patience_s
        while True:
            try:
                owner = await self._owners.session_owner(message.session_id)
                if socket.closed or owner is None or owner == self._router.instance:
                    return False
                verdict = await self._router.push(owner, message)
                if verdict is not Push.FULL:
                    return verdict is Push.OK
                if monotonic() >= give_up_at:
                    raise NoRoom(f"the inbox of {owner} is full")
            except RedisAway:
                if monotonic() >= give_up_at:
                    raise
            await asyncio.sleep(REDIS_PAUSE_S)

    def reply(self, message: ToSocket) -> None:
        socket = self._sockets.get(message.connection)
        if socket is not None and not socket.closed:
            socket.send(bytes(message.frame))
        else:
            self._metrics.dropped.labels("sender_gone").inc()

    def left(self, socket: Socket) -> None:
        self._sockets.pop(socket.id, None)

    def forget_closed(self) -> None:
        """Nobody will tell of their end."""
        self._sockets = {id: socket for id, socket in self._sockets.items() if not socket.closed}


class RemoteSocket:
    """The socket, on another instance, by which an utterance came."""

    closed = False
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
        """The session counts it as said, so it is not given up lightly."""
        give_up_at = monotonic() + PATIENCE_S
        while True:
            try:
                if await self._router.push(self._instance, message) is not Push.FULL:
                    return
                error = "its inbox is full"
            except StoreError as why:
                error = str(why)
            if monotonic() >= give_up_at:
                log.warning("not said to a socket elsewhere", session=self._session_id, error=error, limited=True)
                return
            await asyncio.sleep(REDIS_PAUSE_S)

    def flush(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None: ...
