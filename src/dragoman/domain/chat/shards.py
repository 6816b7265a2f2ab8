"""Which shard a sender belongs to, where in a Cluster the shard lives, and who works it. Pure.

Everything here must come out the same in every instance and every release: a sender that changed its shard would
lose its order.
"""

from binascii import crc_hqx
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from hashlib import blake2b

SLOTS = 16384
MOST = 256


@lru_cache(maxsize=100_000)  # of whoever writes just now
def shard_of(user: int, shards: int) -> int:
    return _digest(f"shard:{user}") % shards


def in_rollout(user: int, percent: int) -> bool:
    """Whether a sender is among the first `percent` of a hundred; whoever is in at 10 is in at 50 too."""
    return percent >= 100 or _digest(f"rollout:{user}") % 100 < percent


def tag(shard: int) -> str:
    """The hash tag of a shard's keys."""
    return _tags()[shard]


@cache
def _tags() -> tuple[str, ...]:
    """A tag for each shard, such that any first n of them are spread evenly over the slots of a Cluster.

    The reversed bits of the shard's number say which 256th of the slots it belongs to: 0, 1/2, 1/4, 3/4, …
    """
    width = SLOTS // MOST
    found: dict[int, str] = {}
    number = 0
    while len(found) < MOST:
        name = f"im{number}"
        found.setdefault(crc_hqx(name.encode(), 0) % SLOTS // width, name)
        number += 1
    return tuple(found[int(f"{shard:08b}"[::-1], 2)] for shard in range(MOST))


def assign(shards: int, instances: Collection[str]) -> dict[int, str]:
    """Who works each shard: rendezvous hashing, with an even share for everybody.

    Each shard goes to the instance that ranks highest for it and still has room; when one comes or goes, few move.
    Nobody has two more than another: as many as do not divide evenly have one more, the first who would.
    """
    held = dict.fromkeys(instances, 0)
    if not held:
        return {}
    share, over = divmod(shards, len(held))
    found: dict[int, str] = {}
    for shard in range(shards):
        taker = _highest(shard, (name for name, count in held.items() if count < share or (over and count == share)))
        over -= held[taker] == share
        held[taker] += 1
        found[shard] = taker
    return found


def _highest(shard: int, instances: Iterable[str]) -> str:
    return max(instances, key=lambda name: (_digest(f"{shard}:{name}"), name))


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
