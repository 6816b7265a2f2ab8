"""The configuration of a command, and the addresses of servers.

`--config` and `--set` are accepted before and after the name of a command. A command that needs the configuration
declares both options with the types below, and calls `settings` once:

    def serve(ctx: typer.Context, config: ConfigFile = None, override: Overrides = None, port: … = None) -> None:
        loaded = settings(ctx, config, override, {"server.port": port})

An invalid configuration ends the command and lists every problem.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

import typer

from dragoman.cli.output import USAGE, Failure

if TYPE_CHECKING:
    from dragoman.config import Loaded


def option(*names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    """An option whose help text says what its default is, if it has one."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, show_envvar=False, **more)


VARIABLE = "DRAGOMAN_CONFIG"
DEFAULT_FILE = Path("config.toml")

ConfigFile = Annotated[
    Path | None,
    option(
        "--config",
        metavar="FILE",
        help=f"Read settings from this file. [${VARIABLE}, or ./{DEFAULT_FILE} if there is one]",
    ),
]
Overrides = Annotated[
    list[str] | None, option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated.")
]


@dataclass(frozen=True, slots=True)
class Before:
    """The options before the name of the command."""

    config: Path | None
    overrides: tuple[str, ...]


def settings(
    ctx: typer.Context,
    config: Path | None = None,
    override: Sequence[str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> "Loaded":
    """Load the configuration. `flags` are options of the command by the key of their setting; None is not given."""
    from dragoman.config import ConfigError, load_with_sources

    before = ctx.find_object(Before) or Before(None, ())
    chosen = _file(config or before.config, os.environ)
    given: dict[str, object] = dict(map(_pair, (*before.overrides, *(override or ()))))
    _refuse_secrets(given)
    given.update({key: value for key, value in (flags or {}).items() if value is not None})
    try:
        return load_with_sources(chosen, os.environ, given)
    except ConfigError as error:
        raise Failure(str(error), USAGE) from None


def _file(asked: Path | None, env: Mapping[str, str]) -> Path | None:
    if asked is not None:
        return asked
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _refuse_secrets(given: Mapping[str, object]) -> None:
    """Every user of the machine can read a command line, and the history of the shell keeps it."""
    from dragoman.config.catalog import SETTINGS

    for setting in (SETTINGS[key] for key in given if key in SETTINGS):
        if setting.secret:
            raise Failure(
                f"{setting.key} is not accepted with --set, where other users can read it. Put it into the "
                f"configuration file, or into {setting.variable}.",
                USAGE,
            )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Failure("--set takes KEY=VALUE, as in --set speech.pause_ms=2500.", USAGE)
    return key.strip(), value


# -- address ---------------------------------------------------------------------------------------
#
# Addresses of a server: where a command finds the configured one, and how it reads `--url`.


ALL_INTERFACES: Final = ("0.0.0.0", "::", "")
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
HTTP: Final = {"": "http", "http": "http", "https": "https", "ws": "http", "wss": "https"}
WEBSOCKET: Final = {"": "ws", "ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def authority(host: str, port: int) -> str:
    """`host:port` for a URL on this machine: a server on all interfaces is reached on the loopback."""
    reachable = "127.0.0.1" if host in ALL_INTERFACES else host
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def http_url(url: str) -> str:
    """The base of the HTTP API, from `host:port`, an HTTP URL or the URL of the chat's WebSocket."""
    parts = parse(url, HTTP, "http://127.0.0.1:5010")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ws')}"


def session_url(url: str) -> str:
    """The WebSocket for speech, from `host:port`, an HTTP URL or a WebSocket URL; without a path, the usual one."""
    return _websocket(url, "/ws/session")


def node_url(url: str) -> str:
    """The WebSocket for nodes, from the same."""
    return _websocket(url, "/ws/node")


def _websocket(url: str, usual_path: str) -> str:
    parts = parse(url, WEBSOCKET, "ws://127.0.0.1:5010")
    return parts._replace(path=parts.path if parts.path.strip("/") else usual_path, fragment="").geturl()


def parse(url: str, schemes: dict[str, str], example: str) -> SplitResult:
    """The parts of `--url`. `schemes` maps the accepted schemes to the one to use; "" accepts `host:port`."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise Failure(f"--url {url!r} is not an address like {example}.", USAGE)
    return parts._replace(scheme=schemes[parts.scheme])
