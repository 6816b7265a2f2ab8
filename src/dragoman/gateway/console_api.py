"""The console at `/console`, and what it asks beyond what commands ask.

The files hold nothing and are for anybody; what they show comes from here, for operators alone. Everything is read
from shared state, so any instance tells of the whole cluster, and a page at a time: nobody looks at 10,000 rows.
"""

import re
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
from aiohttp import web

from dragoman.gateway import pages
from dragoman.gateway.answers import Wrong, json
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


def files() -> list[web.RouteDef]:
    return pages.static("console", at="/console")


def routes(seen: Seen, audit: Audit) -> list[web.RouteDef]:
    api = _Api(seen, audit)
    return [
        web.get("/api/v1/overview", api.overview),
        web.get("/api/v1/nodes", api.nodes),
        web.get("/api/v1/jobs", api.jobs),
        web.get("/api/v1/sessions", api.sessions),
        web.get("/api/v1/audit", api.audit),
    ]


class _Api:
    def __init__(self, seen: Seen, audit: Audit) -> None:
        self._seen, self._audit = seen, audit

    async def overview(self, _: web.Request) -> web.Response:
        return json(await self._seen.report.overview())

    async def nodes(self, request: web.Request) -> web.Response:
        """`count` of them, by id, `after` one; only those that have `part` in their id, instance or languages."""
        query = request.query
        return json(await self._seen.report.nodes(_count(query), _text(query, "after"), _text(query, "part")))

    async def jobs(self, request: web.Request) -> web.Response:
        """The last ones, the newest first: of an `outcome` (or `open`), a `node`, a `session`, `since` (ms)."""
        query = request.query
        before, since = _text(query, "before"), _text(query, "since") or "0"
        if before and not _JOB_PLACE.fullmatch(before):
            raise Wrong("before is not a place in the list of jobs")
        if not (since.isascii() and since.isdecimal() and len(since) <= 16):
            raise Wrong("since is not a time in milliseconds")
        asked = {"outcome": "outcome", "node_id": "node", "session_id": "session"}
        wanted = {field: _text(query, name) for field, name in asked.items()}
        return json(await self._seen.register.jobs(_count(query), before, wanted, int(since)))

    async def sessions(self, request: web.Request) -> web.Response:
        """`count` of them, by id, `after` one; only those that have `part` in their id."""
        query = request.query
        return json(await self._seen.register.sessions(_count(query), _text(query, "after"), _text(query, "part")))

    async def audit(self, request: web.Request) -> web.Response:
        """What operators changed, the newest first, or what was `before` an entry."""
        count, before = _count(request.query), _text(request.query, "before")
        if before and not _AUDIT_ID.fullmatch(before):
            raise Wrong("before is not the id of an entry")
        found = await self._audit.list(count + 1, before)
        shown = [{**msgspec.to_builtins(entry), "at_ms": entry.at_ms} for entry in found[:count]]
        return json({"entries": shown, "next": shown[-1]["id"] if len(found) > count else ""})


def _count(query: Mapping[str, str]) -> int:
    text = query.get("count", "50")
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_PAGE):
        raise Wrong(f"count is not a number from 1 to {MAX_PAGE}")
    return int(text)


def _text(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "").strip()
    if len(text) > MAX_TEXT:
        raise Wrong(f"{name} is longer than {MAX_TEXT} characters")
    return text
