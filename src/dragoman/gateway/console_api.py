"""The console at `/console`, and what it asks beyond what commands ask.

The files hold nothing and are for anybody; what they show comes from here, for operators alone. Everything is read
from shared state, so any instance tells of the whole cluster, and a page at a time: nobody looks at 10,000 rows.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from aiohttp import web

from dragoman.gateway import pages
from dragoman.gateway.answers import Wrong, json
from dragoman.services.report import Report

MAX_PAGE: Final = 200
MAX_TEXT: Final = 200


class Seen(Protocol):
    """What the handlers need of the instance."""

    report: Report


def files() -> list[web.RouteDef]:
    return pages.static("console", at="/console")


def routes(seen: Seen) -> list[web.RouteDef]:
    api = _Api(seen)
    return [
        web.get("/api/v1/overview", api.overview),
        web.get("/api/v1/nodes", api.nodes),
    ]


class _Api:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def overview(self, _: web.Request) -> web.Response:
        return json(await self._seen.report.overview())

    async def nodes(self, request: web.Request) -> web.Response:
        """`count` of them, by id, `after` one; only those that have `part` in their id, instance or languages."""
        query = request.query
        return json(await self._seen.report.nodes(_count(query), _text(query, "after"), _text(query, "part")))


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
