"""How many connections of one kind an address may have.

Three kinds are counted, each by an object of its own: WebSockets, HTTP connections, and connections that have not
opened a session yet. Loopback is exempt: there a local proxy may connect for everybody.
"""

from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

SHARE_OF_ADDRESS: Final = 4  # an address has at most a quarter of a shared total


def share_of_address(total: int) -> int:
    return max(total // SHARE_OF_ADDRESS, 1)


def is_loopback(address: str) -> bool:
    """Also for IPv4 written as IPv6, which is what a dual-stack socket reports."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return not address  # a Unix socket
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


class PerAddressLimit:
    """Counts the connections of each address; `max_each` = 0 is any number."""

    __slots__ = ("_counts", "_exempt", "_max_each")

    def __init__(self, max_each: int = 0, exempt: Callable[[str], bool] = is_loopback) -> None:
        self._max_each, self._exempt = max_each, exempt
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """Addresses that have a connection."""
        return len(self._counts)

    def of(self, address: str) -> int:
        return self._counts.get(address, 0)

    def is_full(self, address: str) -> bool:
        """Whether this address may not open another one."""
        return 0 < self._max_each <= self.of(address) and not self._exempt(address)

    def add(self, address: str) -> None:
        self._counts[address] += 1

    def drop(self, address: str) -> None:
        self._counts[address] -= 1
        if self._counts[address] <= 0:
            del self._counts[address]
