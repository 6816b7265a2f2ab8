"""Which SINGLE_CHATs of one connection wait for `accepted`, and which for `saved`. Pure.

The save stage may send `saved` more than once for a message, and before the connection has read the answer of Redis to
it: a notification is repeated rather than lost. This decides what the client gets of that:

- at most one `saved` for each request that was not answered by an ERROR, and only after its `accepted`;
- `saved` of a message that was sent on an earlier connection passes once.

Requests are known by their clientMsgId.
"""

from enum import Enum, auto

MOST = 10_000  # open requests remembered; a `saved` of a forgotten one counts as that of an earlier connection


class Notice(Enum):
    """What becomes of a `saved`."""

    WRITE = auto()
    WRITE_DUPLICATE = auto()  # marked: the request had another body than the message
    HOLD = auto()  # until the request in progress is answered
    DROP = auto()


class OpenRequests:
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
    if len(names) > MOST:
        del names[next(iter(names))]
