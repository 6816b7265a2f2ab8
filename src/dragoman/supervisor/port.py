"""Checks that the port is free before the workers share it.

Workers bind with SO_REUSEPORT, so a second Dragoman on the same port would get a part of the connections. The check
binds the port without that option, and closes it again.
"""

import errno
import os
import socket

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class PortError(Exception):
    """The port cannot be used; `str()` is one sentence for the operator."""


def probe_port(host: str, port: int) -> int:
    """The port, if it can be bound on every address of `host`; for 0, a free port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise PortError(f"server.host {host!r} is not an address to listen on: {error}.") from error
    absent: OSError | None = None
    bound = 0
    for family, kind, protocol, _, address in found:
        try:
            bound = _bind_once(family, kind, protocol, (address[0], bound or port, *address[2:]))
        except OSError as error:
            # A name may have an IPv6 address on a machine without IPv6: one address that works is enough.
            if error.errno not in _ABSENT:
                raise PortError(_sentence(host, bound or port, error)) from error
            absent = error
    if absent is not None and not bound:
        raise PortError(_sentence(host, port, absent)) from absent
    return bound


def _bind_once(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> int:
    with socket.socket(family, kind, protocol) as probe:
        # Ignores connections that have just ended, but not a socket that listens.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(address)
        # With SO_REUSEADDR, bind succeeds beside another bound socket; listen does not.
        probe.listen(1)
        return int(probe.getsockname()[1])


def _sentence(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} on {host} is taken by another program. Stop that program, or set another server.port."
        case errno.EACCES:
            return f"Port {port} on {host} needs root. Set server.port to a number above 1023."
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            return f"This machine does not have the address {host}. Set another server.host."
        case number:
            reason = os.strerror(number or 0)
            return f"Port {port} on {host} cannot be used ({reason}). Set another server.host or server.port."
