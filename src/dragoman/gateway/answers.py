"""Answers of the operators' API: JSON, and one sentence for what cannot be answered."""

from typing import Any

import msgspec
from aiohttp import web

from dragoman.store.errors import StoreError


class Wrong(Exception):
    """The request cannot be answered as it was asked; `str()` says why."""


def json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def redis_away(why: StoreError) -> str:
    """For an operator: a Redis that loads its data after a restart comes back by itself."""
    if "LOADING" in str(why):
        return "Redis was restarted and is loading its data; it answers when that is done, usually within 2 s"
    return f"Redis is away: {why}"


def error(sentence: str, status: int) -> web.Response:
    return json({"error": sentence}, status)
