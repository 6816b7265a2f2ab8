"""The messages that one connection has sent: which requests are open, and which messages are unsaved. Pure."""

from collections import OrderedDict, deque
from enum import Enum, auto

MAX_REMEMBERED = 10_000  # requests; a `saved` of a forgotten one counts as that of an earlier connection

RECENT_S = 10.0  # longer than an instance that is alive takes to write what is in its inbox


class Notice(Enum):
    """What becomes of a `saved`."""

    WRITE = auto()
    WRITE_DUPLICATE = auto()  # marked: the request had another body than the message
    HOLD = auto()  # until the request in progress is answered
    DROP = auto()


class OpenRequests:
    """Which SINGLE_CHATs of one connection wait for `accepted`, and which for `saved`, by clientMsgId.

    The save stage may send `saved` more than once for a message, and before the connection has read the answer of Redis
    to it: a notice is repeated rather than lost. This decides what the client gets of that:

    - at most one `saved` for each request that was not answered by an ERROR, and only after its `accepted`;
    - `saved` of a message that was sent on an earlier connection passes once.
    """

    __slots__ = ("_accepted", "_ended", "_failed", "_received", "_saved")

    def __init__(self) -> None:
        self._received: dict[str, int] = {}  # how many are not answered
        self._accepted: dict[str, bool] = {}  # answered by `accepted`, not by `saved`; whether it is a duplicate
        self._saved: dict[str, bytes] = {}  # frames that came while a request was not answered
        self._failed: dict[str, bool] = {}  # answered without `accepted`, and perhaps accepted all the same
        self._ended = 0  # the highest serverMsgId of which a `saved` came; a sender's messages end in their order

    def received(self, name: str) -> None:
        self._received[name] = self._received.get(name, 0) + 1

    def accepted(self, name: str, *, duplicate: bool = False) -> bytes | None:
        """It is answered by `accepted`. Returns the `saved` that follows at once."""
        self._failed.pop(name, None)
        held = self._saved.get(name)
        if held is None:
            _remember(self._accepted, name, duplicate)
        return held

    def saved(self, name: str, id: int) -> None:
        """It is answered by `saved`."""
        self._accepted.pop(name, None)
        self._ended = max(self._ended, id)

    def answered(self, name: str, *, unknown: bool = False) -> None:
        """It has its answer, whichever. `unknown`: Redis may have accepted it, and the answer does not say so."""
        left = self._received.get(name, 0) - 1
        if left > 0:
            self._received[name] = left
        else:
            self._received.pop(name, None)
            self._saved.pop(name, None)
        if unknown and name not in self._accepted:
            _remember(self._failed, name, False)

    def notified(self, name: str, id: int, frame: bytes) -> Notice:
        """A `saved` from the save stage; `id` is the serverMsgId that the message was accepted with."""
        is_new, self._ended = id > self._ended, max(self._ended, id)
        in_progress = name in self._received
        if in_progress:
            self._saved[name] = frame
        if name in self._accepted:
            return Notice.WRITE_DUPLICATE if self._accepted.pop(name) else Notice.WRITE
        if in_progress:
            return Notice.HOLD
        if name in self._failed:
            del self._failed[name]
            return Notice.DROP
        return Notice.WRITE if is_new else Notice.DROP


def _remember(names: dict[str, bool], name: str, duplicate: bool) -> None:
    names.pop(name, None)
    names[name] = duplicate
    if len(names) > MAX_REMEMBERED:
        del names[next(iter(names))]


class Unsaved:
    """Which messages of a sender are not saved, as its connection knows it, and whom they were pushed to.

    The truth is the count in Redis. While Redis is unavailable this copy decides whether a message may be saved in one
    phase: saved past an unsaved one, it would break its sender's order. So the copy may count too many and must not
    count too few, however often and however late a notice comes:

    - messages of a sender end in the order of their ids, so a notice of one covers all before it, and
    - a notice of one that has ended already says nothing.

    A message may be pushed before it is saved if all unsaved messages to its receiver were pushed to the connection
    that the receiver has now. The others are pushed when they are saved, and this one must not overtake them. That they
    were is known by the notice alone, which is sent after the push: the count in Redis may be read before that. As the
    push may take another way than the next message, that one names it for a while (`last_to`). What an earlier
    connection sent this one does not know: it goes `in_line` for a while.
    """

    __slots__ = ("_alone_at", "_before", "_ended", "_ids", "_pushed_to", "_recent", "_unpushed", "newest")

    def __init__(self) -> None:
        self._ids: deque[int] = deque()  # accepted on this connection, and not ended
        self._before: int | None = None  # of earlier connections, without ids; None: not known
        self._ended = 0  # the highest id that is known to have ended
        self.newest = 0  # that was accepted
        self._unpushed: deque[tuple[int, int]] = deque()  # id and receiver, without a notice
        self._pushed_to: dict[int, tuple[str, int]] = {}  # by receiver: the connection, '' if one missed it; last id
        self._recent: OrderedDict[int, tuple[int, float]] = OrderedDict()  # by receiver: last that ended, until when
        self._alone_at: float | None = None  # since when everything of earlier connections has ended

    @property
    def count(self) -> int | None:
        """None: not known."""
        return None if self._before is None else self._before + len(self._ids)

    def accepted(self, id: int, receiver: int = 0, pushed_to: str = "") -> None:
        """`pushed_to`: the connection of the receiver to which it is pushed before it is saved."""
        self.newest = id
        if self._before is not None:
            self._ids.append(id)
        if receiver:
            self._unpushed.append((id, receiver))
            self._pushed_to[receiver] = (pushed_to, id)

    def may_push(self, receiver: int, owner: str) -> bool:
        """Whether the next message can be pushed to this connection before it is saved."""
        before = self._pushed_to.get(receiver)
        return bool(owner) and self._before == 0 and (before is None or before[0] == owner)

    def in_line(self, now: float) -> bool:
        """Whether a message of an earlier connection may be in an inbox still: this one goes into the inbox behind it,
        also if its receiver is on this instance."""
        return self._alone_at is None or now < self._alone_at + RECENT_S

    def last_to(self, receiver: int, now: float) -> int:
        """The message to it that must have been written before the next one: unsaved, or ended a moment ago; or 0."""
        if receiver in self._pushed_to:
            return self._pushed_to[receiver][1]
        id, until = self._recent.get(receiver, (0, now))
        return id if now < until else 0

    def sent(self, id: int, receiver: int, now: float) -> None:
        """It was pushed when it was saved."""
        self._recent[receiver] = (id, now + RECENT_S)
        self._recent.move_to_end(receiver)
        while next(iter(self._recent.values()))[1] <= now:
            self._recent.popitem(last=False)

    def not_pushed(self, receiver: int) -> None:
        """The last message to it reached no connection."""
        if receiver in self._pushed_to:
            self._pushed_to[receiver] = ("", self._pushed_to[receiver][1])

    def ended(self, id: int, now: float) -> None:
        """It is a row, or never will be."""
        while self._unpushed and self._unpushed[0][0] <= id:
            ended, receiver = self._unpushed.popleft()
            if self._pushed_to[receiver][1] == ended:
                del self._pushed_to[receiver]
                self.sent(ended, receiver, now)
        if id <= self._ended or self._before is None:
            return
        self._ended = id
        if self._ids and self._ids[0] <= id:
            self._before = 0
            while self._ids and self._ids[0] <= id:
                self._ids.popleft()
        else:
            self._before = max(self._before - 1, 0)
        self._note_alone(now)

    def counted(self, unsaved: int, newest: int, now: float) -> None:
        """By Redis, asked when `newest` was the last that was accepted: later ones may not be in the count."""
        older = sum(id <= newest for id in self._ids)
        while older > unsaved:
            self._ended = max(self._ended, self._ids.popleft())
            older -= 1
        self._before = unsaved - older
        self._note_alone(now)

    def _note_alone(self, now: float) -> None:
        if self._before == 0 and self._alone_at is None:
            self._alone_at = now

    def lost_count(self) -> None:
        """One may be on its way, or not."""
        self._ids.clear()
        self._before = None
