"""A shard in our hands: the lease both stages work under, and what they know of messages between them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic


class LostShard(Exception):
    """Another has the shard, or may have it by now: stop at once, and touch nothing more."""


@dataclass(slots=True)
class Pair:
    """Messages of one sender to one receiver that are past the deliver stage and not saved yet.

    `owner` is the connection all of them were pushed to; '' when one of them was pushed to nobody.
    """

    owner: str
    ids: set[int]


@dataclass(slots=True)
class Holding:
    shard: int
    instance: str
    fence: int
    valid_until: float  # monotonic: when others may take it
    left_behind: str = ""  # the last entry an earlier holder left to be saved: until it is, nothing is known of them
    pairs: dict[tuple[int, int], Pair] = field(default_factory=dict)
    more_to_save: asyncio.Event = field(default_factory=asyncio.Event)
    handing_on: bool = False  # the deliver stage has a batch in its hands
    stopping: bool = False
    interrupt: Callable[[], Awaitable[None]] | None = None  # ends the wait for new messages

    @property
    def holder(self) -> str:
        """What the lease says."""
        return f"{self.instance}|{self.fence}"

    def check(self) -> None:
        if monotonic() >= self.valid_until:
            raise LostShard(f"the lease of shard {self.shard} has run out")

    async def stop(self) -> None:
        """Both stages finish the batch they have, and wait for nothing more."""
        self.stopping = True
        self.more_to_save.set()
        if self.interrupt is not None:
            await self.interrupt()

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

    def went_on(self, sender: int, receiver: int, id: int, pushed_to: str) -> None:
        pair = self.pairs.get((sender, receiver))
        if pair is None:
            self.pairs[sender, receiver] = Pair(pushed_to, {id})
        else:
            pair.ids.add(id)
            pair.owner = pair.owner if pair.owner == pushed_to else ""

    def settled(self, sender: int, receiver: int, id: int) -> None:
        pair = self.pairs.get((sender, receiver))
        if pair is not None:
            pair.ids.discard(id)
            if not pair.ids:
                del self.pairs[sender, receiver]

    def saved_up_to(self, entry: str) -> None:
        if self.left_behind and _order(entry) >= _order(self.left_behind):
            self.left_behind = ""

    def nothing_to_save(self) -> None:
        """The save stage found nothing. What we thought was between the stages, a Redis that was killed has lost."""
        self.left_behind = ""
        if not self.handing_on and not self.more_to_save.is_set():
            self.pairs.clear()


def _order(entry: str) -> tuple[int, int]:
    ms, _, count = entry.partition("-")
    return int(ms), int(count)
