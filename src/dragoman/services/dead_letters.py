"""The dead letters of the whole cluster: inbox entries of instances, and chat messages of shards."""

from typing import Protocol

from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.dead_letters import DeadLetter, InboxDeadLetters
from dragoman.store.inbox import PushReply


class DeadLetters(Protocol):
    """What an operator can do with dead letters; `instance` may also name a shard of chat."""

    async def instances(self) -> list[str]: ...

    async def counts(self) -> dict[str, int]: ...

    async def list(self, instance: str, count: int = 100, after: str = "") -> list[DeadLetter]: ...

    async def get(self, instance: str, id: str) -> DeadLetter | None: ...

    async def replay(self, letter: DeadLetter, otherwise: str) -> PushReply:
        """OK, or why it cannot be replayed now. Raises CannotReplay if it never can."""

    async def drop(self, instance: str, id: str) -> bool: ...


class AllDeadLetters:
    def __init__(self, inboxes: InboxDeadLetters, chat: ChatDeadLetters) -> None:
        self._inboxes, self._chat = inboxes, chat

    def _of(self, name: str) -> DeadLetters:
        return self._chat if self._chat.holds(name) else self._inboxes

    async def instances(self) -> list[str]:
        return [*await self._inboxes.instances(), *await self._chat.instances()]

    async def counts(self) -> dict[str, int]:
        return {**await self._inboxes.counts(), **await self._chat.counts()}

    async def list(self, instance: str, count: int = 100, after: str = "") -> list[DeadLetter]:
        return await self._of(instance).list(instance, count, after)

    async def get(self, instance: str, id: str) -> DeadLetter | None:
        return await self._of(instance).get(instance, id)

    async def replay(self, letter: DeadLetter, otherwise: str) -> PushReply:
        return await self._of(letter.instance).replay(letter, otherwise)

    async def drop(self, instance: str, id: str) -> bool:
        return await self._of(instance).drop(instance, id)
