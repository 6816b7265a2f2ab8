"""A Redis Cluster: one multiplexed link a master, and a table of who has which slot.

The table comes from CLUSTER SLOTS and is asked for again whenever something suggests it is old: a
MOVED, a lost link, a master that cannot be reached. MOVED is followed at once and corrects the one
slot; ASK is followed once without touching the table. A redirected call keeps its future, so callers
never see it.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.link import Address, Call, ErrorReply, Link, pack, refusal
from dragoman.store.redis import SLOTS, Redis, load_scripts, slot_of

MAX_REDIRECTS = 16
REFRESH_PAUSE_S = 0.1
RETRY_PAUSE_S = 0.05
_ASKING = pack(("ASKING",))
_CLUSTER_SLOTS = pack(("CLUSTER", "SLOTS"))


class ClusterRedis(Redis):
    def __init__(self, urls: Sequence[str], *, timeout_s: float = 5.0, name: str = "dragoman") -> None:
        super().__init__(timeout_s=timeout_s, name=name)
        self._seeds = [Address.parse(url) for url in urls]
        self._links: dict[tuple[str, int], Link] = {}
        self._slots: list[Link | None] = [None] * SLOTS
        self._masters: set[Link] = set()
        self._gone_flushes = self._gone_reconnects = 0
        self._stale = asyncio.Event()
        self._stale.set()
        self._complete = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        self._task = self._loop.create_task(self._keep_table(), name="redis-cluster-table")

    # -- calls ---------------------------------------------------------------------------------

    def _submit(self, call: Call, key: str) -> None:
        call.slot = slot_of(key)
        self._route(call)

    def _route(self, call: Call) -> None:
        link = self._slots[call.slot]
        if link is None:
            self._stale.set()
            call.fail(RedisAway(f"no master of the Redis Cluster is known for slot {call.slot}"))
            return
        if not link.connected.is_set():
            self._stale.set()
        link.submit(call)

    def _on_error(self, call: Call, error: ErrorReply) -> None:
        text = str(error)
        word, _, rest = text.partition(" ")
        call.redirects += 1
        if call.slot < 0 or call.redirects > MAX_REDIRECTS:
            call.fail(refusal(error))
        elif word == "MOVED":
            self._stale.set()
            self._slots[call.slot] = self._link_at(rest)
            self._again(call)
        elif word == "ASK":
            link = self._link_at(rest)
            if link.connected.is_set():
                link.submit(Call(_ASKING, self._ignored(), self.ops["ASKING"]))
                link.submit(call)
            else:  # a server we have not met: by the time we are sent there again it may be reached
                self._loop.call_later(RETRY_PAUSE_S, self._route, call)
        elif word in ("TRYAGAIN", "CLUSTERDOWN"):
            self._stale.set()
            self._loop.call_later(RETRY_PAUSE_S, self._route, call)
        elif word == "NOSCRIPT" and call.script is not None:
            self._as_eval(call)
            self._route(call)
        else:
            call.fail(refusal(error))

    def _again(self, call: Call) -> None:
        """Route at once, or as soon as the new master's link is up."""
        link = self._slots[call.slot]
        if link is None or link.connected.is_set() or call.redirects > MAX_REDIRECTS:
            self._route(call)
        else:
            call.redirects += 1
            self._loop.call_later(RETRY_PAUSE_S, self._again, call)

    def _ignored(self) -> "asyncio.Future[Any]":
        future = self._loop.create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def _link_at(self, place: str) -> Link:
        """The link of `<slot> <host>:<port>` as redirections name it."""
        host, _, port = place.split(" ")[-1].rpartition(":")
        return self._link(host or self._seeds[0].host, int(port))

    def _link(self, host: str, port: int) -> Link:
        link = self._links.get((host, port))
        if link is None:
            link = self._links[host, port] = Link(
                self._seeds[0].at(host, port),
                greeting=load_scripts,
                timeout_s=self.timeout_s,
                on_error=self._on_error,
                on_lost=lambda _: self._stale.set(),
                name=self.name,
            )
        return link

    # -- the table -----------------------------------------------------------------------------

    async def _keep_table(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            if not await self._refresh() or not self.connected:
                self._stale.set()
            await asyncio.sleep(REFRESH_PAUSE_S * random.uniform(0.5, 1.5))

    async def _refresh(self) -> bool:
        """Ask whoever answers; True once a table was taken over."""
        known = [link for link in self._links.values() if link.connected.is_set()]
        random.shuffle(known)
        for link in known or [self._link(seed.host, seed.port) for seed in self._seeds]:
            try:
                async with asyncio.timeout(0.5):
                    await link.connected.wait()
                future = self._loop.create_future()
                link.submit(Call(_CLUSTER_SLOTS, future, self.ops["CLUSTER SLOTS"]))
                self._take_over(await future, link.address)
                return True
            except (TimeoutError, StoreError):
                continue
        return False

    def _take_over(self, rows: list[Any], told_by: Address) -> None:
        slots: list[Link | None] = [None] * SLOTS
        masters: set[Link] = set()
        for first, last, master, *_ in rows:
            host = (master[0] or b"").decode() or told_by.host
            link = self._link(host, int(master[1]))
            masters.add(link)
            for slot in range(first, last + 1):
                slots[slot] = link
        self._slots, self._masters = slots, masters
        if None not in slots:
            self._complete.set()
        for place, link in list(self._links.items()):
            if link not in masters and not link.connected.is_set():
                self._retire(place, link)

    def _retire(self, place: tuple[str, int], link: Link) -> None:
        """Stop calling on a server that is neither a master nor there. A seed is found again when needed."""
        del self._links[place]
        self._gone_flushes += link.flushes
        self._gone_reconnects += link.reconnects
        task = self._loop.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # -- the rest of the interface -------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return (
            bool(self._masters) and None not in self._slots and all(link.connected.is_set() for link in self._masters)
        )

    @property
    def flushes(self) -> int:
        return self._gone_flushes + sum(link.flushes for link in self._links.values())

    @property
    def reconnects(self) -> int:
        return self._gone_reconnects + sum(link.reconnects for link in self._links.values())

    def hurry(self) -> None:
        for link in self._masters:
            link.hurry()

    def doubt(self) -> None:
        self._stale.set()

    async def wait_connected(self) -> None:
        await self._complete.wait()
        while not self.connected:
            for link in list(self._masters):
                try:
                    async with asyncio.timeout(REFRESH_PAUSE_S):
                        await link.connected.wait()
                except TimeoutError:
                    self._stale.set()
                    break

    def address_of(self, key: str) -> Address:
        link = self._slots[slot_of(key)]
        if link is None:
            raise RedisAway(f"no master of the Redis Cluster is known for {key}")
        return link.address

    def addresses(self) -> list[Address]:
        return [link.address for link in self._masters if link.connected.is_set()]

    async def on_each(self, *command: Any) -> list[Any]:
        if not self._masters:
            raise RedisAway("no master of the Redis Cluster is known")
        futures = []
        for link in self._masters:
            future = self._loop.create_future()
            link.submit(Call(pack(command), future, self.ops[str(command[0])]))
            futures.append(future)
        return list(await asyncio.gather(*futures))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()), *self._closing)
