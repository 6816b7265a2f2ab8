"""The dead letters of the whole cluster: inbox entries of instances, and chat messages of shards."""

from typing import Protocol

from dragoman.services.chat.dead_letters import ChatLetters
from dragoman.store.dead_letters import Letter, Letters
from dragoman.store.inbox import Push


class DeadLetters(Protocol):
    """What an operator can do with dead letters; `instance` may also name a shard of chat."""

    async def instances(self) -> list[str]: ...

    async def counts(self) -> dict[str, int]: ...

    async def list(self, instance: str, count: int = 100, after: str = "") -> list[Letter]: ...

    async def get(self, instance: str, id: str) -> Letter | None: ...

    async def replay(self, letter: Letter, otherwise: str) -> Push:
        """OK, or why it cannot be replayed now. Raises CannotReplay if it never can."""

    async def drop(self, instance: str, id: str) -> bool: ...


class AllDeadLetters:
    def __init__(self, inboxes: Letters, chat: ChatLetters) -> None:
        self._inboxes, self._chat = inboxes, chat

    def _of(self, name: str) -> DeadLetters:
        return self._chat if self._chat.holds(name) else self._inboxes

    async def instances(self) -> list[str]:
        return [*await self._inboxes.instances(), *await self._chat.instances()]

    async def counts(self) -> dict[str, int]:
        return {**await self._inboxes.counts(), **await self._chat.counts()}

    async def list(self, instance: str, count: int = 100, after: str = "") -> list[Letter]:
        return await self._of(instance).list(instance, count, after)

    async def get(self, instance: str, id: str) -> Letter | None:
        return await self._of(instance).get(instance, id)

    async def replay(self, letter: Letter, otherwise: str) -> Push:
        return await self._of(letter.instance).replay(letter, otherwise)

    async def drop(self, instance: str, id: str) -> bool:
        return await self._of(instance).drop(instance, id)
