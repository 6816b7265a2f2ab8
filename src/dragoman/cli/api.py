"""The HTTP API of a running server, for the commands that use it. Any instance answers for the whole cluster."""

import json
from collections.abc import Callable
from functools import update_wrapper
from http.client import HTTPException
from inspect import Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

import typer

from dragoman.cli import output
from dragoman.cli.output import Failure
from dragoman.cli.settings import ConfigFile, Overrides, authority, http_url, is_loopback, option, settings
from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.config import Config

TIMEOUT_S = 10.0
NOT_CHANGED = "Nothing was changed. Repeat the command with --yes to do it."
A = TypeVar("A")
R = TypeVar("R")

Url = Annotated[
    str | None, option("--url", metavar="URL", help="Address of the server. [http://server.host:server.port]")
]
Token = Annotated[
    str | None,
    option(
        "--token",
        metavar="TOKEN",
        envvar="DRAGOMAN_OPERATOR_TOKEN",
        help="Operator token, needed if security.secret is set. [$DRAGOMAN_OPERATOR_TOKEN]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's answer as JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Make the change; without it, only print what would be done.")]


class Refusal(Failure):
    """The server answered with an error."""


class Api:
    def __init__(self, config: "Config", url: str | None, token: str | None) -> None:
        self.base = http_url(url) if url else f"http://{authority(config.server.host, config.server.port)}"
        self._token = token
        self._opener = _opener(self.base)

    def get(self, path: str) -> dict[str, Any]:
        return self._object("GET", path)

    def get_bytes(self, path: str) -> bytes:
        return self._send("GET", path)

    def get_list(self, path: str) -> list[dict[str, Any]]:
        answer = self._request("GET", path)
        if not isinstance(answer, list):
            raise self._not_dragoman()
        return answer

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._object("POST", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        return self._object("DELETE", path)

    def _object(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._request(method, path, body)
        if not isinstance(answer, dict):
            raise self._not_dragoman()
        return answer

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            return json.loads(self._send(method, path, body))
        except ValueError:
            raise self._not_dragoman() from None

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            request = Request(f"{self.base}{path}", data, method=method, headers=headers)
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return bytes(response.read())
        except HTTPError as error:
            raise self._refusal(error) from None
        except (URLError, OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise Failure(
                f"Dragoman does not answer at {self.base} ({visible(why)}). Start it, or give its address with --url."
            ) from None

    def _not_dragoman(self) -> Failure:
        return Failure(f"The server at {self.base} is not Dragoman. Give the address of Dragoman with --url.")

    def _refusal(self, error: HTTPError) -> Failure:
        try:
            sentence = visible(json.loads(error.read())["error"])
        except (ValueError, KeyError, TypeError, OSError, HTTPException):
            return self._not_dragoman()
        hint = " Give one with --token." if error.code == 401 else ""
        return Refusal(f"Dragoman answers: {sentence}.{hint}")


def _opener(base: str) -> OpenerDirector:
    """Ignores the proxy of the environment for a server on this machine."""
    return build_opener(ProxyHandler({})) if is_loopback(base) else build_opener()


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def passing(make: Callable[..., A]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Pass what `make` returns to a command as its first argument. The options of `make` follow the command's own."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        context, *common = signature(make).parameters.values()
        _, *own = signature(command).parameters.values()
        names = [one.name for one in common]

        def run(ctx: typer.Context, **given: Any) -> R:
            return command(make(ctx, **{name: given.pop(name) for name in names}), **given)

        parameters = [context, *own, *common]
        update_wrapper(run, command)
        # typer reads both.
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


@passing
def with_api(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
) -> Api:
    """Decorates a command that gets an `Api`, and has the options --config, --set, --url and --token."""
    return Api(settings(ctx, config, override).config, url, token)


def change(yes: bool, action: str, send: Callable[[], object], done: str) -> None:
    """Send a change if the operator gave --yes; otherwise print the `action` that it would take."""
    if yes:
        send()
        output.line(done)
    else:
        output.line(f"would {action}")
        output.line(NOT_CHANGED)
