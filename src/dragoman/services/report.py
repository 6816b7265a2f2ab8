"""The state of the whole cluster for operators, read from Redis by any instance."""

import asyncio
from typing import Any

import msgspec

from dragoman.domain.fleet import Fleet, Node
from dragoman.services.dead_letters import DeadLetters
from dragoman.store.inbox import Inboxes
from dragoman.store.instances import Instances
from dragoman.store.nodes import Nodes
from dragoman.store.reservations import Reservations
from dragoman.store.storm import Storm

MAX_NODES = 1000
MAX_GONE = 20


class Report:
    def __init__(
        self,
        instance: str,
        instances: Instances,
        inboxes: Inboxes,
        letters: DeadLetters,
        fleet: Fleet,
        nodes: Nodes,
        reservations: Reservations,
        storm: Storm,
        default_slots: int,
    ) -> None:
        self.instance, self._instances, self._inboxes, self._letters = instance, instances, inboxes, letters
        self._fleet, self._nodes, self._reservations = fleet, nodes, reservations
        self._storm, self._default_slots = storm, default_slots

    async def cluster(self) -> dict[str, Any]:
        """Instances with their durability and inboxes, nodes with their slots, dead letters."""
        return {
            "reported_by": self.instance,
            "now_ms": await self._instances.now_ms(),
            "instances": await self._instance_rows(),
            "nodes": await self._node_rows(self._sorted_nodes()[:MAX_NODES]),
            "node_count": len(self._fleet),
            "dead_letters": await self._letters.counts(),
        }

    async def overview(self) -> dict[str, Any]:
        """The same without the list of nodes, which may be long, but with those that disconnected last."""
        return {
            "reported_by": self.instance,
            "now_ms": await self._instances.now_ms(),
            "instances": (present := await self._instance_rows()),
            "gone_instances": await self._gone_instances({row["instance"] for row in present}),
            "node_count": len(self._fleet),
            "gone": await self._gone(),
            "dead_letters": await self._letters.counts(),
        }

    async def nodes(self, count: int, after: str = "", part: str = "") -> dict[str, Any]:
        """A page of the nodes whose id, instance or languages contain `part`; `next`: `after` of the next page."""
        found = [node for node in self._sorted_nodes() if node.id > after and _has(node, part)]
        return {
            "nodes": await self._node_rows(found[:count]),
            "next": found[count - 1].id if len(found) > count else "",
        }

    async def _instance_rows(self) -> list[dict[str, Any]]:
        present = await self._instances.all()
        answering = await self._instances.answering(present)
        counts = await asyncio.gather(*(self._inboxes.counts(name) for name in present))
        waiting = await asyncio.gather(*(self._inboxes.oldest_ms(name) for name in present))
        return [
            {
                **(msgspec.to_builtins(presence) if presence is not None else {"instance": name}),
                "alive": presence is not None,
                "answering": name in answering,
                "inbox": {
                    "waiting": count.waiting,
                    "bytes": count.bytes,
                    "added": count.added,
                    "done": count.done,
                    "dead": count.dead,
                    "oldest_ms": oldest,
                },
            }
            for (name, presence), count, oldest in zip(present.items(), counts, waiting, strict=True)
        ]

    async def _gone_instances(self, present: set[str]) -> list[dict[str, Any]]:
        gone = await self._instances.gone()
        return [msgspec.to_builtins(one) for one in gone if one.instance not in present][:MAX_GONE]

    def _sorted_nodes(self) -> list[Node]:
        return sorted(self._fleet.nodes(), key=lambda node: node.id)

    async def _node_rows(self, nodes: list[Node]) -> list[dict[str, Any]]:
        reserved = await self._reserved([node.id for node in nodes])
        cooling = await asyncio.gather(*(self._storm.cooling(node.id) for node in nodes))
        return [
            {
                "node_id": node.id,
                "tenant": node.tenant,
                "instance": node.instance,
                "epoch": node.epoch,
                "slots": node.slots or self._default_slots,
                "reserved": jobs,
                "running": node.running,
                "draining": node.draining,
                "languages": {
                    "asr": sorted(node.asr),
                    "semantic": sorted(node.semantic),
                    "tts": sorted(node.tts),
                    "text": sorted(node.text),
                },
                "ready": sorted(node.ready) if node.ready is not None else None,
                "cooling_until_ms": cools.services,
                # Until then it gets no job, after that one at a time until one succeeds.
                "failing": {"paused_until_ms": cools.paused_until_ms, "pauses": cools.pauses} if cools.pauses else None,
            }
            for node, jobs, cools in zip(nodes, reserved, cooling, strict=True)
        ]

    async def _gone(self) -> list[dict[str, Any]]:
        """Nodes that disconnected, the latest first. In Redis the connected ones come before them."""
        fleet = self._fleet
        seen = await self._nodes.last_seen(len(fleet) + MAX_GONE)
        return [{"node_id": id, "last_ms": at_ms} for id, at_ms in seen if id not in fleet][:MAX_GONE]

    async def _reserved(self, nodes: list[str]) -> list[int]:
        """The reserved slots of each node, without expired reservations."""
        if not nodes:
            return []
        now_ms = await self._instances.now_ms()
        return await asyncio.gather(*(self._reservations.count(node, now_ms) for node in nodes))


def _has(node: Node, part: str) -> bool:
    languages = node.asr.union(node.semantic, *node.text)
    return not part or part in node.id or part in node.instance or part in languages
