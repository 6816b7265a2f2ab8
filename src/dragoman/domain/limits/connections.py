"""How many connections of one kind an address may have.

Three kinds are counted, each by an object of its own: WebSockets, HTTP connections, and connections that have not
opened a session yet. Loopback is exempt: a local proxy may connect for all clients.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of a listener; a `Route` may have its own for what concerns a single connection."""

    # one connection
    max_frame_bytes: int = 1 << 20  # a whole message, its fragments together
    max_frames_per_s: int = 200
    burst_frames: int = 400
    out_queue_bytes: int = 8 << 20
    out_queue_age_s: float = 15.0
    ping_idle_s: float = 30.0
    ping_reply_s: float = 15.0
    grown_buffer_s: float = 10.0  # how long a read buffer that a large message has grown is kept for the next one
    # all of them
    max_connections: int = 20_000  # open WebSockets
    max_per_address: int = 0  # of them; 0: any number. Loopback does not count
    max_http_connections: int = 1_000
    max_http_per_address: int = 0  # 0: any number. Loopback does not count
    max_heads: int = 2_000  # connections whose first request is not complete; past it the oldest goes
    max_head_bytes: int = 16 << 10
    head_timeout_s: float = 10.0
    close_timeout_s: float = 2.0  # how long a peer may take to close its side
    http_keepalive_s: float = 75.0
    socket_buffer_bytes: int = 256 << 10  # the kernel's, each way; Linux takes up to twice that

    def shortest_s(self) -> float:
        return min(self.out_queue_age_s, self.ping_idle_s, self.ping_reply_s, self.head_timeout_s, self.close_timeout_s)


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
