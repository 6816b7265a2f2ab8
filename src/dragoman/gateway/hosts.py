"""Whom this server answers where nobody is asked for a token, and the log of pages that may not connect.

Without a token only this machine can reach it, but a page from anywhere, opened in a browser on this machine, can: it
lets its own name point here (DNS rebinding), and is of the same origin as we are. The name in Host reveals it. Where a
token is asked for that name does not matter, since such a page has none.

A proxy on this machine lets others reach it as well, whatever Host it writes. The headers that proxies add reveal it.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

import structlog

from dragoman.domain.limits.connections import is_loopback
from dragoman.gateway.handshake import Authorizer, Reject, Request
from dragoman.gateway.proxies import Peer, is_forwarded

_MAX_LOGGED: Final = 200  # characters of an origin
_log = structlog.get_logger(__name__)

WHY = (
    "where no secret is set this server answers to localhost, 127.0.0.1 and [::1] only; set security.secret to use "
    "another name"
)
WHY_ADMIN = (
    "the admin port answers to localhost, 127.0.0.1 and [::1] only, because it asks nobody for a token; set "
    "server.admin_host to the address by which others are to reach it"
)
WHY_NOT_FORWARDED = (
    "this request came through a proxy, and where no secret is set only this machine is served: set security.secret; "
    "or, for a proxy that only this machine uses, name it in server.trusted_proxies"
)


def is_ours(host: str) -> bool:
    """`host` as it stands in a request, with a port or without; a request without one is no browser's."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if name in ("", "localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def own_names_only(request: Request) -> Reject | None:
    """An `Authorizer`."""
    return None if is_ours(request.headers.get("host", "")) else Reject(421, WHY)


def is_from_here(peer: Peer, header_names: Iterable[str]) -> bool:
    """Whether the request was made on this machine, as far as one can tell: no proxy passed it on for somebody else."""
    return is_loopback(peer.address) and (bool(peer.proxy) or not is_forwarded(header_names))


def own_requests_only(request: Request) -> Reject | None:
    """An `Authorizer`."""
    peer = Peer(*request.peer, request.proxy)
    return None if is_from_here(peer, request.headers) else Reject(403, WHY_NOT_FORWARDED)


def logged(check: Authorizer) -> Authorizer:
    """`check`, an `Authorizer` of origins, with a line in the log for what it refuses."""

    def checked(request: Request) -> Reject | None:
        refusal = check(request)
        if refusal is not None:
            _log.warning(
                "refused a page: its origin is not allowed",
                origin=request.headers.get("origin", "")[:_MAX_LOGGED],
                path=request.path,
                peer=request.peer[0],
                setting="server.allowed_origins",
                limited=True,
            )
        return refusal

    return checked
