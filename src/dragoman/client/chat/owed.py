"""Receipts we owe to those who wrote to us, as frames that are not said yet, oldest first. Pure.

A server answers no receipt, so what was said on a connection that is gone may not have been heard. *Delivered* need not
be remembered for that: the server sends the message again. Of *read* the highest for each sender is said again, which
counts for what came before it.
"""

from collections import deque

from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType


class Owed:
    """At most `most` wait. *Read* is remembered for the `remember` senders read last: they go before messages, and
    more than a server takes at once would hold those up after every connection."""

    def __init__(self, most: int = 10_000, remember: int = 100) -> None:
        self._waiting: deque[bytes] = deque(maxlen=most)
        self._remember = remember
        self._read: dict[int, int] = {}  # highest serverMsgId by sender; read last stands last

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, receipt: AckType, server_msg_id: int, sender: int) -> None:
        self._waiting.append(wire.receipt(receipt, server_msg_id, sender))
        if receipt is AckType.READ:
            self._read[sender] = max(server_msg_id, self._read.pop(sender, 0))
            if len(self._read) > self._remember:
                del self._read[next(iter(self._read))]

    def next(self) -> bytes | None:
        """It counts as said."""
        return self._waiting.popleft() if self._waiting else None

    def lost(self) -> None:
        """The connection is gone, and with it whatever was on its way."""
        waiting = set(self._waiting)
        again = (wire.receipt(AckType.READ, id, sender) for sender, id in self._read.items())
        self._waiting.extend(frame for frame in again if frame not in waiting)
