"""A shard in our hands: the lease both stages work under, and what they know of messages between them."""

import asyncio
from dataclasses import dataclass, field
from time import monotonic


class LostShard(Exception):
    """Another has the shard, or may have it by now: stop at once, and touch nothing more."""


@dataclass(slots=True)
class Pair:
    """Messages of one sender to one receiver that are past the deliver stage and not saved yet.

    `owner` is the connection all of them were pushed to; '' when one of them was pushed to nobody.
    """

    count: int
    owner: str


@dataclass(slots=True)
class Holding:
    shard: int
    instance: str
    fence: int
    valid_until: float  # monotonic: when others may take it
    left_behind: bool  # what an earlier holder left to be saved: until that is done, nothing is known of it
    pairs: dict[tuple[int, int], Pair] = field(default_factory=dict)
    more_to_save: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False

    @property
    def holder(self) -> str:
        """What the lease says."""
        return f"{self.instance}|{self.fence}"

    def check(self) -> None:
        if monotonic() >= self.valid_until:
            raise LostShard(f"the lease of shard {self.shard} has run out")

    # -- what may be pushed before it is saved ---------------------------------------------------

    def may_push_now(self, sender: int, receiver: int, owner: str) -> bool:
        """Whether a message can be pushed ahead of being saved without overtaking an earlier one of its sender.

        An earlier one that was pushed to nobody, or to a connection that is gone, goes out when it is saved; then
        this one has to wait for that as well.
        """
        if not owner or self.left_behind:
            return False
        pair = self.pairs.get((sender, receiver))
        return pair is None or pair.owner == owner

    def went_on(self, sender: int, receiver: int, pushed_to: str) -> None:
        pair = self.pairs.get((sender, receiver))
        if pair is None:
            self.pairs[sender, receiver] = Pair(1, pushed_to)
        else:
            pair.count += 1
            pair.owner = pair.owner if pair.owner == pushed_to else ""

    def settled(self, sender: int, receiver: int) -> None:
        pair = self.pairs.get((sender, receiver))
        if pair is not None:
            pair.count -= 1
            if pair.count <= 0:
                del self.pairs[sender, receiver]
