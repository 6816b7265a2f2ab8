"""The lease of one shard that this instance works, and what its save stage does with it."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

import structlog

from dragoman.services.loops import retry
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY_S = 0.2


class LostShard(Exception):
    """Another instance has the shard, or may have it by now: stop at once, and change nothing more."""


class ShardLease:
    def __init__(self, shard: int, instance: str, fence: int, valid_until: float, stream: str) -> None:
        """`valid_until` is monotonic: from then on another instance may take the shard. `stream` is read first."""
        self.shard, self.fence = shard, fence
        self.holder = f"{instance}|{fence}"  # the value of the lease in Redis
        self.stream, self.in_hand = stream, 0  # entries that were read and are not finished
        self.stopped = asyncio.Event()
        self._valid_until = valid_until

    def renew(self, valid_until: float) -> None:
        self._valid_until = valid_until

    def lose(self) -> None:
        self._valid_until = 0.0

    def check(self) -> None:
        if monotonic() >= self._valid_until:
            raise LostShard(f"the lease of shard {self.shard} has expired")

    def checked(self, reply: T | None) -> T:
        """The reply of a script that compares the lease first; None: another instance has it. Raises LostShard."""
        if reply is None:
            raise LostShard(f"shard {self.shard} has another holder")
        return reply

    async def retry(self, step: Callable[[], Awaitable[T | None]]) -> T:
        """Repeat an idempotent script that compares the lease first until Redis has run it; raises LostShard."""

        async def checked() -> T:
            self.check()
            return self.checked(await step())

        def warn(error: Exception) -> None:
            log.warning("a chat shard waits for Redis", shard=self.shard, error=str(error), limited=True)

        return await retry(checked, pause_s=RETRY_S, on_error=warn)

    @property
    def stopping(self) -> bool:
        return self.stopped.is_set()

    def stop(self) -> None:
        """The stage finishes its batch, and waits for nothing more."""
        self.stopped.set()

    def read_from(self, stream: str) -> None:
        self.stream = stream

    def has_in_hand(self, entries: int) -> None:
        self.in_hand = entries


async def wait_for_redis(lease: ShardLease, error: StoreError) -> None:
    log.warning("a chat shard waits for Redis", shard=lease.shard, error=str(error), limited=True)
    await asyncio.sleep(RETRY_S)
