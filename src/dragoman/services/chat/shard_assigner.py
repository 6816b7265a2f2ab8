"""Which shards this instance works: it takes its share, renews the leases, and hands over the others.

Every instance computes the same even shares, so two instances want the same shard only for a moment, and then the lease
decides. A shard is handed over between two batches; at shutdown at once; after a crash when its lease expires.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import monotonic

import structlog

from dragoman.archive import Archive, ArchiveError
from dragoman.domain.chat.shards import assign
from dragoman.protocol.peer import Announcement, ShardFreed
from dragoman.services.chat.acceptance import PushedMessages
from dragoman.services.chat.save_stage import LostShard, SaveStage, ShardLease
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.store.chat.entries import ShardStatus
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import StoreError
from dragoman.store.instances import Instances

log = structlog.get_logger(__name__)

HAND_OVER_S = 1.0  # below the time-out of an instance that shuts down
FENCE_TIMEOUT_S = 2.0
RETAKE_S = 0.2  # before a shard that was lost, or whose stage failed, is taken again


@dataclass(slots=True)
class OwnedShard:
    lease: ShardLease
    work: "asyncio.Task[None]"


class ShardAssigner:
    def __init__(
        self,
        instance: str,
        shards: Shards,
        archive: Archive,
        instances: Instances,
        announcer: Announcer,
        metrics: Metrics,
        save: SaveStage,
        pushed: PushedMessages,
        *,
        ttl_s: float,
    ) -> None:
        self.instance, self._shards, self._archive, self._instances = instance, shards, archive, instances
        self._announcer, self._metrics, self._save, self._pushed = announcer, metrics, save, pushed
        self._ttl_s = ttl_s
        self._owned: dict[int, OwnedShard] = {}
        self._measured: set[int] = set()  # shards that the gauges of this instance show
        self._releasing = False
        self.wake = asyncio.Event()
        announcer.subscribe(self._on_announcement)

    def __contains__(self, shard: int) -> bool:
        return shard in self._owned

    @property
    def owned(self) -> list[int]:
        return sorted(self._owned)

    def _on_announcement(self, message: Announcement) -> None:
        if isinstance(message, ShardFreed):
            self.wake.set()

    # -- what runs -------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Renew the leases; every third of their life."""
        await self._each(self._renew, list(self._owned))

    async def _renew(self, shard: int) -> None:
        owned = self._owned.get(shard)
        if (
            owned is None or owned.lease.stopping
        ):  # if its stage hangs, another instance takes it when the lease expires
            return
        sent = monotonic()
        if await self._shards.renew_lease(shard, owned.lease.holder, int(self._ttl_s * 1000)):
            owned.lease.renew(sent + self._ttl_s)
        else:
            owned.lease.lose()
            owned.work.cancel()

    async def run_once(self) -> None:
        """Take what is our share, hand over what is not."""
        if self._releasing:
            return
        living = [name for name, one in (await self._instances.all()).items() if one is not None and not one.draining]
        holders = assign(self._shards.count, living)
        self._pushed.set_holders(holders)
        mine = {shard for shard, name in holders.items() if name == self.instance}
        await self._each(self._hand_over, [shard for shard in self._owned if shard not in mine])
        await self._each(self._take, sorted(mine - self._owned.keys()))
        self._metrics.chat_shards.set(len(self._owned))

    async def measure(self) -> None:
        """Gauges of the shards of this instance; together the instances show each shard once."""
        owned, metrics = self.owned, self._metrics
        for shard in self._measured.union(owned):
            tally, label = await self._shards.status(shard) if shard in owned else ShardStatus(), str(shard)
            metrics.chat_backlog.labels(label).set(tally.backlog)
            metrics.chat_dropped.labels(label).set(tally.dropped)
            metrics.chat_stream.labels("accepted", label).set(tally.accepted_len)
            metrics.chat_stream.labels("to_save", label).set(tally.to_save_len)
            self._measure_in_hand(shard)
        self._measured = set(owned)

    def _measure_in_hand(self, shard: int) -> None:
        one = self._owned.get(shard)
        for name, stream in (("accepted", self._shards.accepted(shard)), ("to_save", self._shards.to_save(shard))):
            in_hand = one.lease.in_hand if one is not None and one.lease.stream == stream else 0
            self._metrics.chat_pending.labels(name, str(shard)).set(in_hand)

    async def tidy(self) -> None:
        """Delete the dead letters of our shards that are too old."""
        for shard in self.owned:
            await self._shards.trim_dead_letters(shard)

    async def _each(self, step: Callable[[int], Awaitable[None]], shards: Iterable[int]) -> None:
        """For all of them, even if one fails: in a Cluster one master may be unavailable."""
        done = await asyncio.gather(*map(step, shards), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error

    async def run(self, interval_s: float) -> None:
        """`run_once` at its interval, and whenever an instance released a shard."""
        while True:
            try:
                await self.run_once()
            except StoreError as error:
                log.debug("shards wait for Redis", error=str(error))
            except Exception:
                log.exception("a step failed", loop="shard-assigner")
            try:
                async with asyncio.timeout(interval_s):
                    await self.wake.wait()
            except TimeoutError:
                pass
            self.wake.clear()

    async def release_all(self) -> None:
        """For good: other instances take the shards at once."""
        self._releasing = True
        await self._each(self._hand_over, list(self._owned))

    # -- one shard -------------------------------------------------------------------------------

    async def _take(self, shard: int) -> None:
        sent = monotonic()
        fence = await self._shards.take_lease(
            shard, self.instance, await self._fence_in_sql(shard), int(self._ttl_s * 1000)
        )
        if not fence:
            return
        holder = f"{self.instance}|{fence}"
        if self._releasing:
            await self._release(shard, holder)
            return
        lease = ShardLease(shard, self.instance, fence, sent + self._ttl_s, self._shards.to_save(shard))
        work = asyncio.create_task(self._work(lease), name=f"chat-shard-{shard}")
        self._owned[shard] = OwnedShard(lease, work)
        work.add_done_callback(lambda _: self._ended(lease))
        log.debug("took a chat shard", shard=shard, fence=fence)

    async def _fence_in_sql(self, shard: int) -> int:
        """0 while the database is unavailable: if SQL has a higher one, the first write fails."""
        try:
            async with asyncio.timeout(FENCE_TIMEOUT_S):
                return await self._archive.fence(shard)
        except (ArchiveError, TimeoutError):
            return 0

    async def _work(self, lease: ShardLease) -> None:
        try:
            await self._save.run(lease)
        except LostShard as lost:
            log.warning("lost a chat shard", shard=lease.shard, why=str(lost), limited=True)
        except Exception:
            log.exception("a chat shard failed; it is taken anew", shard=lease.shard)
        finally:
            # While the lease is ours no instance can go on with the shard, not even this one.
            await self._release(lease.shard, lease.holder)
        if not lease.stopping:
            await asyncio.sleep(RETAKE_S)

    def _ended(self, lease: ShardLease) -> None:
        owned = self._owned.get(lease.shard)
        if owned is not None and owned.lease is lease:
            del self._owned[lease.shard]
            self.wake.set()

    async def _hand_over(self, shard: int) -> None:
        """Let the stage finish its batch and release the lease; also if this is cancelled meanwhile."""
        owned = self._owned.get(shard)
        if owned is None:
            return
        owned.lease.stop()
        await asyncio.wait({owned.work}, timeout=HAND_OVER_S)
        owned.work.cancel()
        await asyncio.gather(owned.work, return_exceptions=True)
        self._owned.pop(shard, None)
        log.debug("released a chat shard", shard=shard)

    async def _release(self, shard: int, holder: str) -> None:
        """The lease, if it is ours; without Redis it expires."""
        try:
            await self._shards.release_lease(shard, holder)
        except StoreError as error:
            log.warning("the lease of a chat shard is left to expire", shard=shard, error=str(error), limited=True)
        else:
            self._announcer.announce(ShardFreed(shard))
