"""Which shard a sender belongs to, in which slot of a Cluster the shard is, which instance works it, and how often it
is read. Pure.

Shards and slots are the same in every instance and every release: a sender that changed its shard would lose its order.
"""

from binascii import crc_hqx
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from hashlib import blake2b

SLOTS = 16384
MAX_SHARDS = 256


@lru_cache(maxsize=100_000)  # of the senders that write at the moment
def shard_of(user: int, shards: int) -> int:
    return _digest(f"shard:{user}") % shards


def in_rollout(user: int, percent: int) -> bool:
    """Whether a sender is among the first `percent` of a hundred; one that is in at 10 is in at 50 too."""
    return percent >= 100 or _digest(f"rollout:{user}") % 100 < percent


def tag(shard: int) -> str:
    """The hash tag of a shard's keys."""
    return _tags()[shard]


@cache
def _tags() -> tuple[str, ...]:
    """A tag for each shard, such that any first n of them are spread evenly over the slots of a Cluster.

    The reversed bits of the shard's number say which 256th of the slots it belongs to: 0, 1/2, 1/4, 3/4, …
    """
    width = SLOTS // MAX_SHARDS
    found: dict[int, str] = {}
    number = 0
    while len(found) < MAX_SHARDS:
        name = f"im{number}"
        found.setdefault(crc_hqx(name.encode(), 0) % SLOTS // width, name)
        number += 1
    return tuple(found[int(f"{shard:08b}"[::-1], 2)] for shard in range(MAX_SHARDS))


def assign(shards: int, instances: Collection[str]) -> dict[int, str]:
    """The instance that works each shard: rendezvous hashing, with even shares.

    Each shard goes to the instance that ranks highest for it and still has room; when an instance comes or goes, few
    shards move. No instance has two more than another: the remainder goes to the first that rank highest.
    """
    owned = dict.fromkeys(instances, 0)
    if not owned:
        return {}
    share, over = divmod(shards, len(owned))
    found: dict[int, str] = {}
    for shard in range(shards):
        instance = _highest(
            shard, (name for name, count in owned.items() if count < share or (over and count == share))
        )
        over -= owned[instance] == share
        owned[instance] += 1
        found[shard] = instance
    return found


def _highest(shard: int, instances: Iterable[str]) -> str:
    return max(instances, key=lambda name: (_digest(f"{shard}:{name}"), name))


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


READ_INTERVAL_S = 0.05
EARLY_READ_INTERVAL_S = 0.1  # of messages that were pushed before they are saved: only *saved* waits for the read
FREE_READS_PER_S = 40.0
READ_BURST = 10.0


class ReadThrottle:
    """How long a shard that was just read waits until it is read again; one for all shards of an instance.

    A few messages are read at once. With many it is cheaper if those of a moment share a read, the pushes, the scripts
    and a transaction: so all shards of an instance together may be read FREE_READS_PER_S times a second, and beyond
    that each every READ_INTERVAL_S, or another interval, all at the same moments: they share a transaction, and writes
    to Redis.
    """

    __slots__ = ("_at", "_reads")

    def __init__(self) -> None:
        self._reads = 0.0  # beyond the free ones
        self._at = 0.0

    def pause(self, began: float, now: float, interval_s: float | None = None) -> float:
        """Seconds, after a read that returned entries: it began at `began`, and they are handled by `now`."""
        if interval_s is None:
            interval_s = READ_INTERVAL_S
        left = max(self._reads - (now - self._at) * FREE_READS_PER_S, 0.0)
        self._reads, self._at = min(left + 1, 2 * READ_BURST), now
        if self._reads <= READ_BURST or now >= began + interval_s:
            return 0.0
        return next_read(max(began + interval_s / 2, now), interval_s) - now


def next_read(now: float, interval_s: float = EARLY_READ_INTERVAL_S) -> float:
    """When all shards are read next, if they are not free; of a monotonic clock, the same for all processes of a
    machine."""
    return (int(now / interval_s) + 1) * interval_s
