"""What an operator does to an instance, a node, a session or a chat user, wherever in the cluster it is.

The instance that is asked finds the owner and hands the request to the owner's inbox. The owner carries it out.
"""

from dragoman.protocol.peer import ChatKick, DrainInstance, DrainNode, EndSession, InboxMessage
from dragoman.services.routing.router import Router
from dragoman.store.chat.users import Users
from dragoman.store.inbox import Push
from dragoman.store.instances import Instances
from dragoman.store.owners import Owners
from dragoman.store.sessions import ResumableSessions


class NotThere(Exception):
    """What was asked for does not exist, or its instance takes no requests; `str()` says which."""


class Operations:
    def __init__(
        self, router: Router, instances: Instances, owners: Owners, sessions: ResumableSessions, users: Users
    ) -> None:
        self._router, self._instances, self._owners = router, instances, owners
        self._sessions, self._users = sessions, users

    async def drain_instance(self, name: str) -> None:
        """It accepts nothing new, finishes what runs, and stays until its process is ended."""
        if await self._instances.presence(name) is None:
            raise NotThere("no instance of this name is alive")
        await self._hand(name, DrainInstance())

    async def drain_node(self, node: str, *, draining: bool) -> None:
        """It gets no new job, until `draining` is taken back or it connects anew."""
        owner = await self._owners.node_owner(node)
        if owner is None:
            raise NotThere("no node of this id is connected")
        await self._hand(owner, DrainNode(node, draining))

    async def end_session(self, session: str) -> None:
        owner = await self._owners.session_owner(session)
        if owner is not None:
            await self._hand(owner, EndSession(session))
        elif not await self._sessions.end_unowned(session):
            raise NotThere("there is no such session")

    async def disconnect(self, user: int) -> None:
        (owner,) = await self._users.owners([user])
        instance, _, connection = owner.rpartition("|")
        if not instance:
            raise NotThere("this user is not connected")
        await self._hand(instance, ChatKick(user, int(connection)))

    async def _hand(self, instance: str, message: InboxMessage) -> None:
        verdict = await self._router.push(instance, message)
        if verdict is not Push.OK:
            why = "its inbox is full" if verdict is Push.FULL else "it is gone"
            raise NotThere(f"the instance {instance} does not take the request: {why}")
