"""Between a session and its jobs that are driven on another instance.

A session may be resumed elsewhere while jobs it cut are driven here: what becomes of them is told to its owner
of then.
"""

import asyncio
from time import monotonic

from dragoman.domain.job import Outcome
from dragoman.domain.placement import NoNode
from dragoman.protocol.codec import decode_node
from dragoman.protocol.node import JobResult, NodePartial
from dragoman.protocol.peer import InboxMessage, JobEnded, JobMoved, decode_inbox, encode_peer
from dragoman.services.loops import Tasks
from dragoman.services.speech.messages import ended_message
from dragoman.services.speech.order import End, Order
from dragoman.services.speech.router import Router
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Push
from dragoman.store.sessions import ResumableSessions

PATIENCE_S = 30.0
REDIS_PAUSE_S = 0.25


class Mail:
    """To sessions wherever they are, or parked until somebody resumes them."""

    def __init__(self, router: Router, sessions: ResumableSessions, tasks: Tasks) -> None:
        self._router, self._sessions, self._tasks = router, sessions, tasks

    def send(self, message: JobEnded | JobMoved) -> None:
        self._tasks.spawn(self._send(message), "to-session")

    async def _send(self, message: JobEnded | JobMoved) -> None:
        """Nobody else has this word: with Redis away it waits for as long as somebody may wait for it."""
        give_up_at = monotonic() + PATIENCE_S
        while True:
            try:
                return await self.deliver(message)
            except StoreError:
                if monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(REDIS_PAUSE_S)

    async def deliver(self, message: JobEnded | JobMoved) -> None:
        await self._hand(message, here=True)

    async def redirect(self, message: JobEnded) -> None:
        """It came to us, and the session is not here, or not yet. Parked for us, it is to be collected."""
        await self._hand(message, here=False)

    async def _hand(self, message: JobEnded | JobMoved, *, here: bool) -> None:
        """To the session's owner, or parked. Whoever resumes it looks at what is parked once: so nothing may be parked
        beside an owner we have not tried."""
        while True:
            owner = await self._router.owners.session_owner(message.session_id)
            may_have_it = here or owner != self._router.instance
            if owner is not None and may_have_it and await self._router.push(owner, message) is Push.OK:
                return
            if isinstance(message, JobMoved):
                return
            if await self._sessions.park(message.session_id, encode_peer(message), owner or "") != "OWNED":
                return


def end_of(message: JobEnded) -> End:
    result = decode_node(bytes(message.frame)) if bytes(message.frame) != b"null" else None
    told = result if isinstance(result, JobResult) else None
    return End(Outcome(message.outcome), message.code, message.message, told, message.node_id or None)


def parked_message(data: bytes) -> JobEnded | None:
    message: InboxMessage = decode_inbox(data)
    return message if isinstance(message, JobEnded) else None


class Expatriate:
    """The listener of an order whose session went on elsewhere."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    def job_waits(self, order: Order, why: NoNode) -> None: ...

    def job_dispatched(self, order: Order, node_id: str) -> None: ...

    def job_taken(self, order: Order) -> None: ...

    def job_partial(self, order: Order, partial: NodePartial) -> None: ...

    def job_moved(self, order: Order) -> None:
        self._mail.send(JobMoved(order.session_id, order.index))

    def job_ended(self, order: Order, end: End) -> None:
        self._mail.send(ended_message(order.session_id, order, end))
