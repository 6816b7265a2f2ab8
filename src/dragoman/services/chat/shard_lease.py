"""The lease of one shard that this instance works, and what its two stages share."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from dragoman.domain.chat.delivery_state import EarlyPushes


class LostShard(Exception):
    """Another instance has the shard, or may have it by now: stop at once, and change nothing more."""


class ShardLease:
    def __init__(self, shard: int, instance: str, fence: int, valid_until: float, last_inherited: str = "") -> None:
        """`valid_until` is monotonic: from then on another instance may take the shard."""
        self.shard, self.fence = shard, fence
        self.holder = f"{instance}|{fence}"  # the value of the lease in Redis
        self.early = EarlyPushes(last_inherited)
        self.more_to_save = asyncio.Event()
        self.stopped = asyncio.Event()
        self._valid_until = valid_until
        self._moving = False

    def renew(self, valid_until: float) -> None:
        self._valid_until = valid_until

    def lose(self) -> None:
        self._valid_until = 0.0

    def check(self) -> None:
        if monotonic() >= self._valid_until:
            raise LostShard(f"the lease of shard {self.shard} has expired")

    @property
    def stopping(self) -> bool:
        return self.stopped.is_set()

    def stop(self) -> None:
        """Both stages finish their batch, and wait for nothing more."""
        self.stopped.set()
        self.more_to_save.set()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """The deliver stage moves a batch to the save stage."""
        self._moving = True
        try:
            yield
        finally:
            self._moving = False

    def nothing_to_save(self) -> None:
        self.early.nothing_to_save(moving=self._moving or self.more_to_save.is_set())
