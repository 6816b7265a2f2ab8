"""How much one address may take of what all share: sockets, and places in the anteroom.

Without it one machine could take all of them. Loopback does not count: there a proxy speaks for everybody.
"""

from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address

from dragoman.gateway.handshake import Reject, Request

RETRY_AFTER_S = 5


def is_here(address: str) -> bool:
    """Whether it is this machine; also as IPv4 written in IPv6, as a socket for both tells it."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return not address  # a Unix socket
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


class Addresses:
    """Counts, by address; none is kept for an address that has nothing."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, address: str) -> int:
        return self._counts.get(address, 0)

    def add(self, address: str) -> None:
        self._counts[address] += 1

    def drop(self, address: str) -> None:
        self._counts[address] -= 1
        if self._counts[address] <= 0:
            del self._counts[address]


class Crowd:
    """An `Authorizer`: an address has so many sockets at a time; 0 for any number."""

    def __init__(self, most: int, sockets_of: Callable[[str], int], exempt: Callable[[str], bool] = is_here) -> None:
        self._most, self._sockets_of, self._exempt = most, sockets_of, exempt

    def __call__(self, request: Request) -> Reject | None:
        address = request.peer[0]
        if not self._most or self._sockets_of(address) < self._most or self._exempt(address):
            return None
        return Reject(429, "too many connections from this address", {"Retry-After": str(RETRY_AFTER_S)})
