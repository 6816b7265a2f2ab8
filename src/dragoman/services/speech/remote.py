"""Sessions, their jobs and their sockets on different instances.

A session may be resumed on another instance while this one drives its jobs. `RemoteListener` listens to such jobs, and
`SessionResults` sends their ends to the session's owner, or parks them in Redis while the session has none. On the
owner's side an open job is a `RemoteJob`.

An utterance may arrive at another instance than its session's; its result is sent back there:

    local socket ─▶ ForwardedUtterance ─▶ owner of the session ─▶ ToSocket ─▶ this instance ─▶ local socket

While Redis is unavailable both wait until a time-out. An utterance that cannot be forwarded fails, and so does one
whose outcome is unknown: forwarded twice, its index would be used already. A message to a remote socket exists only
here: it is sent until Redis confirms it, in order, and in the worst case arrives twice.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic

import msgspec
import structlog

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.placement import NoNode
from dragoman.protocol.codec import decode_node, encode
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.node import JobResult, NodePartial
from dragoman.protocol.peer import (
    ForwardedUtterance,
    InboxMessage,
    JobEnded,
    JobMoved,
    RoomUtterance,
    ToSocket,
    decode_inbox,
    encode_peer,
)
from dragoman.protocol.session import Error, Utterance
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import InboxFull, Router
from dragoman.services.sockets import Socket
from dragoman.services.speech.job_request import JobRequest
from dragoman.services.speech.messages import ended_message
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Owners
from dragoman.store.sessions import ResumableSessions

TIMEOUT_S = 30.0

log = structlog.get_logger(__name__)

NO_SUCH_SESSION = "There is no such session."
NOT_FORWARDED = "The utterance could not be forwarded to its session; send it again later."


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """An open index whose job another instance drives; after `give_up_at` the index fails."""

    index: int
    job_id: str
    trace_id: str
    cut_at: float
    give_up_at: float
    room: RoomUtterance | None = None


class WorkingElsewhere:
    """The lower indexes whose job is alive on another node than the one that a result came from."""

    __slots__ = ("_is_elsewhere", "_node_id", "_remote", "_requests")

    def __init__(
        self,
        requests: Mapping[int, JobRequest],
        remote: Mapping[int, RemoteJob],
        is_elsewhere: Callable[[str, str | None], bool],
        node_id: str | None,
    ) -> None:
        self._requests, self._remote, self._is_elsewhere, self._node_id = requests, remote, is_elsewhere, node_id

    def __contains__(self, index: object) -> bool:
        if index in self._remote:
            return True
        found = self._requests.get(index) if isinstance(index, int) else None
        return found is not None and self._is_elsewhere(found.job_id, self._node_id)


class SessionResults:
    """Sends the ends of jobs to their sessions, or parks them until the session is resumed."""

    def __init__(self, router: Router, sessions: ResumableSessions, tasks: Tasks) -> None:
        self._router, self._sessions, self._tasks = router, sessions, tasks

    def send(self, message: JobEnded | JobMoved) -> None:
        self._tasks.spawn(self._send(message), "to-session")

    async def _send(self, message: JobEnded | JobMoved) -> None:
        """This is the only copy: while Redis is unavailable, it waits for as long as a session may wait for it."""
        await retry(lambda: self.deliver(message), until=monotonic() + TIMEOUT_S)

    async def deliver(self, message: JobEnded | JobMoved) -> None:
        await self._send_or_park(message, may_be_local=True)

    async def redirect(self, message: JobEnded) -> None:
        """This instance received the message but does not have the session, or not yet."""
        await self._send_or_park(message, may_be_local=False)

    async def _send_or_park(self, message: JobEnded | JobMoved, *, may_be_local: bool) -> None:
        """To the session's owner, or parked. A result is parked only after the current owner has refused it: the
        instance that resumes the session reads the parked results once."""
        while True:
            owner = await self._router.owners.session_owner(message.session_id)
            may_have_it = may_be_local or owner != self._router.instance
            if owner is not None and may_have_it and await self._router.push(owner, message) is PushReply.OK:
                return
            if isinstance(message, JobMoved):
                return
            if await self._sessions.park(message.session_id, encode_peer(message), owner or "") != "OWNED":
                return


def end_of(message: JobEnded) -> End:
    result = decode_node(bytes(message.frame)) if bytes(message.frame) != b"null" else None
    answer = result if isinstance(result, JobResult) else None
    return End(Outcome(message.outcome), message.code, message.message, answer, message.node_id or None)


def parked_message(data: bytes) -> JobEnded | None:
    message: InboxMessage = decode_inbox(data)
    return message if isinstance(message, JobEnded) else None


class RemoteListener:
    """The listener of a job whose session was resumed on another instance."""

    def __init__(self, results: SessionResults) -> None:
        self._results = results

    def job_waits(self, request: JobRequest, why: NoNode) -> None: ...

    def job_dispatched(self, request: JobRequest, node_id: str, attempt: int) -> None: ...

    def job_accepted(self, request: JobRequest) -> None: ...

    def job_partial(self, request: JobRequest, partial: NodePartial) -> None: ...

    def job_moved(self, request: JobRequest) -> None:
        self._results.send(JobMoved(request.session_id, request.index))

    def job_ended(self, request: JobRequest, end: End) -> None:
        self._results.send(ended_message(request.session_id, request, end))


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
        except (StoreError, InboxFull) as why:
            log.warning("utterance not forwarded", session=message.session_id, error=str(why), limited=True)
            code, details = ErrorCode.SCHEDULER_DEPENDENCY_DOWN, {"utterance_index": index}
            error = Error(code=code, message=NOT_FORWARDED, details=details)
        if not socket.closed:
            socket.send(encode(error))

    async def _push_to_owner(self, socket: Socket, message: ForwardedUtterance) -> bool:
        """False: no instance owns the session. Raises StoreError, InboxFull."""

        async def step() -> bool:
            owner = await self._owners.session_owner(message.session_id)
            if socket.closed or owner is None or owner == self._router.instance:
                return False
            verdict = await self._router.push(owner, message)
            if verdict is PushReply.FULL:
                raise InboxFull(f"the inbox of {owner} is full")
            return verdict is PushReply.OK

        # Not after UnknownOutcome: forwarded twice, the utterance's index would be used already.
        return await retry(step, until=monotonic() + self._timeout_s, on=(RedisAway, InboxFull))

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
        except (StoreError, InboxFull) as error:
            log.warning("not sent to a remote socket", session=self._session_id, error=str(error), limited=True)

    def flush(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None: ...
