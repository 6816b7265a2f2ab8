"""The two ports of an instance: one for clients, nodes and HTTP, and an admin port."""

from collections.abc import Callable
from dataclasses import replace

import structlog
from aiohttp import web

from dragoman.config import Config
from dragoman.config.secrets import has_secret, is_loopback, is_private
from dragoman.domain.limits.connections import ConnectionLimits, share_of_address
from dragoman.domain.limits.frames import ChatFrameLimit
from dragoman.gateway import (
    Listener,
    OriginAllowList,
    Route,
    chat_user_api,
    operator_api,
    operator_chat_api,
    pages,
    room_api,
)
from dragoman.gateway.authentication import Authenticator
from dragoman.gateway.chat_endpoint import PATH as CHAT_PATH
from dragoman.gateway.chat_endpoint import ChatEndpoint, TokenCheck
from dragoman.gateway.handshake import (
    Authorizer,
    Reject,
    Request,
    is_loopback_host,
    local_requests_only,
    log_refusals,
    loopback_hosts_only,
)
from dragoman.gateway.http_application import admin_application, application
from dragoman.gateway.node_endpoint import NodeEndpoint
from dragoman.gateway.open_connections import AuthenticatedConnections, PreSession
from dragoman.gateway.operator_api import HttpContext
from dragoman.gateway.proxies import Proxies
from dragoman.gateway.session_endpoint import SessionEndpoint
from dragoman.instance.services import Services
from dragoman.services.report import RoomListings

log = structlog.get_logger(__name__)


class Ports:
    def __init__(self, config: Config, services: Services, draining: Callable[[], bool]) -> None:
        self._config, self._services, self._draining = config, services, draining
        server = config.server
        self.listener = Listener(self._limits(), Proxies(server.trusted_proxies, protocol=server.proxy_protocol))
        self._authenticator = self._make_authenticator()
        self._authenticated = AuthenticatedConnections(self._authenticator.is_revoked, services.tasks)
        self._admin: web.AppRunner | None = None
        self._open = False

    async def open(self, context: HttpContext, admin_port: int) -> None:
        server, chat, rooms = self._config.server, self._services.chat, self._services.rooms
        public = [
            *chat_user_api.routes(
                chat.accounts,
                chat.archive,
                self._config.limits.chat_history_per_minute,
                self._services.metrics.chat_history_refused.inc,
            ),
            *room_api.public_routes(rooms.membership, rooms.store, self._authenticator),
            *pages.routes(self._services.view.fleet.nodes, registration=chat.registration),
            *operator_api.console_files(),
        ]
        operator_routes = [
            *operator_chat_api.routes(chat, context.auditor, self._services.operations.disconnect),
            *operator_api.console_routes(self._services, context.auditor),
            *room_api.operator_routes(
                rooms.membership, RoomListings(rooms.store, self._services.stores.jobs), context.auditor
            ),
            *operator_chat_api.revocation_routes(
                self._services.revocations, self._authenticator, chat.archive.user_by_name, context.auditor
            ),
        ]
        await self.listener.start(
            server.host,
            server.port,
            self._routes(),
            application(
                context,
                self._authenticator,
                public,
                operator_routes,
                loopback_hosts_only=self._is_private(),
                local_requests_only=self._rejects_proxies(),
            ),
            reuse_port=True,
            authorize=self._authorizer(),
        )
        self._open = True
        self._services.revocations.subscribe(self._close_revoked)
        self._services.metrics.registry.register(self.listener.counters)
        await self._open_admin_port(context, admin_port)

    def _close_revoked(self) -> None:
        """Sessions first: a session that can resume would outlive its connection."""
        self._services.sessions.end_owned_by(self._services.revocations.copy.owners())
        self._authenticated.check()
        self.listener.close_operators(self._authenticator.is_revoked)

    async def close(self, code: int) -> None:
        if self._open:
            self._open = False
            await self.listener.close(code)
        if self._admin is not None:
            await self._admin.cleanup()

    def _make_authenticator(self) -> Authenticator:
        security, chat = self._config.security, self._services.chat.tokens
        return Authenticator(
            chat.signing_keys if has_secret(self._config) else (),
            security.issuer,
            leeway_s=security.leeway_s,
            allow_anonymous=security.insecure_allow_anonymous,
            local=self._is_private(),
            chat=chat,
            chat_tokens_for_speech=security.chat_tokens_for_speech,
            revoked=self._services.revocations.copy,
        )

    def _limits(self) -> ConnectionLimits:
        server, limits = self._config.server, self._config.limits
        return ConnectionLimits(
            max_frame_bytes=limits.frame_bytes,
            max_frames_per_s=limits.frames_per_s,
            burst_frames=2 * limits.frames_per_s,
            out_queue_bytes=limits.out_queue_bytes,
            out_queue_age_s=limits.out_queue_age_s,
            ping_idle_s=server.ping_idle_s,
            ping_reply_s=server.ping_reply_s,
            max_connections=limits.connections,
            max_per_address=limits.connections_per_address,
            max_http_connections=limits.http_connections,
            max_http_per_address=min(limits.connections_per_address, share_of_address(limits.http_connections)),
        )

    def _routes(self) -> dict[str, Route]:
        services, draining, server = self._services, self._draining, self._config.server
        guard, pre_session = services.presence.guard, self._pre_session(server.pre_session_s)
        per_s = self._config.limits.node_frames_per_s
        node_limits = replace(self._limits(), max_frames_per_s=per_s, burst_frames=2 * per_s)

        def session() -> SessionEndpoint:
            return SessionEndpoint(
                services.sessions,
                services.resumption,
                services.rooms.commands,
                services.tasks,
                self._authenticator,
                guard,
                draining,
                pre_session,
                self._authenticated,
            )

        def node() -> NodeEndpoint:
            nodes, previews, tasks = services.local_nodes, services.node_previews, services.tasks
            return NodeEndpoint(
                nodes, previews, self._authenticator, tasks, guard, draining, pre_session, self._authenticated
            )

        return {
            "/ws/session": Route(session),
            "/ws/node": Route(node, node_limits),
            CHAT_PATH: Route(self._chat_endpoints(), self._chat_limits()),
        }

    def _pre_session(self, timeout_s: float) -> PreSession:
        """Clients behind a load balancer share its address: then no limit per address applies."""
        limits = self._config.limits
        if limits.connections_per_address:
            return PreSession(timeout_s, limits.pre_session_connections)
        return PreSession(timeout_s, limits.pre_session_connections, exempt=lambda address: True)

    def _chat_limits(self) -> ConnectionLimits:
        """Above the endpoint's own `ChatFrameLimit`, which answers with a reason: it is to be reached first."""
        chat, limits = self._config.chat, self._config.limits
        return replace(
            self._limits(),
            max_frame_bytes=limits.chat_frame_bytes,
            max_frames_per_s=2 * limits.chat_frames_per_s,
            burst_frames=max(8 * limits.chat_frames_per_s, 3_200),
            ping_idle_s=chat.ping_idle_s,
            ping_reply_s=chat.silent_s - chat.ping_idle_s,
        )

    def _chat_endpoints(self) -> Callable[[], ChatEndpoint]:
        chat, tasks, settings = self._services.chat, self._services.tasks, self._config.chat
        pre_session = self._pre_session(settings.auth_timeout_s)
        per_s = self._config.limits.chat_frames_per_s

        def endpoint() -> ChatEndpoint:
            frame_limit = ChatFrameLimit(per_s, 2 * per_s)
            return ChatEndpoint(
                chat.admission, chat.receipts, chat.translations, tasks, pre_session, frame_limit, self._draining,
                lambda: self._services.presence.starting_over, self._authenticated,
            )  # fmt: skip

        return endpoint

    def _authorizer(self) -> Authorizer:
        """Checks the Host, then the Origin, then the token."""
        private, allowed = self._is_private(), self._config.server.allowed_origins
        # Without a secret a page of another local port may connect: in most cases it is a developer's own.
        page = log_refusals(OriginAllowList(allowed, is_loopback_host) if private else OriginAllowList(allowed))
        token = TokenCheck(self._services.chat.tokens)
        checks: list[Authorizer] = [page, token]
        if self._rejects_proxies():
            checks.insert(0, local_requests_only)
        if private:
            checks.insert(0, loopback_hosts_only)

        def authorize(request: Request) -> Reject | None:
            return next((rejected for check in checks if (rejected := check(request)) is not None), None)

        return authorize

    def _is_private(self) -> bool:
        """Whether no token is needed, and only this machine may connect."""
        return is_private(self._config)

    def _rejects_proxies(self) -> bool:
        """Whether requests that a proxy forwards for other machines are rejected, too."""
        return self._is_private() and not self._config.security.insecure_allow_anonymous

    async def _open_admin_port(self, context: HttpContext, port: int) -> None:
        authenticator = None if is_loopback(self._config.server.admin_host) else self._authenticator
        app = admin_application(context, authenticator, local_requests_only=self._rejects_proxies())
        # As on the other port: a client that does not read must not delay shutdown.
        timeout_s = self._limits().close_timeout_s
        self._admin = web.AppRunner(app, access_log=None, shutdown_timeout=timeout_s)
        await self._admin.setup()
        try:
            await web.TCPSite(self._admin, self._config.server.admin_host, port).start()
        except OSError as error:
            log.warning("admin port not opened; set server.admin_port to another", port=port, error=str(error))
