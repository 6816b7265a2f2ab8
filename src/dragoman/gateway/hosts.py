"""Which names this server answers to where nobody is asked for a token.

Then only this machine can reach it, but a page from anywhere, opened in a browser on this machine, can: it lets its own
name point here (DNS rebinding), and is of the same origin as we are. Its name gives it away: it stands in Host. Where a
token is asked for that name does not matter, since such a page has none.
"""

from ipaddress import ip_address

from dragoman.gateway.handshake import Reject, Request

WHY = (
    "where no secret is set this server answers to localhost, 127.0.0.1 and [::1] only; set security.secret to use "
    "another name"
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
