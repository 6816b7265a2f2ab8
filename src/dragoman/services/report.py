"""What an operator sees: the whole cluster from any instance, read from shared state."""

import asyncio
from typing import Any

import msgspec

from dragoman.services.letter_boxes import DeadLetters
from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.inbox import Inboxes
from dragoman.store.instances import Instances
from dragoman.store.reservations import Reservations

MAX_NODES = 1000


class Report:
    def __init__(
        self,
        instance: str,
        instances: Instances,
        inboxes: Inboxes,
        letters: DeadLetters,
        view: FleetView,
        reservations: Reservations,
        default_slots: int,
    ) -> None:
        self.instance, self._instances, self._inboxes, self._letters = instance, instances, inboxes, letters
        self._view, self._reservations, self._default_slots = view, reservations, default_slots

    async def cluster(self) -> dict[str, Any]:
        """Instances with their durability and inboxes, nodes with their slots, dead letters."""
        present = await self._instances.all()
        tallies = await asyncio.gather(*(self._inboxes.tally(name) for name in present))
        return {
            "told_by": self.instance,
            "instances": [
                {
                    **(msgspec.to_builtins(presence) if presence is not None else {"instance": name}),
                    "alive": presence is not None,
                    "inbox": {
                        "waiting": tally.waiting,
                        "bytes": tally.bytes,
                        "added": tally.added,
                        "done": tally.done,
                        "dead": tally.dead,
                    },
                }
                for (name, presence), tally in zip(present.items(), tallies, strict=True)
            ],
            "nodes": await self._nodes(),
            "node_count": len(self._view.fleet),
            "dead_letters": await self._letters.counts(),
        }

    async def _nodes(self) -> list[dict[str, Any]]:
        nodes = sorted(self._view.fleet.nodes(), key=lambda node: node.id)[:MAX_NODES]
        reserved = await self._reserved([node.id for node in nodes])
        return [
            {
                "node_id": node.id,
                "instance": node.instance,
                "epoch": node.epoch,
                "slots": node.slots or self._default_slots,
                "reserved": jobs,
                "running": node.running,
                "draining": node.draining,
                "languages": {"asr": sorted(node.asr), "semantic": sorted(node.semantic), "tts": sorted(node.tts)},
                "ready": sorted(node.ready) if node.ready is not None else None,
            }
            for node, jobs in zip(nodes, reserved, strict=True)
        ]

    async def _reserved(self, nodes: list[str]) -> list[int]:
        """The slots taken on each. What has lapsed stays in the set until the next is taken: it does not count."""
        if not nodes:
            return []
        redis, keys = self._reservations.redis, self._reservations.keys
        now_ms = max(int(seconds) * 1000 for seconds, _ in await redis.on_each("TIME"))
        return list(
            await asyncio.gather(*(redis.call("ZCOUNT", keys.reserved(node), now_ms, "+inf") for node in nodes))
        )
