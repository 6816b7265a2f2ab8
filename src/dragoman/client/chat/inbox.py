"""Messages to us, between the socket, which cannot wait, and whoever reads them at leisure. Each is handed out once.

- Doubles are known by their serverMsgId, the last `remember` of them. One that was handed out before is to be
  acknowledged again: its receipt was lost, or the server would not have repeated it.
- At most `most` wait. When there is no room we are *behind*: nothing more is taken, not even what would fit again,
  or later messages would overtake those that did not. The server sends all that was not acknowledged when we come
  back; `caught_up` says when that is worth it.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody sent us."""

    from_user: int
    to_user: int
    body: str
    msg_type: str
    client_msg_id: str
    server_msg_id: int
    seq: int | None  # in its conversation, once it is saved
    ts: int  # ms, the server's clock


class Taken(Enum):
    NEW = auto()
    WAITING = auto()  # a double of one nobody has read yet
    HANDED_OUT = auto()  # a double of one that was
    NO_ROOM = auto()


class Inbox:
    def __init__(self, most: int = 1000, remember: int = 10_000) -> None:
        self._most = most
        self._remember = max(remember, most)
        self._waiting: deque[Message] = deque()
        self._seen: dict[int, bool] = {}  # serverMsgId: was it handed out; oldest first
        self._news = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self.behind = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def caught_up(self) -> bool:
        return self.behind and len(self._waiting) <= self._most // 2

    def put(self, message: Message) -> Taken:
        known = self._seen.get(message.server_msg_id)
        if known is not None:
            return Taken.HANDED_OUT if known else Taken.WAITING
        if self.behind or len(self._waiting) >= self._most:
            self.behind = True
            return Taken.NO_ROOM
        self._waiting.append(message)
        self._seen[message.server_msg_id] = False
        if len(self._seen) > self._remember:
            del self._seen[next(iter(self._seen))]
        self._news.set()
        return Taken.NEW

    def end(self, error: Exception | None = None) -> None:
        """Nothing more comes. Readers get what is there, then the error, if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
        self._news.set()

    async def get(self) -> Message | None:
        """The next one; None at the end."""
        while not self._waiting:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()
        message = self._waiting.popleft()
        if message.server_msg_id in self._seen:
            self._seen[message.server_msg_id] = True
        return message
