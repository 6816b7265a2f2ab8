"""Actions of operators on an instance, a node, a session, a chat user or a dead letter, anywhere in the cluster.

The instance that gets the request pushes it to the inbox of the owner, which carries it out.
"""

from typing import Protocol

from dragoman.protocol.peer import ChatKick, DrainInstance, DrainNode, EndSession, InboxMessage
from dragoman.services.routing.router import Router
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.users import Users
from dragoman.store.dead_letters import DeadLetter, InboxDeadLetters
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Instances, Owners
from dragoman.store.sessions import ResumableSessions


class NotThere(Exception):
    """The target does not exist, or its instance accepts no requests; `str()` says which."""


class Operations:
    def __init__(
        self, router: Router, instances: Instances, owners: Owners, sessions: ResumableSessions, users: Users
    ) -> None:
        self._router, self._instances, self._owners = router, instances, owners
        self._sessions, self._users = sessions, users

    async def drain_instance(self, name: str) -> None:
        """It accepts no new connections, finishes its jobs, and stays until its process is ended."""
        if await self._instances.presence(name) is None:
            raise NotThere("no instance of this name is alive")
        await self._send(name, DrainInstance())

    async def drain_node(self, node: str, *, draining: bool) -> None:
        """It gets no new jobs until `draining` is reset or it reconnects."""
        owner = await self._owners.node_owner(node)
        if owner is None:
            raise NotThere("no node of this id is connected")
        await self._send(owner, DrainNode(node, draining))

    async def end_session(self, session: str) -> None:
        owner = await self._owners.session_owner(session)
        if owner is not None:
            await self._send(owner, EndSession(session))
        elif not await self._sessions.end_unowned(session):
            raise NotThere("there is no such session")

    async def disconnect(self, user: int) -> None:
        (owner,) = await self._users.owners([user])
        instance, _, connection = owner.rpartition("|")
        if not instance:
            raise NotThere("this user is not connected")
        await self._send(instance, ChatKick(user, int(connection)))

    async def _send(self, instance: str, message: InboxMessage) -> None:
        verdict = await self._router.push(instance, message)
        if verdict is not PushReply.OK:
            why = "its inbox is full" if verdict is PushReply.FULL else "it does not run any more"
            raise NotThere(f"the instance {instance} does not accept the request: {why}")


# -- dead letters ----------------------------------------------------------------------------------
#
# The dead letters of the whole cluster: inbox entries of instances, and chat messages of shards.


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
