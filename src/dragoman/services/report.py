"""What an operator sees: the whole cluster from any instance, read from shared state."""

import asyncio
from typing import Any

import msgspec

from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.inbox import Inboxes
from dragoman.store.instances import Instances
from dragoman.store.letters import Letters
from dragoman.store.reservations import Reservations

MAX_NODES = 1000


class Report:
    def __init__(
        self,
        instance: str,
        instances: Instances,
        inboxes: Inboxes,
        letters: Letters,
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
        dead = {name: len(await self._letters.list(name, 1000)) for name in await self._letters.instances()}
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
            "dead_letters": dead,
        }

    async def _nodes(self) -> list[dict[str, Any]]:
        nodes = sorted(self._view.fleet.nodes(), key=lambda node: node.id)[:MAX_NODES]
        held = await asyncio.gather(*(self._reservations.held(node.id) for node in nodes))
        return [
            {
                "node_id": node.id,
                "instance": node.instance,
                "epoch": node.epoch,
                "slots": node.slots or self._default_slots,
                "reserved": len(jobs),
                "running": node.running,
                "draining": node.draining,
                "languages": {"asr": sorted(node.asr), "semantic": sorted(node.semantic), "tts": sorted(node.tts)},
                "ready": sorted(node.ready) if node.ready is not None else None,
            }
            for node, jobs in zip(nodes, held, strict=True)
        ]
