"""HTTP beside the WebSockets: health, metrics, and the API for dashboards and operators.

Everything is for operators but health and what `guests` bring, which find out themselves who is asking; a path that is
not there is 404 for anybody. Answers are JSON, refusals `{"error": "…"}`; what a letter carries is shown without its
audio.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from prometheus_client import CollectorRegistry, generate_latest

from dragoman.archive import ArchiveAway
from dragoman.gateway.auditing import Auditor
from dragoman.gateway.authentication import Authenticator, Principal, Unauthorized, token_of
from dragoman.gateway.handshake import ADMIN_HOST_REFUSED, HOST_REFUSED, PROXIED_REFUSED, is_local, is_loopback_host
from dragoman.gateway.http_connections import OPERATOR, peer_of
from dragoman.gateway.http_messages import Wrong, error, json, redis_away
from dragoman.services.dead_letters import DeadLetters
from dragoman.services.report import Report
from dragoman.store.dead_letters import CannotReplay, Letter
from dragoman.store.errors import Refused, StoreError
from dragoman.store.inbox import Push
from dragoman.store.jobs import Jobs, with_attempts

log = structlog.get_logger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """aiohttp logs a request that is none with what was wrong in it, and that may be anything, also a credential."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


server_logger.addFilter(_is_ours)
# The Server header of every answer, also of those that aiohttp makes by itself; its own tells the versions of both.
web_response.SERVER_SOFTWARE = "Dragoman"  # type: ignore[attr-defined]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HEALTH = ("/health", "/health/live", "/health/ready")
MAX_LETTERS = 1000
PREVIEW = 2000
_LETTER_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_WHY_NOT_REPLAYED = {
    Push.GONE: "nobody reads that inbox",
    Push.FULL: "the inbox is full",
    Push.TOO_LARGE: "it is too large",
}


@dataclass(frozen=True, slots=True)
class HttpContext:
    """What the handlers need of the instance."""

    instance: str
    registry: CollectorRegistry
    report: Report
    letters: DeadLetters
    jobs: Jobs
    stats: Callable[[], dict[str, Any]]
    ready: Callable[[], str | None]  # None, or why not
    auditor: Auditor


def application(
    context: HttpContext,
    authenticator: Authenticator,
    guests: Sequence[web.RouteDef] = (),
    operators: Sequence[web.RouteDef] = (),
    *,
    only_ours: bool = False,
    only_from_here: bool = False,
) -> web.Application:
    """The public port: health for anybody, `guests` by their own rules, the rest, with `operators`, for operators.

    `only_ours`: it answers to the names of this machine alone, `only_from_here`: it answers no request that a proxy
    passed on for somebody else; see `hosts`.
    """
    open_to_all = frozenset({*HEALTH, *(route.path for route in guests)})
    operators_only = _operators_only(authenticator, open_to_all)
    strangers = [*([_own_names_only] if only_ours else []), *([_own_requests_only] if only_from_here else [])]
    app = web.Application(
        middlewares=[_plain_errors, *strangers, operators_only, context.auditor.refusals, _own_pages_only]
    )
    app.on_response_prepare.append(_secured)
    app.add_routes([*guests, *operators])
    api = _Api(context)
    app.add_routes(
        [
            *_health(context, authenticator),
            web.get("/metrics", api.metrics),
            web.get("/api/v1/cluster", api.cluster),
            web.get("/api/v1/stats", api.stats),
            web.get("/api/v1/metrics", api.metrics_json),
            web.get("/api/v1/jobs/{job}", api.job),
            web.get("/api/v1/dlq", api.letters),
            web.get("/api/v1/dlq/{instance}/{id}", api.letter),
            web.post("/api/v1/dlq/{instance}/{id}/replay", api.replay),
            web.delete("/api/v1/dlq/{instance}/{id}", api.drop),
        ]
    )
    return app


def admin_application(
    context: HttpContext, authenticator: Authenticator | None = None, *, only_from_here: bool = False
) -> web.Application:
    """The admin port of this one instance: on a shared port a random worker answers. With an authenticator, everything
    but health needs an operator token. Without one no token is needed, and only the names of this machine are
    accepted as Host."""
    asked = _operators_only(authenticator, frozenset(HEALTH)) if authenticator else _own_admins_only
    app = web.Application(middlewares=[asked, *([_own_requests_only] if only_from_here else [])])
    app.on_response_prepare.append(_secured)
    app.add_routes([*_health(context, authenticator), web.get("/metrics", _Api(context).metrics)])
    return app


def _health(context: HttpContext, authenticator: Authenticator | None) -> list[web.RouteDef]:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def ready(request: web.Request) -> web.Response:
        why = context.ready()
        told = {"ready": why is None, "reason": why}
        if _may_know_the_instance(request, authenticator):
            told["instance"] = context.instance
        return json(told, 200 if why is None else 503)

    return [web.get(path, handler) for path, handler in zip(HEALTH, (ok, ok, ready), strict=True)]


def _may_know_the_instance(request: web.Request, authenticator: Authenticator | None) -> bool:
    """Its name may be that of the machine, with the number of the process."""
    if is_local(peer_of(request), request.headers):
        return True
    try:
        return authenticator is not None and bool(_operator(request, authenticator))
    except Unauthorized:
        return False


def _operator(request: web.Request, authenticator: Authenticator) -> Principal:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return authenticator.identify("operator", token_of(headers, request.query))


def _operators_only(authenticator: Authenticator, open_to_all: frozenset[str]) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        unknown = isinstance(request.match_info.http_exception, web.HTTPNotFound)
        if request.path not in open_to_all and not unknown:
            try:
                request[OPERATOR] = _operator(request, authenticator)
            except Unauthorized as why:
                return error(str(why), 401)
        return await handler(request)

    return check


async def _secured(_: web.Request, answer: web.StreamResponse) -> None:
    """What an answer says to a browser unless it says something else itself: show it nowhere else, and keep nothing."""
    for name, value in SECURITY.items():
        answer.headers.setdefault(name, value)


@web.middleware
async def _own_names_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_loopback_host(request.headers.get("Host", "")):
        return error(HOST_REFUSED, 421)
    return await handler(request)


@web.middleware
async def _own_admins_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_loopback_host(request.headers.get("Host", "")):
        return error(ADMIN_HOST_REFUSED, 421)
    return await handler(request)


@web.middleware
async def _own_requests_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_local(peer_of(request), request.headers):
        return error(PROXIED_REFUSED, 403)
    return await handler(request)


@web.middleware
async def _own_pages_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Browsers let any page send a POST anywhere, and say only in Origin which page it was."""
    origin = request.headers.get("Origin")
    if request.method not in ("GET", "HEAD") and origin is not None and origin.partition("://")[2] != request.host:
        return error("pages of other hosts may not change anything here", 403)
    return await handler(request)


@web.middleware
async def _plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Wrong as wrong:
        return error(str(wrong), 400)
    except Refused as refused:
        return error(f"Redis refuses that: {refused}", 500)
    except StoreError as away:
        return error(redis_away(away), 503)
    except ArchiveAway as away:
        return error(f"the database is away: {away}", 503)
    except web.HTTPNotFound:
        return error("there is nothing at this path", 404)
    except web.HTTPMethodNotAllowed as wrong:
        return error(f"only {', '.join(sorted(wrong.allowed_methods))} here", 405)
    except web.HTTPException as wrong:
        return error(wrong.reason, wrong.status)
    except Exception:
        log.exception("a request failed", method=request.method, path=request.path)
        return error("internal error", 500)


class _Api:
    def __init__(self, context: HttpContext) -> None:
        self._stage = context

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._stage.registry), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def metrics_json(self, _: web.Request) -> web.Response:
        samples: dict[str, Any] = {}
        for family in self._stage.registry.collect():
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        answer = json(samples)
        answer.headers["Dragoman-Instance"] = self._stage.instance  # a shared port answers for any of its workers
        return answer

    async def cluster(self, _: web.Request) -> web.Response:
        return json(await self._stage.report.cluster())

    async def stats(self, _: web.Request) -> web.Response:
        return json(self._stage.stats())

    async def job(self, request: web.Request) -> web.Response:
        found = await self._stage.jobs.get(request.match_info["job"])
        if found is None:
            return error("no such job, or it ended too long ago", 404)
        told = with_attempts(found)
        with suppress(msgspec.DecodeError, KeyError):
            told["receipt"] = msgspec.json.decode(told["receipt"])
        return json(told)

    # -- dead letters ----------------------------------------------------------------------------

    async def letters(self, request: web.Request) -> web.Response:
        """`count` of the oldest, of one `instance` or of all; with `after`, of those behind that letter."""
        letters, query = self._stage.letters, request.query
        count, after, instance = _count(query.get("count", "100")), query.get("after", ""), query.get("instance")
        if after and not instance:
            raise Wrong("after needs instance as well")
        if after:
            _letter_id(after)
        names = [instance] if instance else await letters.instances()
        found = [letter for name in names for letter in await letters.list(name, count, after)]
        found.sort(key=lambda letter: tuple(map(int, letter.id.split("-"))))
        return json([_shown(letter) for letter in found[:count]])

    async def letter(self, request: web.Request) -> web.Response:
        letter = await self._find(request)
        return json({**_shown(letter), "data": _preview(letter)}) if letter is not None else _no_letter()

    async def replay(self, request: web.Request) -> web.Response:
        letter = await self._find(request)
        if letter is None:
            return _no_letter()
        try:
            verdict = await self._stage.letters.replay(letter, self._stage.instance)
        except CannotReplay as why:
            return error(f"it cannot be replayed, only dropped: {why}", 409)
        if verdict is not Push.OK:
            return error(f"it cannot be replayed now: {_WHY_NOT_REPLAYED[verdict]}", 409)
        await self._stage.auditor.note(request, "dlq.replay", f"{letter.instance}/{letter.id}", letter.reason)
        return json({"replayed": True, "verdict": verdict})

    async def drop(self, request: web.Request) -> web.Response:
        instance, id = request.match_info["instance"], _letter_id(request.match_info["id"])
        if not await self._stage.letters.drop(instance, id):
            return _no_letter()
        await self._stage.auditor.note(request, "dlq.drop", f"{instance}/{id}")
        return json({"dropped": True})

    async def _find(self, request: web.Request) -> Letter | None:
        return await self._stage.letters.get(request.match_info["instance"], _letter_id(request.match_info["id"]))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_LETTERS):
        raise Wrong(f"count is not a number from 1 to {MAX_LETTERS}")
    return int(text)


def _letter_id(text: str) -> str:
    if not _LETTER_ID.fullmatch(text):
        raise Wrong(f"{text[:50]!r} is not the id of a dead letter")
    return text


def _no_letter() -> web.Response:
    return error("no such dead letter", 404)


def _shown(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "instance": letter.instance,
        "kind": letter.kind,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "trace_id": letter.trace_id,
        "added_ms": letter.added_ms,
        "dead_ms": letter.dead_ms,
        "size": letter.size,
    }


def _preview(letter: Letter) -> str:
    """The plain fields of what it carries. Everything that was said, heard or written is inside of something: of that
    there is only the size."""
    try:
        told = msgspec.json.decode(letter.data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"{len(letter.data)} bytes that cannot be read"
    shown = {name: f"{len(raw)} bytes" if bytes(raw)[:1] in b"[{" else raw for name, raw in told.items()}
    return msgspec.json.encode(shown)[:PREVIEW].decode(errors="replace")
