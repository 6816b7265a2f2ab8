"""What receivers may have missed, and what they must be sent before anything newer. Pure.

A message that cannot be pushed is a row of the archive, or will be one. Its receiver is sent it from there: a *resend*.
The order of a sender's messages holds only if the resend comes before anything newer. Three objects know what must be
resent; each takes what happened and answers what is to be done:

    DeliveryState     one an instance: receivers anywhere that must be sent rows from the archive

        not_located ─▶ unlocated ──located──▶ remote ──request──▶ requested ──acknowledged──▶ (nothing to do)
                           ▲         └▶ local: resend now          │
        not_pushed ────────┴────────────────▶ ▲ ──────── refused ◀─┘

    SenderState       one a connection that sends: receivers that must have had their resend before its next message
    ConnectionState   one a connection that receives: delivered, acknowledged, and whether a resend is due

Hard cases, and where they are decided:
- The receiver moves to another instance: its AUTH there begins with a resend (`ConnectionState` starts paused), so a
  request to the instance that it left need not be waited for (`DeliveryState.requests_to`).
- Redis does not say where the receiver is: `not_located`. The push is refused because the inbox is full: `not_pushed`.
- The outcome of a push is not known: `not_located`, because the receiver may have moved until it is known.
- More is pushed during a resend than the queue holds: `ConnectionState` asks for another resend.
- A message is saved after it was pushed: the resend finds the row, `deliver` answers that the connection has it.
- The receiver is silent: what it does not acknowledge stays undelivered in the archive and is resent `again`.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

MAX_QUEUED = 1000  # pushes behind a resend
MAX_UNACKNOWLEDGED = 20_000
MAX_ACKNOWLEDGED = 500  # more than are acknowledged until the database knows; each is 140 bytes of every user who chats

Queued = tuple[int, int, bytes]  # id, sender, frame


@dataclass(frozen=True, slots=True)
class ResendRequest:
    """An entry in an instance's inbox that makes these users read the archive."""

    entry: str
    users: frozenset[int]


class DeliveryState:
    """The receivers that may have missed a push of this instance, until their resend has begun."""

    __slots__ = ("_instance", "_remote", "_requested", "_unlocated")

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._unlocated: set[int] = set()
        self._remote: dict[str, set[int]] = {}  # by instance, which does not know it yet
        self._requested: dict[str, ResendRequest] = {}  # by instance: not known to be handled

    # -- what happened -----------------------------------------------------------------------------

    def not_located(self, users: Iterable[int]) -> None:
        """Something for them is in the archive alone, and it is not known where they are connected."""
        self._unlocated.update(users)

    def not_pushed(self, instance: str, users: Iterable[int]) -> None:
        """Something for them is in the archive alone, and they are connected to this instance."""
        self._remote.setdefault(instance, set()).update(users)

    def located(self, asked: Collection[int], owners: Mapping[int, str]) -> list[int]:
        """Where those of `asked` are that are connected (`instance|connection`). Returns the local ones: resend now.

        One that is not connected gets its resend with its next AUTH.
        """
        local = list[int]()
        for user in sorted(self._unlocated.intersection(asked)):
            instance = owners.get(user, "").partition("|")[0]
            if instance == self._instance:
                local.append(user)
            elif instance:
                self.not_pushed(instance, (user,))
        self._unlocated.difference_update(asked)
        return local

    def take_remote(self, instance: str) -> list[int]:
        """The users a request to this instance must name; `requested`, `not_pushed` or `not_located` follows."""
        return sorted(self._remote.pop(instance, ()))

    def requested(self, instance: str, entry: str, users: Iterable[int]) -> None:
        """The request is in the instance's inbox. A later one is handled after it, so that one stands for both."""
        before = self._requested.get(instance)
        self._requested[instance] = ResendRequest(entry, frozenset(users) | (before.users if before else frozenset()))

    def acknowledged(self, instance: str, entry: str) -> None:
        """The instance has handled the request."""
        found = self._requested.get(instance)
        if found is not None and found.entry == entry:
            del self._requested[instance]

    # -- what is to be done ------------------------------------------------------------------------

    def is_unlocated(self, user: int) -> bool:
        return user in self._unlocated

    def unlocated(self, users: Iterable[int] | None = None) -> list[int]:
        """All of them, or those among `users`."""
        return sorted(self._unlocated if users is None else self._unlocated.intersection(users))

    def instances_to_ask(self) -> list[str]:
        return list(self._remote)

    def unasked(self, users: Collection[int]) -> str:
        """An instance that does not know that one of these users needs a resend; '' if there is none."""
        return next((instance for instance, theirs in self._remote.items() if not theirs.isdisjoint(users)), "")

    def requests_to(self, instances: Iterable[str] | None = None) -> list[tuple[str, str]]:
        """Requests that are not known to be handled, as (instance, entry)."""
        wanted = self._requested.keys() if instances is None else self._requested.keys() & set(instances)
        return [(instance, self._requested[instance].entry) for instance in sorted(wanted)]

    @property
    def pending(self) -> bool:
        """Whether a receiver may have missed something and does not know it."""
        return bool(self._unlocated or self._remote or self._requested)


class SenderState:
    """The receivers that must have had their resend before this connection's next message reaches them."""

    __slots__ = ("_written_to", "resend_to")

    def __init__(self) -> None:
        self.resend_to: set[int] = set()  # it saved something for them that could not be pushed
        self._written_to: set[int] | None = None  # since it moved; None: it did not move, or all of it is known

    def moved(self) -> None:
        """It came from an instance that did not see it leave, and that may have saved messages it could not push."""
        self._written_to = set()

    def is_first_since_move(self, receiver: int) -> bool:
        """Whether this receiver may have missed messages that the sender's former instance saved. True once."""
        if self._written_to is None or receiver in self._written_to:
            return False
        self._written_to.add(receiver)
        return True


class ConnectionState:
    """What one connection was sent: delivered, acknowledged, and whether undelivered rows must be resent first.

    - A message is delivered once a connection, unless it stays unacknowledged and is resent on purpose (`again`).
    - An acknowledgement covers the messages of the same sender that were delivered before it on this connection, and no
      others: nothing counts as acknowledged that was not sent.
    - Pushes queue behind a resend, up to MAX_QUEUED; what does not fit is resent from the archive.
    """

    __slots__ = (
        "_acknowledged",
        "_by_sender",
        "_must_resend",
        "_overflowed",
        "_pauses",
        "_queue",
        "_resending",
        "_unacknowledged",
    )

    def __init__(self) -> None:
        self._unacknowledged: OrderedDict[int, int] = OrderedDict()  # id → sender, in the order of delivery
        self._by_sender: dict[int, deque[int]] = {}
        self._acknowledged: OrderedDict[int, None] = OrderedDict()  # the latest
        self._queue: deque[Queued] = deque()
        self._pauses = 1  # the first resend is due from the beginning
        self._resending = False
        self._overflowed = False  # something newer than the queue must be resent
        self._must_resend = False  # something older

    # -- pushes and resends ------------------------------------------------------------------------

    @property
    def resending(self) -> bool:
        return self._resending or self._pauses > 0

    def push(self, id: int, sender: int, frame: bytes) -> bool:
        """True: send it now. False: the connection has it, or it waits for the resend."""
        if not (self._resending or self._pauses):
            return self.deliver(id, sender)
        if len(self._queue) < MAX_QUEUED:
            self._queue.append((id, sender, frame))
        else:
            self._overflowed = True
        return False

    def may_push_early(self, after: int) -> bool:
        """Whether a message that is not saved yet can be written, or queue behind a resend, as `after` was or does.

        `after`: the message of its sender to this receiver that comes before it; 0: there is none. What does not fit
        into the queue cannot be resent from the archive.
        """
        if self.resending and len(self._queue) >= MAX_QUEUED:
            return False
        if not after or after in self._unacknowledged or after in self._acknowledged:
            return True
        return any(id == after for id, _, _ in self._queue)

    def pause(self) -> None:
        """Pushes wait from now on for a resend that `resume` begins, also behind one that runs."""
        self._pauses += 1

    def resume(self) -> bool:
        """Once for each `pause`; answers as `request_resend`."""
        self._pauses -= 1
        return self.request_resend()

    def request_resend(self) -> bool:
        """Rows of the archive must be sent. True: the caller does it, pass by pass; False: it is done already or later.

        One resend runs at a time, and none during a pause.
        """
        self._must_resend = True
        if self.resending:
            return False
        self._resending = True
        return True

    def next_pass(self) -> bool:
        """Whether the archive must be read (again): from its first undelivered row."""
        if not self._must_resend and (not self._overflowed or self._pauses):
            return False
        self._must_resend = self._overflowed = False
        return True

    def end_pass(self) -> list[bytes]:
        """The frames to send after this pass: none if an older message must be resent before them."""
        return [] if self._must_resend else self._take_queue()

    def end_resend(self) -> list[bytes]:
        """No pass is left, or the connection is closed; the frames to send."""
        frames = self._take_queue()
        self._resending = False
        return frames

    def _take_queue(self) -> list[bytes]:
        if self._pauses:
            return []
        frames = [frame for id, sender, frame in self._queue if self.deliver(id, sender)]
        self._queue.clear()
        return frames

    # -- delivered and acknowledged ----------------------------------------------------------------

    def deliver(self, id: int, sender: int, *, again: bool = False) -> bool:
        """Whether to send it; it counts as delivered."""
        if id in self._acknowledged:
            return False
        if id in self._unacknowledged:
            return again
        self._unacknowledged[id] = sender
        self._by_sender.setdefault(sender, deque()).append(id)
        if len(self._unacknowledged) > MAX_UNACKNOWLEDGED:
            self._forget_oldest()
        return True

    def _forget_oldest(self) -> None:
        oldest, sender = self._unacknowledged.popitem(last=False)
        theirs = self._by_sender[sender]
        if theirs[0] == oldest:
            theirs.popleft()
        if not theirs:
            del self._by_sender[sender]

    def acknowledge(self, id: int) -> tuple[int, ...]:
        """The messages that the acknowledgement of `id` covers."""
        sender = self._unacknowledged.get(id)
        if sender is None:
            return (id,)
        covered, theirs = list[int](), self._by_sender[sender]
        while not covered or covered[-1] != id:
            covered.append(theirs.popleft())
        if not theirs:
            del self._by_sender[sender]
        for one in covered:
            self._unacknowledged.pop(one, None)
            self._acknowledged[one] = None
        while len(self._acknowledged) > MAX_ACKNOWLEDGED:
            self._acknowledged.popitem(last=False)
        return tuple(covered)
