"""The lease of one shard that this instance works, and the state and steps that its two stages share."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TypeVar

import structlog

from dragoman.domain.chat.delivery_state import EarlyPushes
from dragoman.services.loops import retry
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import Refused, StoreError

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY_S = 0.2


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


async def wait_for_redis(shards: Shards, lease: ShardLease, error: StoreError) -> None:
    """Redis is unavailable, or came back without our groups."""
    log.warning("a chat shard waits for Redis", shard=lease.shard, error=str(error), limited=True)
    # Not by its first word: Redis 6.2 puts words of its own before what a command says inside a script.
    if isinstance(error, Refused) and "NOGROUP" in str(error):
        with suppress(StoreError):
            await shards.ensure_groups(lease.shard)
    await asyncio.sleep(RETRY_S)
