"""The HTTP applications of the shared port and of the admin port: health, who may ask, and how errors are answered.

Health and the `public` routes are for anybody; the `public` routes check credentials themselves. Everything else needs
an operator. A path that does not exist is 404 for anybody. Responses are JSON, refusals `{"error": "…"}`.
"""

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger

from dragoman.archive import ArchiveAway
from dragoman.gateway import operator_api
from dragoman.gateway.authentication import Authenticator, Principal, Unauthorized, token_of
from dragoman.gateway.handshake import ADMIN_HOST_REFUSED, HOST_REFUSED, PROXIED_REFUSED, is_local, is_loopback_host
from dragoman.gateway.http_requests import OPERATOR, BadRequest, Handler, error, json, peer_of, redis_error
from dragoman.gateway.operator_api import HttpContext
from dragoman.store.errors import Refused, StoreError

log = structlog.get_logger(__name__)


def _quotes_no_request(record: logging.LogRecord) -> bool:
    """aiohttp logs a malformed request with the text that it could not parse, which may be a credential."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


server_logger.addFilter(_quotes_no_request)
# The Server header of every response, also of those that aiohttp writes itself; its own names both versions.
web_response.SERVER_SOFTWARE = "Dragoman"  # type: ignore[attr-defined]

SECURITY = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HEALTH = ("/health", "/health/live", "/health/ready")


def application(
    context: HttpContext,
    authenticator: Authenticator,
    public: Sequence[web.RouteDef] = (),
    operator_routes: Sequence[web.RouteDef] = (),
    *,
    loopback_hosts_only: bool = False,
    local_requests_only: bool = False,
) -> web.Application:
    """The shared port: health for anybody, `public` routes with their own checks, everything else for operators.

    `loopback_hosts_only` refuses every other name in Host, `local_requests_only` every request that came through a
    proxy; `handshake` says why.
    """
    app = web.Application(
        middlewares=[
            _errors_as_json,
            *([_require(_has_loopback_host, HOST_REFUSED, 421)] if loopback_hosts_only else []),
            *([_require(_is_local, PROXIED_REFUSED, 403)] if local_requests_only else []),
            _operators_only(authenticator, frozenset({*HEALTH, *(_canonical(route.path) for route in public)})),
            context.auditor.audit_refusals,
            _require(_may_change, "pages of other hosts may not change anything here", 403),
        ]
    )
    app.on_response_prepare.append(_set_security_headers)
    app.add_routes([*public, *operator_routes, *_health(context, authenticator), *operator_api.routes(context)])
    return app


def admin_application(
    context: HttpContext, authenticator: Authenticator | None = None, *, local_requests_only: bool = False
) -> web.Application:
    """The admin port of this one instance: on a shared port a random worker answers. With an authenticator, everything
    but health needs an operator token. Without one no token is needed, and only the names of this machine are
    accepted as Host."""
    first = (
        _operators_only(authenticator, frozenset(HEALTH))
        if authenticator
        else _require(_has_loopback_host, ADMIN_HOST_REFUSED, 421)
    )
    local = [_require(_is_local, PROXIED_REFUSED, 403)] if local_requests_only else []
    app = web.Application(middlewares=[first, *local])
    app.on_response_prepare.append(_set_security_headers)
    app.add_routes([*_health(context, authenticator), operator_api.metrics_route(context)])
    return app


def _health(context: HttpContext, authenticator: Authenticator | None) -> list[web.RouteDef]:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def ready(request: web.Request) -> web.Response:
        why = context.ready()
        body = {"ready": why is None, "reason": why}
        if _may_see_instance(request, authenticator):
            body["instance"] = context.instance
        return json(body, 200 if why is None else 503)

    return [web.get(path, handler) for path, handler in zip(HEALTH, (ok, ok, ready), strict=True)]


def _may_see_instance(request: web.Request, authenticator: Authenticator | None) -> bool:
    """The name of an instance may contain that of the machine and the number of the process."""
    if _is_local(request):
        return True
    try:
        return authenticator is not None and bool(_operator(request, authenticator))
    except Unauthorized:
        return False


def _operator(request: web.Request, authenticator: Authenticator) -> Principal:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return authenticator.identify("operator", token_of(headers, request.query))


# --- middlewares ---


def _canonical(path: str) -> str:
    """The path of a route as its resource names it: without the patterns of its parts."""
    return re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path)


def _operators_only(authenticator: Authenticator, public: frozenset[str]) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        unknown, resource = (
            isinstance(request.match_info.http_exception, web.HTTPNotFound),
            request.match_info.route.resource,
        )
        path = resource.canonical if resource is not None else request.path
        if path not in public and not unknown:
            try:
                request[OPERATOR] = _operator(request, authenticator)
            except Unauthorized as why:
                return error(str(why), 401)
        return await handler(request)

    return check


def _require(condition: Callable[[web.Request], bool], refusal: str, status: int) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await handler(request) if condition(request) else error(refusal, status)

    return check


def _has_loopback_host(request: web.Request) -> bool:
    return is_loopback_host(request.headers.get("Host", ""))


def _is_local(request: web.Request) -> bool:
    return is_local(peer_of(request), request.headers)


def _may_change(request: web.Request) -> bool:
    """Browsers let any page send a POST anywhere; only Origin says which page it was."""
    origin = request.headers.get("Origin")
    return request.method in ("GET", "HEAD") or origin is None or origin.partition("://")[2] == request.host


async def _set_security_headers(_: web.Request, response: web.StreamResponse) -> None:
    """For browsers, unless the response has its own: show it in no other page, and store nothing."""
    for name, value in SECURITY.items():
        response.headers.setdefault(name, value)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as wrong:
        return error(str(wrong), 400)
    except Refused as refused:
        return error(f"Redis refuses the command: {refused}", 500)
    except StoreError as away:
        return error(redis_error(away), 503)
    except ArchiveAway as away:
        return error(f"the database is away: {away}", 503)
    except web.HTTPNotFound:
        return error("there is nothing at this path", 404)
    except web.HTTPMethodNotAllowed as wrong:
        return error(f"this path allows only {', '.join(sorted(wrong.allowed_methods))}", 405)
    except web.HTTPException as wrong:
        return error(wrong.reason, wrong.status)
    except Exception:
        log.exception("a request failed", method=request.method, path=request.path)
        return error("internal error", 500)
