"""The operators' HTTP API: cluster, jobs, nodes, sessions, dead letters, metrics, and the audit of every change.

Everything is read from shared state, so any instance answers for the whole cluster, a page at a time. The console at
`/console` uses this API. A dead letter is shown without the speech or text in it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from dragoman.gateway import pages
from dragoman.gateway.http_requests import OPERATOR, BadRequest, Handler, count_of, error, json, peer_of, text_of
from dragoman.services.history import History
from dragoman.services.operations import DeadLetters, NotThere, Operations
from dragoman.services.report import Listings, Report, readable
from dragoman.store.console import Audit
from dragoman.store.dead_letters import CannotReplay, DeadLetter
from dragoman.store.errors import StoreError
from dragoman.store.inbox import PushReply
from dragoman.store.jobs import Jobs

log = structlog.get_logger(__name__)

DONE: Final = "done"
MAX_AUDIT_TEXT: Final = 300  # characters of one field
MAX_LETTERS: Final = 1000
MAX_PREVIEW: Final = 2000
_NOTED = web.RequestKey("noted", bool)
_STREAM_ID: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_JOB_CURSOR: Final = re.compile(r"[0-9]{1,16}\|.+")
_WHY_NOT_REPLAYED: Final = {
    PushReply.GONE: "nobody reads that inbox",
    PushReply.FULL: "the inbox is full",
    PushReply.TOO_LARGE: "it is too large",
}
# Everything that operators can change, and its name in the audit.
ACTIONS: Final = {
    ("POST", "/api/v1/chat/switches"): "chat.switch",
    ("DELETE", "/api/v1/chat/switches"): "chat.switches.reset",
    ("POST", "/api/v1/instances/{instance}/drain"): "instance.drain",
    ("POST", "/api/v1/nodes/{node}/drain"): "node.drain",
    ("DELETE", "/api/v1/nodes/{node}/drain"): "node.undrain",
    ("DELETE", "/api/v1/sessions/{session}"): "session.end",
    ("DELETE", "/api/v1/chat/users/{user}/connection"): "chat.disconnect",
    ("POST", "/api/v1/chat/users"): "chat.user.add",
    ("DELETE", "/api/v1/chat/users/{name}"): "chat.user.remove",
    ("POST", "/api/v1/chat/users/{name}/password"): "chat.user.passwd",
    ("POST", "/api/v1/chat/users/{id}/erase"): "chat.user.erase",
    ("POST", "/api/v1/chat/invites"): "chat.invite",
    ("POST", "/api/v1/rooms"): "room.open",
    ("DELETE", "/api/v1/rooms/{room}"): "room.close",
    ("POST", "/api/v1/revocations"): "token.revoke",
    ("DELETE", "/api/v1/revocations/{name}"): "token.allow",
    ("POST", "/api/v1/dlq/{instance}/{id}/replay"): "dlq.replay",
    ("DELETE", "/api/v1/dlq/{instance}/{id}"): "dlq.drop",
}


class Auditor:
    """Writes every change of an operator, and every refused one, to the log and to the audit that all instances read.

    A request without an operator's credential is refused earlier: it cannot fill the audit.
    """

    def __init__(self, audit: Audit, instance: str) -> None:
        self.audit, self._instance = audit, instance

    async def note(
        self, request: web.Request, action: str, target: str, detail: str = "", *, result: str = DONE
    ) -> None:
        """Record a change after it was made. If Redis cannot be reached, only the log has it."""
        request[_NOTED] = True
        operator = request.get(OPERATOR)
        who, tenant = (operator.subject, operator.tenant) if operator is not None else ("", "")
        target, detail, result = target[:MAX_AUDIT_TEXT], detail[:MAX_AUDIT_TEXT], result[:MAX_AUDIT_TEXT]
        about = {"tenant": tenant, "result": result, "address": peer_of(request).address}
        event = "an operator changed something" if result == DONE else "an operator could not change something"
        log.info(event, who=who, action=action, target=target, detail=detail, **about)
        try:
            await self.audit.add(who, action, target, detail, self._instance, **about)
        except StoreError as away:
            log.warning("a change is not in the audit", action=action, target=target, error=str(away))

    @web.middleware
    async def audit_refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Record a change that was requested and not made."""
        resource = request.match_info.route.resource
        action = ACTIONS.get((request.method, resource.canonical if resource is not None else ""))
        if action is None or request.get(OPERATOR) is None:
            return await handler(request)
        target = "/".join(request.match_info.values()) or action.partition(".")[0]
        try:
            response = await handler(request)
        except Exception as error:
            why = str(error) if isinstance(error, BadRequest) else type(error).__name__
            if not request.get(_NOTED):
                await self.note(request, action, target, result=f"refused: {why}")
            raise
        if not request.get(_NOTED):
            await self.note(request, action, target, result=f"refused: {_error_in(response)}")
        return response


def _error_in(response: web.StreamResponse) -> str:
    with suppress(AttributeError, TypeError, KeyError, msgspec.DecodeError):
        return str(msgspec.json.decode(response.body)["error"])  # type: ignore[attr-defined]
    return str(response.status)


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


class ConsoleServices(Protocol):
    """What the console needs besides."""

    report: Report
    listings: Listings
    history: History
    operations: Operations


def routes(context: HttpContext) -> list[web.RouteDef]:
    api, letters = _ClusterApi(context), _DeadLetterApi(context)
    return [
        metrics_route(context),
        web.get("/api/v1/cluster", api.cluster),
        web.get("/api/v1/stats", api.stats),
        web.get("/api/v1/metrics", api.metrics_json),
        web.get("/api/v1/jobs/{job}", api.job),
        web.get("/api/v1/dlq", letters.list),
        web.get("/api/v1/dlq/{instance}/{id}", letters.letter),
        web.post("/api/v1/dlq/{instance}/{id}/replay", letters.replay),
        web.delete("/api/v1/dlq/{instance}/{id}", letters.drop),
    ]


def metrics_route(context: HttpContext) -> web.RouteDef:
    return web.get("/metrics", _ClusterApi(context).metrics)


def console_files() -> list[web.RouteDef]:
    """For anybody: the files contain no data."""
    return pages.static("console", "/console")


def console_routes(services: ConsoleServices, auditor: Auditor) -> list[web.RouteDef]:
    api, actions = _ConsoleApi(services, auditor.audit), _Actions(services.operations, auditor)
    return [
        web.post("/api/v1/instances/{instance}/drain", actions.drain_instance),
        web.post("/api/v1/nodes/{node}/drain", actions.drain_node),
        web.delete("/api/v1/nodes/{node}/drain", actions.drain_node),
        web.delete("/api/v1/sessions/{session}", actions.end_session),
        web.delete("/api/v1/chat/users/{user}/connection", actions.disconnect),
        web.get("/api/v1/overview", api.overview),
        web.get("/api/v1/nodes", api.nodes),
        web.get("/api/v1/jobs", api.jobs),
        web.get("/api/v1/sessions", api.sessions),
        web.get("/api/v1/audit", api.audit),
        web.get("/api/v1/history", api.history),
    ]


class _ClusterApi:
    def __init__(self, context: HttpContext) -> None:
        self._context = context

    async def metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._context.registry)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def metrics_json(self, _: web.Request) -> web.Response:
        samples: dict[str, Any] = {}
        for family in self._context.registry.collect():
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        response = json(samples)
        response.headers["Dragoman-Instance"] = self._context.instance  # any worker of a shared port may answer
        return response

    async def cluster(self, _: web.Request) -> web.Response:
        return json(await self._context.report.cluster())

    async def stats(self, _: web.Request) -> web.Response:
        return json(self._context.stats())

    async def job(self, request: web.Request) -> web.Response:
        found = await self._context.jobs.get(request.match_info["job"])
        if found is None:
            return error("no such job, or it ended too long ago", 404)
        return json(readable(found))


class _ConsoleApi:
    def __init__(self, services: ConsoleServices, audit: Audit) -> None:
        self._services, self._audit = services, audit

    async def overview(self, _: web.Request) -> web.Response:
        return json(await self._services.report.overview())

    async def nodes(self, request: web.Request) -> web.Response:
        """`count` nodes in the order of their ids, from `after` on; `part` is in their id, instance or languages."""
        count, after, part = _page(request.query)
        return json(await self._services.report.nodes(count, after, part))

    async def sessions(self, request: web.Request) -> web.Response:
        """`count` sessions in the order of their ids, from `after` on; `part` is in their id."""
        count, after, part = _page(request.query)
        return json(await self._services.listings.sessions(count, after, part))

    async def jobs(self, request: web.Request) -> web.Response:
        """The newest jobs first; filters: `outcome` (or `open`), `node`, `session`, `since` (ms)."""
        query = request.query
        before, since = text_of(query, "before"), _since(query)
        if before and not _JOB_CURSOR.fullmatch(before):
            raise BadRequest("before is not a cursor of the list of jobs")
        filters = {"outcome": "outcome", "node_id": "node", "session_id": "session"}
        wanted = {field: text_of(query, name) for field, name in filters.items()}
        return json(await self._services.listings.jobs(count_of(query), before, wanted, since))

    async def history(self, request: web.Request) -> web.Response:
        """Rates and percentiles of the whole cluster over the last half hour, or from `since` (ms) on."""
        return json(await self._services.history.points(_since(request.query)))

    async def audit(self, request: web.Request) -> web.Response:
        """The newest changes first, or those `before` an entry."""
        count, before = count_of(request.query), text_of(request.query, "before")
        if before and not _STREAM_ID.fullmatch(before):
            raise BadRequest("before is not the id of an audit entry")
        found = await self._audit.list(count + 1, before)
        shown = [{**msgspec.to_builtins(entry), "at_ms": entry.at_ms} for entry in found[:count]]
        return json({"entries": shown, "next": shown[-1]["id"] if len(found) > count else ""})


def _page(query: Mapping[str, str]) -> tuple[int, str, str]:
    return count_of(query), text_of(query, "after"), text_of(query, "part")


def _since(query: Mapping[str, str]) -> int:
    since = text_of(query, "since") or "0"
    if not (since.isascii() and since.isdecimal() and len(since) <= 16):
        raise BadRequest("since is not a time in milliseconds")
    return int(since)


class _Actions:
    """What operators change. The response is sent when the owner has the request, before it has carried it out."""

    def __init__(self, operations: Operations, auditor: Auditor) -> None:
        self._operations, self._auditor = operations, auditor

    async def drain_instance(self, request: web.Request) -> web.Response:
        name = request.match_info["instance"]
        return await self._do(request, "instance.drain", name, self._operations.drain_instance(name), draining=True)

    async def drain_node(self, request: web.Request) -> web.Response:
        """POST drains it, DELETE ends that."""
        node, draining = request.match_info["node"], request.method == "POST"
        change = self._operations.drain_node(node, draining=draining)
        return await self._do(request, "node.drain" if draining else "node.undrain", node, change, draining=draining)

    async def end_session(self, request: web.Request) -> web.Response:
        session = request.match_info["session"]
        return await self._do(request, "session.end", session, self._operations.end_session(session), ended=True)

    async def disconnect(self, request: web.Request) -> web.Response:
        user = request.match_info["user"]
        if not (user.isascii() and user.isdecimal() and len(user) <= 19):
            raise BadRequest("the user id is not a number")
        change = self._operations.disconnect(int(user))
        return await self._do(request, "chat.disconnect", user, change, disconnected=True)

    async def _do(
        self, request: web.Request, action: str, target: str, change: Awaitable[None], **response: bool
    ) -> web.Response:
        try:
            await change
        except NotThere as why:
            return error(str(why), 404)
        await self._auditor.note(request, action, target)
        return json(response)


class _DeadLetterApi:
    def __init__(self, context: HttpContext) -> None:
        self._context = context

    async def list(self, request: web.Request) -> web.Response:
        """The `count` oldest letters of one `instance` or of all; with `after`, those that follow that letter."""
        letters, query = self._context.letters, request.query
        count, after, instance = count_of(query, "100", MAX_LETTERS), query.get("after", ""), query.get("instance")
        if after and not instance:
            raise BadRequest("after needs instance as well")
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
            verdict = await self._context.letters.replay(letter, self._context.instance)
        except CannotReplay as why:
            return error(f"it cannot be replayed, only dropped: {why}", 409)
        if verdict is not PushReply.OK:
            return error(f"it cannot be replayed now: {_WHY_NOT_REPLAYED[verdict]}", 409)
        await self._context.auditor.note(request, "dlq.replay", f"{letter.instance}/{letter.id}", letter.reason)
        return json({"replayed": True, "verdict": verdict})

    async def drop(self, request: web.Request) -> web.Response:
        instance, id = request.match_info["instance"], _letter_id(request.match_info["id"])
        if not await self._context.letters.drop(instance, id):
            return _no_letter()
        await self._context.auditor.note(request, "dlq.drop", f"{instance}/{id}")
        return json({"dropped": True})

    async def _find(self, request: web.Request) -> DeadLetter | None:
        return await self._context.letters.get(request.match_info["instance"], _letter_id(request.match_info["id"]))


def _letter_id(text: str) -> str:
    if not _STREAM_ID.fullmatch(text):
        raise BadRequest(f"{text[:50]!r} is not the id of a dead letter")
    return text


def _no_letter() -> web.Response:
    return error("no such dead letter", 404)


def _shown(letter: DeadLetter) -> dict[str, Any]:
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


def _preview(letter: DeadLetter) -> str:
    """The plain fields of its message. Speech and text are inside of objects and lists: of these it gives the size."""
    try:
        message = msgspec.json.decode(letter.data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"{len(letter.data)} unreadable bytes"
    shown = {name: f"{len(raw)} bytes" if bytes(raw)[:1] in b"[{" else raw for name, raw in message.items()}
    return msgspec.json.encode(shown)[:MAX_PREVIEW].decode(errors="replace")
