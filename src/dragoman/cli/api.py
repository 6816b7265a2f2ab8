"""A running Dragoman's API, for commands that ask it. Any instance answers for the whole cluster."""

import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

import typer

from dragoman.cli.address import authority
from dragoman.cli.failure import USAGE, Failure
from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.config import Config

PATIENCE_S = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Where Dragoman is. [http://server.host:server.port]", show_default=False
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="DRAGOMAN_OPERATOR_TOKEN",
        help="Operator credential, where security.secret is set. [$DRAGOMAN_OPERATOR_TOKEN]",
        show_default=False,
        show_envvar=False,
    ),
]


class Refusal(Failure):
    """Dragoman answered, with a no."""


class Api:
    def __init__(self, config: "Config", url: str | None, token: str | None) -> None:
        self.base = _base(url) if url else f"http://{authority(config.server.host, config.server.port)}"
        self._token = token
        self._opener = _opener(self.base)

    def get(self, path: str) -> dict[str, Any]:
        return self._object("GET", path)

    def get_list(self, path: str) -> list[dict[str, Any]]:
        told = self._ask("GET", path)
        if not isinstance(told, list):
            raise self._stranger()
        return told

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._object("POST", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        return self._object("DELETE", path)

    def _object(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        told = self._ask(method, path, body)
        if not isinstance(told, dict):
            raise self._stranger()
        return told

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            request = Request(f"{self.base}{path}", data, method=method, headers=headers)
            with self._opener.open(request, timeout=PATIENCE_S) as answer:
                told = answer.read()
        except HTTPError as error:
            raise self._refusal(error) from None
        except (URLError, OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise Failure(f"No Dragoman answers at {self.base} ({visible(why)}): is it running? Try --url.") from None
        try:
            return json.loads(told)
        except ValueError:
            raise self._stranger() from None

    def _stranger(self) -> Failure:
        return Failure(f"What answers at {self.base} is not Dragoman. Try --url.")

    def _refusal(self, error: HTTPError) -> Failure:
        try:
            sentence = visible(json.loads(error.read())["error"])
        except (ValueError, KeyError, TypeError, OSError, HTTPException):
            return self._stranger()
        hint = " Give one with --token." if error.code == 401 else ""
        return Refusal(f"Dragoman says: {sentence}.{hint}")


def _base(url: str) -> str:
    """`localhost:5010` is enough; what is no address of a server is refused before it is asked."""
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not full.isprintable() or " " in full:
        raise Failure(f"--url {url!r} is not an address like http://127.0.0.1:5010.", USAGE)
    return full.rstrip("/")


def _opener(base: str) -> OpenerDirector:
    """A proxy that the environment names is for others, not for this machine."""
    return build_opener(ProxyHandler({})) if urlsplit(base).hostname in LOOPBACK else build_opener()
