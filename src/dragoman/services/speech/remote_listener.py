"""Jobs and their sessions on different instances.

A session may be resumed on another instance while this one drives its jobs. `RemoteListener` listens to such jobs, and
`SessionResults` sends their ends to the session's owner, or parks them in Redis while the session has none. On the
owner's side an open job is a `RemoteJob`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.placement import NoNode
from dragoman.protocol.codec import decode_node
from dragoman.protocol.node import JobResult, NodePartial
from dragoman.protocol.peer import InboxMessage, JobEnded, JobMoved, RoomUtterance, decode_inbox, encode_peer
from dragoman.services.loops import Tasks, retry
from dragoman.services.routing.router import Router
from dragoman.services.speech.job_request import JobRequest
from dragoman.services.speech.messages import ended_message
from dragoman.store.inbox import PushReply
from dragoman.store.sessions import ResumableSessions

TIMEOUT_S = 30.0


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
