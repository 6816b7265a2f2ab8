"""A running Dragoman's API, for commands that ask it. Any instance answers for the whole cluster."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import typer

from dragoman.cli.failure import Failure

if TYPE_CHECKING:
    from dragoman.config import Config

Url = Annotated[
    str | None,
    typer.Option("--url", help="Where Dragoman is. [http://server.host:server.port]", show_default=False),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="DRAGOMAN_OPERATOR_TOKEN", help="Operator credential.", show_default=False),
]


class Api:
    def __init__(self, config: "Config", url: str | None, token: str | None) -> None:
        host = "127.0.0.1" if config.server.host in ("0.0.0.0", "::") else config.server.host
        self.base = (url or f"http://{host}:{config.server.port}").rstrip("/")
        self._token = token

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def post(self, path: str) -> Any:
        return self._ask("POST", path)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def _ask(self, method: str, path: str) -> Any:
        headers: Mapping[str, str] = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = Request(f"{self.base}{path}", method=method, headers=dict(headers))
        try:
            with urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise Failure(f"Dragoman says: {_reason(error)}.", 1) from None
        except (URLError, OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise Failure(f"No Dragoman answers at {self.base} ({why}): is it running? Try --url.", 1) from None


def _reason(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"
