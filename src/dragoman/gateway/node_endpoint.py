"""/ws/node, the endpoint of nodes. Registration asks Redis; messages that arrive before it is done wait."""

from collections.abc import Callable
from typing import assert_never

import msgspec
import structlog

from dragoman.domain.job_signals import JobMessage
from dragoman.gateway.authentication import Authenticator, Unauthorized, token_of
from dragoman.gateway.connection import Connection
from dragoman.gateway.open_connections import AuthenticatedConnections, PreSession
from dragoman.protocol import node as wire
from dragoman.protocol.codec import decode_node, encode
from dragoman.protocol.codes import Close, ErrorCode, ProtocolError
from dragoman.protocol.session import Error
from dragoman.services.loops import Tasks
from dragoman.services.speech.local_nodes import LocalNode, LocalNodes
from dragoman.services.speech.previews import NodePreviews
from dragoman.store.errors import StoreError
from dragoman.store.instances import NodeIdTaken, Standing

log = structlog.get_logger(__name__)

FromRegistered = JobMessage | wire.PreviewRefused | wire.NodeHeartbeat | wire.NodeError
MAX_EARLY_MESSAGES = 64
MAX_EARLY_BYTES = 2 << 20  # one message of the largest size, and some more: the node is not authenticated yet


class NodeEndpoint:
    def __init__(
        self,
        nodes: LocalNodes,
        previews: NodePreviews,
        authenticator: Authenticator,
        tasks: Tasks,
        guard: Callable[..., bool],
        draining: Callable[[], bool],
        pre_session: PreSession,
        authenticated: AuthenticatedConnections,
    ) -> None:
        self._nodes, self._previews, self._authenticator, self._tasks, self._guard, self._draining = (
            nodes, previews, authenticator, tasks, guard, draining,
        )  # fmt: skip
        self._pre_session, self._authenticated = pre_session, authenticated
        self._node: LocalNode | None = None
        self._registering = False
        self._is_closed = False
        self._early: list[tuple[FromRegistered, bytes]] = []
        self._early_bytes = 0

    # -- callbacks of the connection --------------------------------------------------------------

    def opened(self, conn: Connection) -> None:
        self._pre_session.add(conn, Close.NOT_REGISTERED, "no node_register arrived in time")

    def text(self, conn: Connection, data: bytes) -> None:
        self._guard(self._text, conn, data)

    def binary(self, conn: Connection, data: bytes) -> None:
        self._refuse(conn, ProtocolError(ErrorCode.INVALID_MESSAGE, "Nodes send text frames only."))

    def closed(self, conn: Connection) -> None:
        self._pre_session.remove(conn)
        self._authenticated.discard(conn)
        self._guard(self._closed)

    def _closed(self) -> None:
        self._is_closed = True
        if self._node is not None:
            self._nodes.closed(self._node)

    def _text(self, conn: Connection, data: bytes) -> None:
        try:
            self._handle(conn, decode_node(data), data)
        except ProtocolError as error:
            self._refuse(conn, error)

    def _refuse(self, conn: Connection, error: ProtocolError) -> None:
        conn.send(encode(Error(code=error.code, message=error.message)))

    # -- messages --------------------------------------------------------------------------------

    def _handle(self, conn: Connection, message: wire.NodeMessage, frame: bytes) -> None:
        if isinstance(message, wire.NodeRegister):
            self._register(conn, message)
        elif self._node is not None:
            self._on_message(self._node, message, frame)
        elif len(self._early) < MAX_EARLY_MESSAGES and self._early_bytes + len(frame) <= MAX_EARLY_BYTES:
            # A node that reconnects may send a heartbeat, or a result it kept, before it registers.
            self._early.append((message, frame))
            self._early_bytes += len(frame)
        else:
            conn.close(Close.NOT_REGISTERED, "too many messages before node_register")

    def _on_message(self, node: LocalNode, message: FromRegistered, frame: bytes) -> None:
        match message:
            case wire.NodePartial(job_id=None):
                self._previews.on_partial(node, message)
            case wire.PreviewRefused():
                self._previews.on_refused(node, message)
            case wire.JobAck() | wire.JobStarted() | wire.NodePartial() | wire.JobResult():
                self._nodes.on_job_message(node, message, frame)
            case wire.NodeHeartbeat():
                self._tasks.spawn(self._nodes.heartbeat(node, message), "node-heartbeat")
            case wire.NodeError():
                log.warning(
                    "a node reports an error",
                    node=node.id,
                    code=message.code,
                    message=message.message[:200],
                    limited=True,
                    each="node",
                )
            case _:
                assert_never(message)

    def _register(self, conn: Connection, message: wire.NodeRegister) -> None:
        if self._registering or self._node is not None:
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, "This connection has registered already.")
        if self._draining():
            conn.close(Close.SHUTDOWN, "this instance is shutting down; connect again")
            return
        try:
            token = message.token or token_of(conn.headers, conn.query)
            principal = self._authenticator.identify("node", token)
        except Unauthorized as error:
            conn.close(Close.UNAUTHORIZED, str(error))
            return
        if not principal.anonymous:
            if message.node_id not in (None, principal.subject):
                conn.close(Close.NODE_ID_CONFLICT, "the token is for another node id")
                return
            message = msgspec.structs.replace(message, node_id=principal.subject)
        self._registering = True
        self._authenticated.add(conn, principal)
        standing: Standing = (
            "token" if not principal.anonymous else "anonymous" if self._authenticator.has_secret else "unasked"
        )
        self._tasks.spawn(self._registered(conn, message, principal.tenant, standing), "node-register")

    async def _registered(self, conn: Connection, message: wire.NodeRegister, tenant: str, standing: Standing) -> None:
        try:
            node = await self._nodes.register(conn, message, tenant, standing)
        except NodeIdTaken:
            conn.close(Close.NODE_ID_CONFLICT, "a node with a token has this node id")
            return
        except StoreError:
            conn.close(Close.OVERLOADED, "Redis is away; connect again")
            return
        self._pre_session.remove(conn)
        self._node = node
        if self._is_closed:
            self._nodes.closed(node)
            return
        early, self._early = self._early, []
        for message_before, frame in early:
            self._on_message(node, message_before, frame)
