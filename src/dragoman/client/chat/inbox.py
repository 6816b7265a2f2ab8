"""Messages to this user, between the socket, which cannot wait, and the reader. Each is read once.

- Duplicates are recognised by serverMsgId, among the last `remember` messages. A duplicate of a message that was read
  is acknowledged again: the server repeats a message only if it did not get the receipt.
- At most `max_unread` messages wait. When there is no room, the inbox *overflows* and accepts nothing more, not even
  when there is room again: later messages would overtake those that it refused. On the next connection the server sends
  everything again that was not acknowledged; `should_reconnect` says when there is enough room for that.
"""

import asyncio
from collections import deque
from enum import Enum, auto

from dragoman.client.chat.messages import Message


class Put(Enum):
    """What became of a message."""

    NEW = auto()
    UNREAD_DUPLICATE = auto()
    READ_DUPLICATE = auto()
    NO_ROOM = auto()


class Inbox:
    def __init__(self, max_unread: int = 1000, remember: int = 10_000) -> None:
        self._max_unread = max_unread
        self._remember = max(remember, max_unread)
        self._unread: deque[Message] = deque()
        self._was_read: dict[int, bool] = {}  # by serverMsgId, oldest first
        self._changed = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self._overflowed = False

    def __len__(self) -> int:
        return len(self._unread)

    @property
    def should_reconnect(self) -> bool:
        return self._overflowed and len(self._unread) <= self._max_unread // 2

    def reconnected(self) -> None:
        """The server sends everything again that was not acknowledged."""
        self._overflowed = False

    def put(self, message: Message) -> Put:
        was_read = self._was_read.get(message.server_msg_id)
        if was_read is not None:
            return Put.READ_DUPLICATE if was_read else Put.UNREAD_DUPLICATE
        if self._overflowed or len(self._unread) >= self._max_unread:
            self._overflowed = True
            return Put.NO_ROOM
        self._unread.append(message)
        self._was_read[message.server_msg_id] = False
        if len(self._was_read) > self._remember:
            del self._was_read[next(iter(self._was_read))]
        self._changed.set()
        return Put.NEW

    def end(self, error: Exception | None = None) -> None:
        """No more messages follow. Readers get those that wait, then `error` is raised if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
        self._changed.set()

    async def get(self) -> Message | None:
        """The next message; None at the end."""
        while not self._unread:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        message = self._unread.popleft()
        if message.server_msg_id in self._was_read:
            self._was_read[message.server_msg_id] = True
        return message
