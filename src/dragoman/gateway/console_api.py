"""The console at `/console`, and what it asks and does beyond what commands ask.

The files hold nothing and are for anybody; what they show comes from here, for operators alone. Everything is read
from shared state, so any instance tells of the whole cluster, and a page at a time: nobody looks at 10,000 rows.
"""

import re
from collections.abc import Awaitable, Mapping
from typing import Final, Protocol

import msgspec
from aiohttp import web

from dragoman.gateway import pages
from dragoman.gateway.auditing import Auditor
from dragoman.gateway.http_messages import Wrong, error, json
from dragoman.services.history import History
from dragoman.services.operations import NotThere, Operations
from dragoman.services.register import Register
from dragoman.services.report import Report
from dragoman.store.audit import Audit

MAX_PAGE: Final = 200
MAX_TEXT: Final = 200
_JOB_PLACE: Final = re.compile(r"[0-9]{1,16}\|.+")
_AUDIT_ID: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


class Seen(Protocol):
    """What the handlers need of the instance."""

    report: Report
    register: Register
    history: History
    operations: Operations


def files() -> list[web.RouteDef]:
    return pages.static("console", at="/console")


def routes(seen: Seen, auditor: Auditor) -> list[web.RouteDef]:
    api, actions = _Api(seen, auditor.audit), _Actions(seen.operations, auditor)
    return [
        web.post("/api/v1/instances/{instance}/drain", actions.drain_instance),
        web.post("/api/v1/nodes/{node}/drain", actions.drain_node),
        web.delete("/api/v1/nodes/{node}/drain", actions.undrain_node),
        web.delete("/api/v1/sessions/{session}", actions.end_session),
        web.delete("/api/v1/chat/users/{user}/connection", actions.disconnect),
        web.get("/api/v1/overview", api.overview),
        web.get("/api/v1/nodes", api.nodes),
        web.get("/api/v1/jobs", api.jobs),
        web.get("/api/v1/sessions", api.sessions),
        web.get("/api/v1/audit", api.audit),
        web.get("/api/v1/history", api.history),
    ]


class _Api:
    def __init__(self, seen: Seen, audit: Audit) -> None:
        self._seen, self._audit = seen, audit

    async def overview(self, _: web.Request) -> web.Response:
        return json(await self._seen.report.overview())

    async def nodes(self, request: web.Request) -> web.Response:
        """`count` of them, by id, `after` one; only those that have `part` in their id, instance or languages."""
        query = request.query
        return json(await self._seen.report.nodes(count_of(query), text_of(query, "after"), text_of(query, "part")))

    async def jobs(self, request: web.Request) -> web.Response:
        """The last ones, the newest first: of an `outcome` (or `open`), a `node`, a `session`, `since` (ms)."""
        query = request.query
        before, since = text_of(query, "before"), _since(query)
        if before and not _JOB_PLACE.fullmatch(before):
            raise Wrong("before is not a place in the list of jobs")
        asked = {"outcome": "outcome", "node_id": "node", "session_id": "session"}
        wanted = {field: text_of(query, name) for field, name in asked.items()}
        return json(await self._seen.register.jobs(count_of(query), before, wanted, since))

    async def sessions(self, request: web.Request) -> web.Response:
        """`count` of them, by id, `after` one; only those that have `part` in their id."""
        query = request.query
        return json(
            await self._seen.register.sessions(count_of(query), text_of(query, "after"), text_of(query, "part"))
        )

    async def history(self, request: web.Request) -> web.Response:
        """Rates and percentiles of the whole cluster over the last half hour, or from `since` (ms) on."""
        return json(await self._seen.history.told(_since(request.query)))

    async def audit(self, request: web.Request) -> web.Response:
        """What operators changed, the newest first, or what was `before` an entry."""
        count, before = count_of(request.query), text_of(request.query, "before")
        if before and not _AUDIT_ID.fullmatch(before):
            raise Wrong("before is not the id of an entry")
        found = await self._audit.list(count + 1, before)
        shown = [{**msgspec.to_builtins(entry), "at_ms": entry.at_ms} for entry in found[:count]]
        return json({"entries": shown, "next": shown[-1]["id"] if len(found) > count else ""})


class _Actions:
    """What operators do. Answered when the owner has the request, not when it has carried it out."""

    def __init__(self, operations: Operations, auditor: Auditor) -> None:
        self._operations, self._auditor = operations, auditor

    async def drain_instance(self, request: web.Request) -> web.Response:
        name = request.match_info["instance"]
        return await self._do(request, "instance.drain", name, self._operations.drain_instance(name), draining=True)

    async def drain_node(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        doing = self._operations.drain_node(node, draining=True)
        return await self._do(request, "node.drain", node, doing, draining=True)

    async def undrain_node(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        doing = self._operations.drain_node(node, draining=False)
        return await self._do(request, "node.undrain", node, doing, draining=False)

    async def end_session(self, request: web.Request) -> web.Response:
        session = request.match_info["session"]
        return await self._do(request, "session.end", session, self._operations.end_session(session), ended=True)

    async def disconnect(self, request: web.Request) -> web.Response:
        user = request.match_info["user"]
        if not (user.isascii() and user.isdecimal() and len(user) <= 19):
            raise Wrong("the user is not a user id")
        doing = self._operations.disconnect(int(user))
        return await self._do(request, "chat.disconnect", user, doing, disconnected=True)

    async def _do(
        self, request: web.Request, action: str, target: str, doing: Awaitable[None], **done: bool
    ) -> web.Response:
        try:
            await doing
        except NotThere as why:
            return error(str(why), 404)
        await self._auditor.note(request, action, target)
        return json(done)


def count_of(query: Mapping[str, str]) -> int:
    text = query.get("count", "50")
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_PAGE):
        raise Wrong(f"count is not a number from 1 to {MAX_PAGE}")
    return int(text)


def _since(query: Mapping[str, str]) -> int:
    since = text_of(query, "since") or "0"
    if not (since.isascii() and since.isdecimal() and len(since) <= 16):
        raise Wrong("since is not a time in milliseconds")
    return int(since)


def text_of(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "").strip()
    if len(text) > MAX_TEXT:
        raise Wrong(f"{name} is longer than {MAX_TEXT} characters")
    return text
