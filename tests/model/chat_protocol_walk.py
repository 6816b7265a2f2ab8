"""Walks a way through the model of chat with the real parts: the stages, the scripts of Redis, a database.

Each instance of the model is a save stage of ours, as a task. Whatever they do to the world is
a call on one of three parts, and each call waits at a gate until the model says that this instance takes this step.
So the stages can be stopped, overtaken and killed between any two calls, and a stage that wants to do something else
than the model says stands at the wrong gate. After each step Redis and SQL hold what the model holds.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar, cast

from dragoman.archive import Archive, BadRow, NewMessage, SaveOutcome
from dragoman.domain.chat.switches import Switches
from dragoman.services.chat.acceptance import PushedMessages
from dragoman.services.chat.delivery import Delivery, SenderNotice
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.one_phase import Refusals
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.save_stage import LostShard, SaveStage, ShardLease
from dragoman.services.metrics import Metrics
from dragoman.store.chat.entries import AcceptReply, ChatEntry
from dragoman.store.chat.shards import Shards
from dragoman.store.redis import Dedicated
from model.chat_protocol import NAMES, SENDER, Message, State, receiver_of
from model.explorer import Step

T = TypeVar("T")
TTL_MS = 600_000
KEYS = ("a", "b")
GATES = {
    "reads what was accepted": "next_entries",
    "writes": "save",
    "is fenced by SQL, with": "save",
    "is refused by the database, with": "refuse",
    "tells saved of": "notify",
    "tells failed of": "notify",
    "is done with": "saved",
    "moves to dead": "move_to_dead",
}


@dataclass
class Gate:
    """Where a stage of an instance waits before each call."""

    name: str = ""
    go: "asyncio.Future[bool] | None" = None
    found: object = None  # by the last call
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def through(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.name, self.go = name, asyncio.get_running_loop().create_future()
        self.arrived.set()
        refused = await self.go
        if refused:
            raise BadRow("refused, as the model says")
        self.found = found = await call()
        return found

    async def open(self, name: str) -> None:
        """Let it do what it wants to do, which must be this; and wait until it wants something else, or is over."""
        await self.wait()
        assert self.name == ("save" if name == "refuse" else name), f"it wants to {self.name}, the model says {name}"
        assert self.go is not None
        self.arrived.clear()
        self.go.set_result(name == "refuse")
        await self.wait()

    async def wait(self) -> None:
        async with asyncio.timeout(10):
            await self.arrived.wait()


class GatedShards(Shards):
    """The shards themselves, with a gate before each step of a stage."""

    save: Gate

    @classmethod
    def of_instance(cls, shards: Shards, save: Gate) -> "GatedShards":
        made = cls(shards.redis, shards.keys, shards.names, shards.count, shards.claim_ttl_ms)
        made.save = save
        return made

    def reader(self, shard: int) -> Dedicated:
        return Impatient(self.redis, "", "reader")

    async def next_entries(self, reader: Any, stream: str, *args: Any) -> Any:
        def read() -> Awaitable[Any]:
            return Shards.next_entries(self, reader, stream, *args)

        # What an earlier release left is not part of the model.
        return await (self.save.through("next_entries", read) if stream == self.accepted(0) else read())

    async def finish_saved(self, *args: Any) -> Any:
        return await self.save.through("saved", lambda: Shards.finish_saved(self, *args))

    async def move_to_dead(self, *args: Any, **more: Any) -> Any:
        return await self.save.through("move_to_dead", lambda: Shards.move_to_dead(self, *args, **more))


class Impatient(Dedicated):
    """Waits for nothing: the model says when something is read."""

    async def call(self, *command: Any, patience_s: float) -> Any:
        return await self._redis.call_at(command[-2], *command[:3], *command[-3:])


class GatedArchive:
    """Of an archive what a save stage uses."""

    def __init__(self, archive: Archive, gate: Gate) -> None:
        self._archive, self._gate = archive, gate

    async def save(self, rows: Sequence[NewMessage], *, shard: int, fence: int) -> list[SaveOutcome]:
        return await self._gate.through("save", lambda: self._archive.save(rows, shard=shard, fence=fence))


class GatedDelivery:
    """Of the delivery what a save stage uses: nobody is connected but the sender, who is the model's."""

    def __init__(self, gate: Gate, told: list[tuple[str, str]]) -> None:
        self._gate, self._told = gate, told

    async def look_up(self, users: object) -> dict[int, str]:
        return {}

    async def notify(self, notices: Sequence[SenderNotice], owners: object = None) -> None:
        async def say() -> None:
            self._told.extend(map(_heard, notices))

        if notices:
            await self._gate.through("notify", say)

    async def push(self, pushes: object, owners: object, *, in_line: bool) -> set[int]:
        return set()

    def is_resend_due(self, users: object) -> bool:
        return False


class NothingPushed:
    def take(self, id: int) -> str:
        return ""


class FixedSwitches:
    current = Switches(enabled=True)


class Instance:
    """The save stage of an instance that holds the shard, or believes so."""

    def __init__(self, name: str, fence: int, shards: Shards, archive: Archive, told: list[tuple[str, str]]) -> None:
        self.gate = Gate()
        gated = GatedShards.of_instance(shards, self.gate)
        delivery = cast(Delivery, GatedDelivery(self.gate, told))
        switches, metrics = cast(FeatureSwitches, FixedSwitches()), Metrics()
        # A lease that lapses unnoticed is the point: no clock of its own tells it.
        self.lease = ShardLease(0, name, fence, inf, shards.to_save(0))
        own, pushed = cast(Archive, GatedArchive(archive, self.gate)), cast(PushedMessages, NothingPushed())
        save = SaveStage(gated, own, delivery, cast(Receipts, None), switches, metrics, Refusals(metrics), 1, pushed)
        self.task = asyncio.ensure_future(self._ending(save.run(self.lease), self.gate))
        self.lost = False

    async def _ending(self, stage: Awaitable[None], gate: Gate) -> None:
        try:
            await stage
        except LostShard:
            self.lost = True
        gate.name, gate.go = "the end", None
        gate.arrived.set()

    async def step(self, name: str) -> None:
        """One step of the model. A read is repeated until it gives something: first it looks what others left."""
        await self.gate.open(name)
        while name.startswith("next") and not self.lost and not self.gate.found:
            await self.gate.open(name)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Walk:
    """The real world beside the model: one shard in Redis, one database, and the instances that live."""

    def __init__(self, shards: Shards, archive: Archive) -> None:
        self.shards, self.archive = shards, archive
        self.instances: dict[int, Instance] = {}
        self.told: list[tuple[str, str]] = []

    async def take(self, step: Step[State]) -> None:
        """The same step out there, and then a look whether all is as in the model."""
        actor, *rest = step.words
        if actor in NAMES:
            messages = cast(tuple[Message, ...], rest[1] if len(rest) > 1 else ())
            await self._instance(NAMES.index(str(actor)), str(rest[0]), messages, step.after)
        elif actor in ("the lease of", "the lease that"):
            await self._call("DEL", self.shards.keys.lease(self._tag))
        elif actor == "the claim of":
            await self._call("DEL", self.shards.keys.claim(self._tag, SENDER, str(rest[0])))
        elif actor == "the sender sends":
            await self._send(*cast(tuple[int, str, str], rest[0]), step.after)
        assert await self.seen() == expected(step.after)

    @property
    def _tag(self) -> str:
        return self.shards._tags[0]

    async def _call(self, command: str, key: str, *args: Any) -> Any:
        return await self.shards.redis.call(command, key, *args)

    async def _send(self, _: int, key: str, body: str, after: State) -> None:
        """Under the id the model has given it, if it is a new one; else the claim tells that of the first."""
        id = len(after.made)
        entry = ChatEntry("", id, key, SENDER, receiver_of(body), "TEXT", body, 0, 0, "i", "save_first")
        word, _known = await self.shards.accept(entry, body, share=100)
        assert word not in (AcceptReply.BUSY, AcceptReply.STALE_ID)

    async def _instance(self, number: int, verb: str, messages: tuple[Message, ...], after: State) -> None:
        if verb == "takes the lease":
            fence = await self.shards.take_lease(0, f"i{number}", await self.archive.fence(0), TTL_MS)
            assert fence
            self.instances[number] = Instance(f"i{number}", fence, self.shards, self.archive, self.told)
            return
        instance = self.instances[number]
        told = len(self.told)
        if verb != "dies":
            await instance.step(GATES[verb])
        if verb in ("tells saved of", "tells failed of"):
            assert self.told[told:] == [(verb.split()[1], message.key) for message in messages]
        assert verb == "dies" or instance.lost == (not after.workers[number].fence), "lost, or not, as in the model"
        if not after.workers[number].fence:
            await self.instances.pop(number).end()
            if instance.lost:  # what the keeper of the shards does
                await self.shards.release_lease(0, instance.lease.holder)

    async def end(self) -> None:
        for instance in self.instances.values():
            await instance.end()
        shards, keys, tag = self.shards, self.shards.keys, self._tag
        streams = (shards.accepted(0), shards.dead(0))
        claims = [keys.claim(tag, SENDER, key) for key in KEYS]
        await self._call("DEL", *streams, *claims, keys.shard(tag), keys.unsaved(tag), keys.lease(tag))

    # -- looking ---------------------------------------------------------------------------------

    async def seen(self) -> dict[str, object]:
        """What is out there, said as `expected` says it."""
        shards = self.shards
        accepted = [ChatEntry.parse(*row) for row in await self._call("XRANGE", shards.accepted(0), "-", "+")]
        dead = [ChatEntry.parse(*row) for row in await self._call("XRANGE", shards.dead(0), "-", "+")]
        claims = {}
        for key in KEYS:
            if claim := await shards.claim(SENDER, key):
                body = claim.get("digest", "")
                claims[key] = (claim["id"], claim["to"], body, "saved" in claim, int(claim.get("repeats", 0)))
        tally = await shards.status(0)
        rows = sorted((await self.archive.messages(range(1, 20))).values(), key=lambda row: row.seq)
        return {
            "accepted": [entry.id for entry in accepted if isinstance(entry, ChatEntry)],
            "dead": [entry.id for entry in dead if isinstance(entry, ChatEntry)],
            "claims": claims,
            "lease": tally.holder,
            "counts": (tally.backlog, tally.accepted, tally.dead, await shards.unsaved(SENDER)),
            "rows": [(row.id, row.client_msg_id, row.body) for row in rows],
            "fence": await self.archive.fence(0),
        }


def _heard(notice: SenderNotice) -> tuple[str, str]:
    frame = json.loads(notice.frame)
    return ("saved" if frame.get("ackType") == "saved" else "failed"), frame["clientMsgId"]


def expected(state: State) -> dict[str, object]:
    under_way = len(state.accepted)
    return {
        "accepted": [one.id for one in state.accepted],
        "dead": [one.id for one in state.dead if one.id in state.bad],  # of the others their senders are at fault
        "claims": {one.key: (str(one.id), str(one.to), one.body, one.saved, one.again) for one in state.claims},
        "lease": f"i{state.lease[0]}|{state.lease[1]}" if state.lease else "",
        "counts": (under_way, len(state.made), len(state.dead), under_way),
        "rows": [tuple(row) for row in state.rows],
        "fence": state.sql_fence,
    }
