"""A Redis Cluster: one multiplexed link a master, and a table of the master of each slot.

The table comes from CLUSTER SLOTS and is asked for again whenever something suggests it is old: a
MOVED, a lost link, a master that cannot be reached. MOVED corrects the one slot; ASK is followed once
without touching the table. A redirected call keeps its future, so callers never see it.

While a call is held back nothing that is called later on its slot goes before it:

    refused ─▶ first ─▶ tried again until it is answered     then all of them, in order
               refused  what had been sent behind it, and was refused as well
               later    what is called meanwhile

A later call that was already sent and was not refused has been executed before it. A caller that depends on the order
waits for each reply, or uses a script that checks.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.interface import SLOTS, Redis, load_scripts, slot_of
from dragoman.store.link import (
    MAX_IN_FLIGHT,
    NO_CREDENTIALS,
    Address,
    Call,
    Credentials,
    ErrorReply,
    Link,
    pack,
    refusal,
)

MAX_REDIRECTS = 16
REFRESH_PAUSE_S = 0.1
RETRY_PAUSE_S = 0.05
_ASKING = pack(("ASKING",))
_CLUSTER_SLOTS = pack(("CLUSTER", "SLOTS"))
_PING = pack(("PING",))


@dataclass(slots=True, eq=False)
class _Held:
    """The calls of one slot that are held back."""

    slot: int
    first: Call | None = None  # the one that is being tried
    refused: deque[Call] = field(default_factory=deque)
    later: deque[Call] = field(default_factory=deque)


class ClusterRedis(Redis):
    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float = 5.0,
        name: str = "dragoman",
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        super().__init__(timeout_s=timeout_s, name=name)
        self._seeds = [Address.parse(url, credentials) for url in urls]
        self._links: dict[tuple[str, int], Link] = {}
        self._slots: list[Link | None] = [None] * SLOTS
        self._masters: set[Link] = set()
        self._held: dict[int, _Held] = {}
        self._asked: dict[
            int, Link
        ] = {}  # slot that is about to move → the server that was asked instead of its master
        self._gone_flushes = self._gone_reconnects = 0
        self._stale = asyncio.Event()
        self._stale.set()
        self._complete = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        self._task = self._loop.create_task(self._keep_table(), name="redis-cluster-table")

    # -- calls ---------------------------------------------------------------------------------

    def _submit(self, call: Call, key: str) -> None:
        call.to_slot(slot_of(key))
        if self._held and (held := self._held.get(call.slot)) is not None:
            if len(held.later) < MAX_IN_FLIGHT:
                held.later.append(call)
            else:
                call.fail(RedisAway(f"too much waits for slot {call.slot} of the Redis Cluster"))
        else:
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

    def _on_error(self, link: Link, call: Call, error: ErrorReply) -> None:
        text = str(error)
        word, _, rest = text.partition(" ")
        call.redirected()
        if call.slot < 0 or call.redirects > MAX_REDIRECTS:
            call.fail(refusal(error))
        elif word == "MOVED":
            self._stale.set()
            self._slots[call.slot] = self._link_at(rest)
            self._asked.pop(call.slot, None)
            self._hold(call, link, 0.0)
        elif word == "ASK":
            self._ask(call, link, self._link_at(rest))
        elif word in ("TRYAGAIN", "CLUSTERDOWN"):
            self._stale.set()
            self._hold(call, link, RETRY_PAUSE_S)
        elif word == "NOSCRIPT" and call.script is not None:
            call.use_source()
            self._route(call)
        else:
            call.fail(refusal(error))

    def _ask(self, call: Call, link: Link, target: Link) -> None:
        held = self._held.get(call.slot)
        if target.connected.is_set() and (held is None or held.first is call):
            target.submit(Call(_ASKING, self._ignored(), self.ops["ASKING"]))
            target.submit(call)
            self._asked[call.slot] = target
        else:  # a server we have not met: by the time we are sent there again it may be reached
            self._hold(call, link, RETRY_PAUSE_S)

    # -- calls that are held back --------------------------------------------------------------

    def _hold(self, call: Call, link: Link, pause_s: float) -> None:
        held = self._held.get(call.slot)
        if held is None:
            held = self._held[call.slot] = _Held(call.slot)
            held.refused.append(call)
            # Answered behind all that is on its way there: then it is known what else was refused.
            ping = Call(_PING, self._ignored(), self.ops["PING"])
            ping.future.add_done_callback(lambda _: self._loop.call_later(pause_s, self._try, held))
            link.submit(ping)
        elif held.first is call:
            for waiting in (*held.refused, *held.later):
                waiting.redirected()  # or each would be as patient as the one before it, one after the other
            self._loop.call_later(pause_s, self._try, held)
        else:
            held.refused.append(call)

    def _try(self, held: _Held) -> None:
        """Send the first of them, as soon as its master's link is up."""
        if self._held.get(held.slot) is not held:
            return  # its caller was cancelled
        call = held.first
        if call is None:
            call = held.first = held.refused.popleft()
            call.future.add_done_callback(lambda _: self._let_go(held))
        link = self._slots[held.slot]
        if link is None or link.connected.is_set() or call.redirects > MAX_REDIRECTS:
            self._route(call)
        else:
            call.redirected()
            self._stale.set()
            self._loop.call_later(RETRY_PAUSE_S, self._try, held)

    def _let_go(self, held: _Held) -> None:
        del self._held[held.slot]
        for call in (*held.refused, *held.later):
            self._route(call)

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
        if link is not None:
            return link
        made = self._links[host, port] = Link(
            self._seeds[0].at(host, port),
            greeting=load_scripts,
            timeout_s=self.timeout_s,
            on_error=lambda call, error: self._on_error(made, call, error),
            on_lost=lambda _: self._stale.set(),
            name=self.name,
        )
        return made

    # -- the table -----------------------------------------------------------------------------

    async def _keep_table(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            if not await self._refresh() or not self.connected:
                self._stale.set()
            await asyncio.sleep(REFRESH_PAUSE_S * random.uniform(0.5, 1.5))

    async def _refresh(self) -> bool:
        """Ask the first server that answers; True if the table was renewed."""
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
        stay = {slot: link for slot, link in self._asked.items() if slots[slot] is self._slots[slot]}
        self._slots, self._masters = slots, masters
        if None not in slots:
            self._complete.set()
        for place, link in list(self._links.items()):
            if link not in masters and not link.connected.is_set():
                self._retire(place, link)
        left = set(self._links.values())  # also masters that have no slot yet
        self._asked = {slot: link for slot, link in stay.items() if link in left}

    def _retire(self, place: tuple[str, int], link: Link) -> None:
        """Stop calling on a server that is neither a master nor there. A seed is found again when needed."""
        del self._links[place]
        self._gone_flushes += link.flushes
        self._gone_reconnects += link.reconnects
        task = self._loop.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # -- the rest of the interface -------------------------------------------------------------

    def call_where(self, key: str, *command: Any) -> "list[asyncio.Future[Any]]":
        futures = super().call_where(key, *command)
        if (asked := self._asked.get(slot_of(key))) is not None:
            futures.append(self._loop.create_future())
            asked.submit(Call(pack(command), futures[-1], self.ops[str(command[0])]))
        return futures

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
