"""Actions of operators on an instance, a node, a session, a chat user or a dead letter, anywhere in the cluster.

The instance that gets the request pushes it to the inbox of the owner, which carries it out.

Tokens and principals are revoked for the whole cluster. A change is written to Redis and announced, so that it takes
effect everywhere at once. Each instance also asks for the version of the list twice a second, in case it missed an
announcement. While Redis is unavailable, nothing can be revoked, and the copy of each instance stays in force. A Redis
that has lost the latest changes gets them back from the copies.
"""

import asyncio
from collections.abc import Callable
from time import time
from typing import Protocol

import structlog

from dragoman.domain.revocation import Revocation, RevocationList
from dragoman.protocol.peer import (
    Announcement,
    ChatKick,
    DrainInstance,
    DrainNode,
    EndSession,
    InboxMessage,
    RevocationChanged,
)
from dragoman.services.loops import Tasks
from dragoman.services.routing.router import Announcer, Router
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.users import Users
from dragoman.store.dead_letters import DeadLetter, InboxDeadLetters
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Instances, Owners
from dragoman.store.revocations import Revocations
from dragoman.store.sessions import ResumableSessions

log = structlog.get_logger(__name__)

POLL_S = 0.5


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


class RevocationService:
    def __init__(self, copy: RevocationList, store: Revocations, announcer: Announcer, tasks: Tasks) -> None:
        self.copy, self._store, self._announcer, self._tasks = copy, store, announcer, tasks
        self._listeners: list[Callable[[], None]] = []
        self._reading = asyncio.Lock()
        announcer.subscribe(self._announced)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener` is called after each change of the copy."""
        self._listeners.append(listener)

    async def run_once(self) -> None:
        async with self._reading:
            known = self.copy.version
            version, entries = await self._store.read(known)
            has_lost = version < known
            if has_lost:
                log.warning("Redis has lost revocations; they are written again", known=known, found=version)
                await self._restore()
                version, entries = await self._store.read(-1)
            # An announcement may have brought a later version meanwhile.
            if entries is not None and (has_lost or version > self.copy.version):
                self.copy.replace(version, entries)
                self._changed()

    async def revoke(self, name: str, until_ms: int, by: str) -> Revocation:
        """Raises RevocationsFull."""
        entry = Revocation(int(time() * 1000), by, until_ms)
        version = await self._store.revoke(name, entry)
        self._announcer.announce(RevocationChanged(version, name, True, entry.at_ms, by, until_ms))
        return entry

    async def allow(self, name: str) -> bool:
        """False: the name is not on the list."""
        version = await self._store.allow(name)
        if version is not None:
            self._announcer.announce(RevocationChanged(version, name, False))
        return version is not None

    async def _restore(self) -> None:
        for name, entry in self.copy.entries(time()):
            await self._store.revoke(name, entry)

    def _announced(self, message: Announcement) -> None:
        if not isinstance(message, RevocationChanged):
            return
        entry = Revocation(message.at_ms, message.by, message.until_ms) if message.revoked else None
        if self.copy.change(message.version, message.name, entry):
            self._changed()
        else:
            self._tasks.spawn(self.run_once(), "read-revocations")

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()
