"""The translations a chat has asked for, until they arrive."""

import asyncio
from collections import deque

from dragoman.client.chat.messages import ChatError, Translation
from dragoman.protocol import chat as wire

Key = tuple[int, str]


class Translations:
    """Requests are sent again after a reconnect, because the answer may have been lost."""

    def __init__(self) -> None:
        self._waiting: dict[Key, asyncio.Future[Translation]] = {}
        self._unsent: deque[Key] = deque()

    def __len__(self) -> int:
        """Requests that are to be sent."""
        return len(self._unsent)

    def ask(self, server_msg_id: int, lang: str) -> "asyncio.Future[Translation]":
        key = (server_msg_id, lang)
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
            self._unsent.append(key)
        return self._waiting[key]

    def forget(self, server_msg_id: int, lang: str) -> None:
        self._waiting.pop((server_msg_id, lang), None)

    def next(self) -> bytes | None:
        while self._unsent:
            key = self._unsent.popleft()
            if key in self._waiting:
                return wire.translate(*key)
        return None

    def lost(self) -> None:
        self._unsent = deque(self._waiting)

    def received(self, translation: Translation) -> None:
        waiting = self._waiting.pop((translation.server_msg_id, translation.lang), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(translation)

    def refused(self, server_msg_id: int, reason: str) -> bool:
        """The server answered with an error. False: nothing was asked about this message."""
        keys = [key for key in self._waiting if key[0] == server_msg_id]
        for key in keys:
            self.received(Translation(*key, reason=reason))
        return bool(keys)

    def end(self, error: ChatError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # nobody may be waiting
        self._waiting.clear()
        self._unsent.clear()
