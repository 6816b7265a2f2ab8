"""Noticing a taken port before the workers share it.

Workers bind with SO_REUSEPORT, with which a second Dragoman on the same port would be let in and get every other
connection. So the port is first bound without it, and closed again.
"""

import errno
import os
import socket

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class PortError(Exception):
    """The port cannot be used; `str()` is one sentence for the operator."""


def probe_port(host: str, port: int) -> int:
    """The port if it can be bound on every address of `host`; for 0, one that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise PortError(f"server.host {host!r} is not an address that can be listened on: {error}.") from error
    absent: OSError | None = None
    bound = 0
    for family, kind, protocol, _, address in found:
        try:
            bound = _bind_once(family, kind, protocol, (address[0], bound or port, *address[2:]))
        except OSError as error:
            # A name may stand for an IPv6 address where there is no IPv6: one address that works is enough.
            if error.errno not in _ABSENT:
                raise PortError(_sentence(host, bound or port, error)) from error
            absent = error
    if absent is not None and not bound:
        raise PortError(_sentence(host, port, absent)) from absent
    return bound


def _bind_once(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> int:
    with socket.socket(family, kind, protocol) as probe:
        # Connections that ended a moment ago do not count as taken; a socket that listens does all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(address)
        # A bound socket that does not listen is no obstacle to SO_REUSEADDR: only listening tells for sure.
        probe.listen(1)
        return int(probe.getsockname()[1])


def _sentence(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"Port {port} on {host} is taken by another program: stop that one, or choose another in server.port."
            )
        case errno.EACCES:
            return f"Port {port} on {host} is not ours to take: choose one above 1023 in server.port."
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            return f"This machine does not have the address {host}: change server.host."
        case number:
            return (
                f"Port {port} on {host} cannot be used ({os.strerror(number or 0)}): change server.host or server.port."
            )
