"""Messages to this user, between the socket, which cannot wait, and the reader. Each is read once.

- Duplicates are recognised by serverMsgId, among the last `remember` messages. A duplicate of a message that was read
  is acknowledged again: the server repeats a message only if it did not get the receipt.
- At most `max_unread` messages wait. When there is no room, the inbox *overflows* and accepts nothing more, not even
  when there is room again: later messages would overtake those that it refused. On the next connection the server sends
  everything again that was not acknowledged; `should_reconnect` says when there is enough room for that.
"""

from enum import Enum, auto

from dragoman.client.chat.messages import Message
from dragoman.connection import ReceiveQueue


class Put(Enum):
    """What became of a message."""

    NEW = auto()
    UNREAD_DUPLICATE = auto()
    READ_DUPLICATE = auto()
    NO_ROOM = auto()


class Inbox(ReceiveQueue[Message]):
    def __init__(self, max_unread: int = 1000, remember: int = 10_000) -> None:
        super().__init__()
        self._max_unread = max_unread
        self._remember = max(remember, max_unread)
        self._was_read: dict[int, bool] = {}  # by serverMsgId, oldest first
        self._overflowed = False

    @property
    def should_reconnect(self) -> bool:
        return self._overflowed and len(self) <= self._max_unread // 2

    def reconnected(self) -> None:
        """The server sends everything again that was not acknowledged."""
        self._overflowed = False

    def put(self, message: Message) -> Put:
        was_read = self._was_read.get(message.server_msg_id)
        if was_read is not None:
            return Put.READ_DUPLICATE if was_read else Put.UNREAD_DUPLICATE
        if self._overflowed or len(self) >= self._max_unread:
            self._overflowed = True
            return Put.NO_ROOM
        self._was_read[message.server_msg_id] = False
        if len(self._was_read) > self._remember:
            del self._was_read[next(iter(self._was_read))]
        self._add(message)
        return Put.NEW

    async def get(self) -> Message | None:
        message = await super().get()
        if message is not None and message.server_msg_id in self._was_read:
            self._was_read[message.server_msg_id] = True
        return message
