"""Answers of the operators' API: JSON, and one sentence for what cannot be answered."""

from typing import Any

import msgspec
from aiohttp import web


class Wrong(Exception):
    """The request cannot be answered as it was asked; `str()` says why."""


def json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def error(sentence: str, status: int) -> web.Response:
    return json({"error": sentence}, status)
