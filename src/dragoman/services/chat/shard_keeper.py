"""Which shards this instance works: takes those that are its share, renews its leases, hands the others over.

The share is even and the same as seen from every instance, so two want the same shard only for a moment, and then the
lease decides. A shard is handed over between two batches; at shutdown at once; on death when the lease lapses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import monotonic

import structlog

from dragoman.archive import Archive, ArchiveError
from dragoman.domain.chat.shards import assign
from dragoman.protocol.peer import Announcement, ShardFreed
from dragoman.services.chat.deliver import DeliverStage
from dragoman.services.chat.holding import Holding, LostShard
from dragoman.services.chat.save import SaveStage
from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.announcer import Announcer
from dragoman.store.chat.shards import Shards, Tally
from dragoman.store.errors import StoreError
from dragoman.store.instances import Instances

log = structlog.get_logger(__name__)

HAND_OVER_S = 1.0  # below the patience of an instance that leaves
FENCE_PATIENCE_S = 2.0
RETAKE_S = 0.2  # a shard that was lost, or whose work failed, is not taken again at once


@dataclass(slots=True)
class Held:
    holding: Holding
    work: "asyncio.Task[None]"


class ShardKeeper:
    def __init__(
        self,
        instance: str,
        shards: Shards,
        archive: Archive,
        instances: Instances,
        announcer: Announcer,
        metrics: Metrics,
        deliver: DeliverStage,
        save: SaveStage,
        *,
        ttl_s: float,
    ) -> None:
        self.instance, self._shards, self._archive, self._instances = instance, shards, archive, instances
        self._announcer, self._metrics, self._deliver, self._save = announcer, metrics, deliver, save
        self._ttl_s = ttl_s
        self._held: dict[int, Held] = {}
        self._measured: set[int] = set()  # shards that our gauges speak of
        self._leaving = False
        self.wake = asyncio.Event()
        announcer.subscribe(self._heard)

    def __contains__(self, shard: int) -> bool:
        return shard in self._held

    @property
    def held(self) -> list[int]:
        return sorted(self._held)

    def _heard(self, message: Announcement) -> None:
        if isinstance(message, ShardFreed):
            self.wake.set()

    # -- what runs -------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Prolong the leases; every third of their life."""
        await self._each(self._renew, list(self._held))

    async def _renew(self, shard: int) -> None:
        held = self._held.get(shard)
        if held is None:
            return
        sent = monotonic()
        if await self._shards.keep(shard, held.holding.holder, int(self._ttl_s * 1000)):
            held.holding.valid_until = sent + self._ttl_s
        else:
            held.holding.valid_until = 0.0
            held.work.cancel()

    async def run_once(self) -> None:
        """Take what is our share, hand over what is not."""
        if self._leaving:
            return
        living = [name for name, one in (await self._instances.all()).items() if one is not None and not one.draining]
        mine = {shard for shard, name in assign(self._shards.count, living).items() if name == self.instance}
        await self._each(self._hand_over, [shard for shard in self._held if shard not in mine])
        await self._each(self._take, sorted(mine - self._held.keys()))
        self._metrics.chat_shards.set(len(self._held))

    async def measure(self) -> None:
        """Gauges of the shards we work; together the instances show all of them, and each of them once."""
        held, metrics = self.held, self._metrics
        for shard in self._measured.union(held):
            tally, label = await self._shards.tally(shard) if shard in held else Tally(), str(shard)
            metrics.chat_backlog.labels(label).set(tally.backlog)
            metrics.chat_dropped.labels(label).set(tally.dropped)
            metrics.chat_stream.labels("accepted", label).set(tally.accepted_len)
            metrics.chat_stream.labels("to_save", label).set(tally.to_save_len)
            metrics.chat_pending.labels("accepted", label).set(tally.accepted_pending)
            metrics.chat_pending.labels("to_save", label).set(tally.to_save_pending)
        self._measured = set(held)

    async def tidy(self) -> None:
        """Drop the dead letters of our shards that have become too old."""
        for shard in self.held:
            await self._shards.trim(shard)

    async def _each(self, step: Callable[[int], Awaitable[None]], shards: Iterable[int]) -> None:
        """For all of them, whatever becomes of one: in a Cluster one master may be away, and the others are there."""
        done = await asyncio.gather(*map(step, shards), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error

    async def run(self, interval_s: float) -> None:
        """`run_once` at its interval, and whenever somebody gave a shard up."""
        while True:
            try:
                await self.run_once()
            except StoreError as error:
                log.debug("shards wait for Redis", error=str(error))
            except Exception:
                log.exception("a step failed", loop="shard-keeper")
            try:
                async with asyncio.timeout(interval_s):
                    await self.wake.wait()
            except TimeoutError:
                pass
            self.wake.clear()

    async def leave(self) -> None:
        """Give up everything, for good: others take it at once."""
        self._leaving = True
        await self._each(self._hand_over, list(self._held))

    # -- one shard -------------------------------------------------------------------------------

    async def _take(self, shard: int) -> None:
        sent = monotonic()
        fence = await self._shards.take(shard, self.instance, await self._fence_in_sql(shard), int(self._ttl_s * 1000))
        if not fence:
            return
        holding = Holding(shard, self.instance, fence, sent + self._ttl_s)
        try:
            await self._shards.ensure_groups(shard)
            holding.left_behind = await self._shards.newest_to_save(shard)
        except StoreError:
            await self._give_up(holding)
            raise
        if self._leaving:
            await self._give_up(holding)
            return
        work = asyncio.create_task(self._work(holding), name=f"chat-shard-{shard}")
        self._held[shard] = Held(holding, work)
        work.add_done_callback(lambda _: self._ended(holding))
        log.debug("took a chat shard", shard=shard, fence=fence)

    async def _fence_in_sql(self, shard: int) -> int:
        """0 while the database is away: if SQL knows a higher one, the first write finds out."""
        try:
            async with asyncio.timeout(FENCE_PATIENCE_S):
                return await self._archive.fence(shard)
        except (ArchiveError, TimeoutError):
            return 0

    async def _work(self, holding: Holding) -> None:
        """Both stages; when one ends, so does the other."""
        stages = [asyncio.create_task(stage.run(holding)) for stage in (self._deliver, self._save)]
        try:
            done, _ = await asyncio.wait(stages, return_when=asyncio.FIRST_EXCEPTION)
            for stage in done:
                stage.result()
        except LostShard as lost:
            log.warning("lost a chat shard", shard=holding.shard, why=str(lost), limited=True)
        except Exception:
            log.exception("a chat shard failed; it is taken anew", shard=holding.shard)
        finally:
            for stage in stages:
                stage.cancel()
            await asyncio.gather(*stages, return_exceptions=True)
        if not holding.stopping:
            # If the lease is still ours nobody else can go on: not even we, until it lapses.
            await self._give_up(holding)
            await asyncio.sleep(RETAKE_S)

    def _ended(self, holding: Holding) -> None:
        held = self._held.get(holding.shard)
        if held is not None and held.holding is holding and not holding.stopping:
            del self._held[holding.shard]
            self.wake.set()

    async def _hand_over(self, shard: int) -> None:
        """Let the batch in hand finish, then give up the lease."""
        held = self._held.get(shard)
        if held is None:
            return
        await held.holding.stop()
        await asyncio.wait({held.work}, timeout=HAND_OVER_S)
        held.work.cancel()
        await asyncio.gather(held.work, return_exceptions=True)
        self._held.pop(shard, None)
        await self._give_up(held.holding)
        log.debug("gave up a chat shard", shard=shard)

    async def _give_up(self, holding: Holding) -> None:
        """The lease, if it is ours; without Redis it lapses."""
        try:
            await self._shards.give_up(holding.shard, holding.holder)
        except StoreError as error:
            log.warning(
                "the lease of a chat shard is left to lapse", shard=holding.shard, error=str(error), limited=True
            )
        else:
            self._announcer.tell(ShardFreed(holding.shard))
