"""Actions of operators on an instance, a node, a session or a chat user, on any instance of the cluster.

The instance that gets the request pushes it to the inbox of the owner, which carries it out.
"""

from dragoman.protocol.peer import ChatKick, DrainInstance, DrainNode, EndSession, InboxMessage
from dragoman.services.routing.router import Router
from dragoman.store.chat.users import Users
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Instances
from dragoman.store.owners import Owners
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
