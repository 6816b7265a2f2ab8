"""Addresses of a server: where a command finds the configured one, and how it reads `--url`."""

from typing import Final
from urllib.parse import SplitResult, urlsplit

from dragoman.cli.output import USAGE, Failure

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
    parts = parse(url, WEBSOCKET, "ws://127.0.0.1:5010")
    return parts._replace(path=parts.path if parts.path.strip("/") else "/ws/session", fragment="").geturl()


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
