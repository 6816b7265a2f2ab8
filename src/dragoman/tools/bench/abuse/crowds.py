"""Connections by the thousand that never say who they are: each goes by itself, and somebody honest still comes in."""

import asyncio
from collections import Counter

from dragoman.tools.bench.abuse.attack import CUT_OFF, Answers, Attack, good
from dragoman.tools.bench.abuse.scene import Scene
from dragoman.tools.bench.abuse.wire import HONEST, Ended, Wire, upgrade

AT_ONCE = 200
PATHS = ("/ws/session", "/ws/node", "/ws")


async def strangers(scene: Scene) -> Answers:
    """All of them at one instance."""
    seen: Answers = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def stay(number: int) -> None:
        async with gate:
            wire = await Wire.dial(scene.port)
            await wire.write(upgrade(PATHS[number % len(PATHS)]))
            try:
                status, _ = await wire.head()
            except Ended as end:
                seen[str(end)] += 1
                wire.drop()
                return
        try:
            seen[await wire.closed() if status == 101 else f"HTTP {status}"] += 1
        finally:
            wire.drop()

    async with asyncio.TaskGroup() as group:
        for number in range(scene.scale.strangers):
            group.create_task(stay(number))
        group.create_task(_come_in(scene, seen))
    return seen


async def _come_in(scene: Scene, seen: Answers) -> None:
    """Again and again while they wait, as somebody honest would."""
    for _ in range(scene.scale.crowd):
        try:
            async with scene.session(source=HONEST) as (wire, _):
                seen[await wire.lives()] += 1
            async with scene.chatter(source=HONEST) as wire:
                seen[await wire.lives()] += 1
        except Ended as end:
            seen[f"honest: {end}"] += 1
        await asyncio.sleep(0.05)


ATTACKS = (
    Attack(
        "strangers",
        "connections that never say who they are",
        strangers,
        good("lives on", "closed 4002", "closed 4005", "closed 4501"),
        good("closed 4003") | CUT_OFF,
    ),
)
