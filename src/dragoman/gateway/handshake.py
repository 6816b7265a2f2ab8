"""The first request of a connection: parsed, checked, answered. Pure: bytes and values, no I/O.

Refusals are JSON, `{"error": "…"}`, and end the connection. No extension is ever negotiated: compression costs
45 to 150 KB per connection and lets a small frame inflate without bound.

An `Authorizer` sees the request before the upgrade is answered and may refuse it. Two rules are here because every
handshake needs them:

- Browsers let any page open a WebSocket to any host; only the Origin header says which page it was.
- Without a secret only this machine can reach the server, but a page from anywhere, opened in a browser on this
  machine, can as well: its own name points here (DNS rebinding), so its origin is ours. The name in Host reveals it. A
  proxy on this machine also lets others in, whatever Host it writes; the headers that proxies add reveal it. Where a
  token is required neither matters.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from types import MappingProxyType
from urllib.parse import parse_qsl

import structlog

from dragoman.domain.limits.connections import is_loopback
from dragoman.gateway.proxies import Peer, is_forwarded

_log = structlog.get_logger(__name__)

END_OF_HEAD = b"\r\n\r\n"

_NOTHING: Mapping[str, str] = MappingProxyType({})
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*\bwebsocket\b", re.IGNORECASE)
_MAX_HEADERS = 128
_MAX_QUERY_FIELDS = 32
_SHOWN_ORIGIN = 200  # characters
# The names that clients and proxies usually send: all connections share one copy. A strange name is not interned,
# because some versions of Python never free an interned string.
_KNOWN = {
    name: name
    for name in (
        *(
            "host",
            "connection",
            "upgrade",
            "origin",
            "authorization",
            "user-agent",
            "pragma",
            "cache-control",
            "cookie",
        ),
        *("sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol"),
        *("accept", "accept-encoding", "accept-language", "content-length", "forwarded", "via", "x-real-ip"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site"),
    )
}
# Two of one of these would let two readers of the request see two different ones.
_ONCE = frozenset({"host", "origin", "authorization", "sec-websocket-key", "sec-websocket-version", "content-length"})


@dataclass(frozen=True, slots=True)
class Request:
    """An upgrade request. Header names are in lower case; repeated headers are joined with a comma."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    peer: tuple[str, int]  # behind trusted proxies the client's
    proxy: str = ""  # the trusted proxy whose header named the peer


@dataclass(frozen=True, slots=True)
class Reject:
    """A refusal: `body` is the sentence that becomes `{"error": body}`, or, `plain`, a word that clients know."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    plain: bool = False

    def to_bytes(self) -> bytes:
        body = self.body if self.plain else json.dumps({"error": self.body}, separators=(",", ":"))
        fields = {
            "Content-Type": "text/plain" if self.plain else "application/json",
            "Content-Length": str(len(body.encode())),
            "Connection": "close",
            **self.headers,
        }
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join(lines).encode("latin-1") + END_OF_HEAD + body.encode()


Authorizer = Callable[[Request], Reject | None]


def wants_websocket(head: bytes) -> bool:
    return _UPGRADE.search(head) is not None


def parse(head: bytes, peer: tuple[str, int]) -> Request | Reject:
    """Read a request head (up to, without, the empty line)."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    words = request_line.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1" or _CONTROLS.search(request_line):
        return Reject(400, "the request line is not that of an HTTP/1.1 request")
    headers = _parse_headers(lines)
    if isinstance(headers, Reject):
        return headers
    path, _, search = words[1].partition("?")
    try:
        query = (
            dict(parse_qsl(search, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)) if search else _NOTHING
        )
    except ValueError:
        return Reject(400, f"the query has more than {_MAX_QUERY_FIELDS} fields")
    return Request(words[0], path, query, headers, peer)


def _parse_headers(lines: list[str]) -> dict[str, str] | Reject:
    if len(lines) > _MAX_HEADERS:
        return Reject(431, f"the request has more than {_MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not colon or not _TOKEN.fullmatch(name) or _CONTROLS.search(value):
            return Reject(400, "the request has a malformed header")
        name = name.lower()
        name = _KNOWN.get(name, name)
        if name in headers:
            if name in _ONCE:
                return Reject(400, f"the request has more than one {name} header")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def accept(request: Request) -> bytes | Reject:
    """The 101 answer to a correct upgrade request, or why it is not one."""
    headers = request.headers
    if request.method != "GET":
        return Reject(405, "a WebSocket is opened with GET", {"Allow": "GET"})
    # A browser may say `keep-alive, Upgrade`; a proxy may add words of its own.
    if "upgrade" not in {word.strip().lower() for word in headers.get("connection", "").split(",")}:
        return Reject(400, "the Connection header does not say Upgrade")
    if "host" not in headers:
        return Reject(400, "the Host header is missing")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        return Reject(400, "an upgrade request carries no body")
    if headers.get("sec-websocket-version") != "13":
        return Reject(426, "WebSocket version 13 is spoken here", {"Sec-WebSocket-Version": "13"})
    key = headers.get("sec-websocket-key", "")
    if not _is_nonce(key):
        return Reject(400, "the Sec-WebSocket-Key header is missing or not 16 bytes of base64")
    digest = base64.b64encode(hashlib.sha1(key.encode("ascii") + _GUID).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + digest
        + END_OF_HEAD
    )


def _is_nonce(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


class OriginAllowList:
    """An `Authorizer`: accepts requests without an Origin (apps, nodes), pages of this host, and listed origins.

    `*` in the list is any origin. *This host* is what the request's own Host header says. `also` may accept the host
    and port of further origins.
    """

    def __init__(self, origins: Iterable[str] = (), also: Callable[[str], bool] = lambda page: False) -> None:
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._also = also

    def __call__(self, request: Request) -> Reject | None:
        origin = request.headers.get("origin")
        if origin is None or "*" in self._origins:
            return None
        origin = origin.lower()
        page = origin.partition("://")[2]  # "" for `null`, the Origin of sandboxed pages and files
        if origin in self._origins:
            return None
        if page and (page == request.headers.get("host", "").lower() or self._also(page)):
            return None
        shown = origin[:_SHOWN_ORIGIN]
        return Reject(
            403, f"pages from the origin {shown} may not connect; server.allowed_origins lists those that may"
        )


HOST_REFUSED = (
    "where no secret is set this server answers to localhost, 127.0.0.1 and [::1] only; set security.secret to use "
    "another name"
)
ADMIN_HOST_REFUSED = (
    "the admin port answers to localhost, 127.0.0.1 and [::1] only, because it asks nobody for a token; set "
    "server.admin_host to the address by which others are to reach it"
)
PROXIED_REFUSED = (
    "this request came through a proxy, and where no secret is set only this machine is served: set security.secret; "
    "or, for a proxy that only this machine uses, name it in server.trusted_proxies"
)


def is_loopback_host(host: str) -> bool:
    """`host` as it stands in a request, with a port or without; a request without one is no browser's."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if name in ("", "localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def loopback_hosts_only(request: Request) -> Reject | None:
    """An `Authorizer`."""
    return None if is_loopback_host(request.headers.get("host", "")) else Reject(421, HOST_REFUSED)


def is_local(peer: Peer, header_names: Iterable[str]) -> bool:
    """Whether the request was made on this machine, as far as one can tell: no proxy passed it on for somebody else."""
    return is_loopback(peer.address) and (bool(peer.proxy) or not is_forwarded(header_names))


def local_requests_only(request: Request) -> Reject | None:
    """An `Authorizer`."""
    peer = Peer(*request.peer, request.proxy)
    return None if is_local(peer, request.headers) else Reject(403, PROXIED_REFUSED)


def log_refusals(check: Authorizer) -> Authorizer:
    """`check`, an `Authorizer` of origins, with a line in the log for what it refuses."""

    def checked(request: Request) -> Reject | None:
        refusal = check(request)
        if refusal is not None:
            _log.warning(
                "refused a page: its origin is not allowed",
                origin=request.headers.get("origin", "")[:_SHOWN_ORIGIN],
                path=request.path,
                peer=request.peer[0],
                setting="server.allowed_origins",
                limited=True,
            )
        return refusal

    return checked
