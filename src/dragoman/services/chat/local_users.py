"""The chat users connected to this instance, and what others hand to them."""

from collections.abc import Callable, Iterator

from dragoman.protocol import chat as wire
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import ChatCatchUp, ChatKick, ChatPush, ChatTell, OneTell
from dragoman.services.chat.user import ChatUser
from dragoman.services.metrics import Metrics


class LocalUsers:
    def __init__(self, metrics: Metrics, ping_idle_s: float) -> None:
        self.metrics, self._ping_idle_s = metrics, ping_idle_s
        self._users: dict[int, ChatUser] = {}
        self._coming: dict[int, ChatUser] = {}  # by connection: others may know of it before we do
        self.on_catch_up: Callable[[ChatUser], None] = lambda user: None

    def __len__(self) -> int:
        return len(self._users)

    def __iter__(self) -> Iterator[ChatUser]:
        return iter(list(self._users.values()))

    def get(self, user: int) -> ChatUser | None:
        return self._users.get(user)

    def owner(self, user: int) -> str:
        found = self._users.get(user)
        return found.owner if found is not None else ""

    def expect(self, user: ChatUser) -> None:
        """It is about to enter: who comes in after it, elsewhere, can end it already."""
        self._coming[user.socket.id] = user

    def expect_no_more(self, user: ChatUser) -> None:
        self._coming.pop(user.socket.id, None)

    def push(self, user: int, id: int, sender: int, frame: bytes) -> bool:
        """Also to one that is about to enter: who pushes may know it as the owner already. False: nobody is here."""
        found = [one for one in self._coming.values() if one.id == user] if self._coming else []
        if user in self._users:
            found.append(self._users[user])
        for one in found:
            one.inbound.push(id, sender, frame)
        return bool(found)

    def enter(self, user: ChatUser) -> None:
        """The newest connection of a user is the only one."""
        before = self._users.get(user.id)
        self._users[user.id] = user
        self.metrics.chat_users.set(len(self._users))
        if before is not None:
            before.end(wire.Reason.KICKED, Close.REPLACED)

    def leave(self, user: ChatUser) -> bool:
        """False: a newer connection has taken its place."""
        if self._users.get(user.id) is not user:
            return False
        del self._users[user.id]
        self.metrics.chat_users.set(len(self._users))
        return True

    def drop_all(self, code: int) -> None:
        for user in self:
            user.socket.close(code)

    # -- from other instances --------------------------------------------------------------------

    def pushed(self, message: ChatPush) -> None:
        for one in message.pushes:
            self.push(one.user, one.id, one.sender, bytes(one.frame))

    def told(self, message: ChatTell) -> list[OneTell]:
        """Answers what was for users that are not here any more."""
        missed = list[OneTell]()
        for one in message.tells:
            user = self._users.get(one.user)
            if user is not None:
                user.told(bytes(one.frame), one.ended, one.saved)
            else:
                missed.append(one)
        return missed

    def kicked(self, message: ChatKick) -> None:
        user = self._coming.get(message.connection) or self._users.get(message.user)
        if user is not None and (user.id, user.socket.id) == (message.user, message.connection):
            self.leave(user)
            user.end(wire.Reason.KICKED, Close.REPLACED)

    def catch_up(self, message: ChatCatchUp) -> None:
        for id in message.users:
            user = self._users.get(id)
            if user is not None:
                self.on_catch_up(user)

    async def check_pulse(self) -> None:
        for user in self:
            user.check_pulse(self._ping_idle_s)
