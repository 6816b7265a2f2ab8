"""The doors of one instance: its port for clients, nodes and HTTP, and its own admin port."""

from collections.abc import Callable
from dataclasses import replace

import structlog
from aiohttp import web

from dragoman.config import Config
from dragoman.config.loopback import is_loopback
from dragoman.config.secrets import has_secret, is_private
from dragoman.domain.chat.rules import Guard
from dragoman.gateway import Limits, Listener, OriginAllowList, Route, chat_api, chat_http, console_api, pages
from dragoman.gateway.addresses import Crowd
from dragoman.gateway.anteroom import SHARE, Anteroom
from dragoman.gateway.chat_endpoint import PATH as CHAT_PATH
from dragoman.gateway.chat_endpoint import ChatEndpoint, TokenCheck
from dragoman.gateway.handshake import Authorizer, Reject, Request
from dragoman.gateway.hosts import is_ours, logged, own_names_only, own_requests_only
from dragoman.gateway.http import Backstage, admin_application, application
from dragoman.gateway.node_endpoint import NodeEndpoint
from dragoman.gateway.principal import Doorkeeper
from dragoman.gateway.proxies import Proxies
from dragoman.gateway.session_endpoint import SessionEndpoint
from dragoman.instance.services import Services

log = structlog.get_logger(__name__)


class Doors:
    def __init__(self, config: Config, services: Services, draining: Callable[[], bool]) -> None:
        self.listener = Listener()
        self._config, self._services, self._draining = config, services, draining
        self._admin: web.AppRunner | None = None
        self._open = False

    async def open(self, stage: Backstage, admin_port: int) -> None:
        server = self._config.server
        keeper, chat = self._doorkeeper(), self._services.chat
        guests = [
            *chat_http.routes(chat.accounts, chat.archive, chat.config.limits.chat_history_per_minute),
            *pages.routes(self._services.view.fleet.nodes, registration=chat.registration),
            *console_api.files(),
        ]
        operators = [
            *chat_api.routes(chat, stage.auditor, self._services.operations.disconnect),
            *console_api.routes(self._services, stage.auditor),
        ]
        await self.listener.start(
            server.host,
            server.port,
            self._routes(keeper),
            application(
                stage,
                keeper,
                guests,
                operators,
                only_ours=self._only_ours(),
                only_from_here=self._only_from_here(),
            ),
            self._limits(),
            reuse_port=True,
            authorize=self._authorizer(),
            proxies=Proxies(server.trusted_proxies, protocol=server.proxy_protocol),
        )
        self._open = True
        self._services.metrics.registry.register(self.listener.counters)
        await self._open_for_admins(stage, keeper, admin_port)

    async def close(self, code: int) -> None:
        if self._open:
            self._open = False
            await self.listener.close(code)
        if self._admin is not None:
            await self._admin.cleanup()

    def _doorkeeper(self) -> Doorkeeper:
        security, chat = self._config.security, self._services.chat.tokens
        return Doorkeeper(
            chat.keyring if has_secret(self._config) else (),
            security.issuer,
            leeway_s=security.leeway_s,
            allow_anonymous=security.insecure_allow_anonymous,
            local=self._only_ours(),
            chat=chat,
            chat_may_speak=security.chat_tokens_for_speech,
        )

    def _limits(self) -> Limits:
        server = self._config.server
        return Limits(
            max_frame_bytes=server.max_frame_bytes,
            max_frames_per_s=server.max_frames_per_s,
            burst_frames=2 * server.max_frames_per_s,
            out_queue_bytes=server.out_queue_bytes,
            out_queue_age_s=server.out_queue_age_s,
            ping_idle_s=server.ping_idle_s,
            ping_reply_s=server.ping_reply_s,
            max_connections=server.max_connections,
            max_http_per_address=min(server.max_connections_per_address, Limits().max_http_connections // SHARE),
        )

    def _routes(self, keeper: Doorkeeper) -> dict[str, Route]:
        services, draining, server = self._services, self._draining, self._config.server
        guard, anteroom = services.presence.guard, self._anteroom(server.pre_session_s)
        per_s = server.node_max_frames_per_s
        node_limits = replace(self._limits(), max_frames_per_s=per_s, burst_frames=2 * per_s)

        def session() -> SessionEndpoint:
            return SessionEndpoint(
                services.sessions,
                services.resumption,
                services.tasks,
                keeper,
                guard,
                draining,
                anteroom,
            )

        def node() -> NodeEndpoint:
            nodes, tasks = services.local_nodes, services.tasks
            return NodeEndpoint(nodes, keeper, tasks, guard, draining, anteroom)

        return {
            "/ws/session": Route(session),
            "/ws/node": Route(node, node_limits),
            CHAT_PATH: Route(self._chat_endpoints(), self._chat_limits()),
        }

    def _anteroom(self, patience_s: float) -> Anteroom:
        """Who comes through a balancer shares its address with everybody: then no address has a share of the places."""
        server = self._config.server
        if server.max_connections_per_address:
            return Anteroom(patience_s, server.max_pre_session)
        return Anteroom(patience_s, server.max_pre_session, exempt=lambda address: True)

    def _chat_limits(self) -> Limits:
        """The endpoint's own guard, which says why, comes first: of the frames it does not count, some wait for it."""
        chat = self._config.chat
        return replace(
            self._limits(),
            max_frame_bytes=chat.max_frame_bytes,
            max_frames_per_s=2 * chat.max_frames_per_s,
            burst_frames=max(8 * chat.max_frames_per_s, 3_200),
            ping_idle_s=chat.ping_idle_s,
            ping_reply_s=chat.silent_s - chat.ping_idle_s,
        )

    def _chat_endpoints(self) -> Callable[[], ChatEndpoint]:
        chat, tasks, settings = self._services.chat, self._services.tasks, self._config.chat
        anteroom = self._anteroom(settings.auth_timeout_s)
        per_s = settings.max_frames_per_s

        def endpoint() -> ChatEndpoint:
            guard = Guard(per_s, 2 * per_s)
            return ChatEndpoint(chat.admission, chat.receipts, tasks, anteroom, guard, self._draining)

        return endpoint

    def _authorizer(self) -> Authorizer:
        """The name and the address first, then the page, then the token."""
        only_ours, allowed = self._only_ours(), self._config.server.allowed_origins
        # Without a secret a page from another port of this machine may connect: in most cases it is a developer's own.
        page = logged(OriginAllowList(allowed, is_ours) if only_ours else OriginAllowList(allowed))
        token = TokenCheck(self._services.chat.tokens)
        # The roster is made anew when the listener starts.
        crowd = Crowd(
            self._config.server.max_connections_per_address, lambda who: self.listener.roster.addresses.of(who)
        )
        asked: list[Authorizer] = [crowd, page, token]
        if self._only_from_here():
            asked.insert(0, own_requests_only)
        if only_ours:
            asked.insert(0, own_names_only)

        def authorize(request: Request) -> Reject | None:
            return next((no for ask in asked if (no := ask(request)) is not None), None)

        return authorize

    def _only_ours(self) -> bool:
        """Whether nobody is asked for a token, and only this machine is to reach us."""
        return is_private(self._config)

    def _only_from_here(self) -> bool:
        """Whether proxies may not bring in others either: nobody has said that everybody is trusted."""
        return self._only_ours() and not self._config.security.insecure_allow_anonymous

    async def _open_for_admins(self, stage: Backstage, keeper: Doorkeeper, port: int) -> None:
        asked = None if is_loopback(self._config.server.admin_host) else keeper
        patience_s = self._limits().close_timeout_s  # as at the other port: who does not read holds up no end
        app = admin_application(stage, asked, only_from_here=self._only_from_here())
        self._admin = web.AppRunner(app, access_log=None, shutdown_timeout=patience_s)
        await self._admin.setup()
        try:
            await web.TCPSite(self._admin, self._config.server.admin_host, port).start()
        except OSError as error:
            log.warning("no admin port: it is taken; set server.admin_port to another", port=port, error=str(error))
