"""The process that attacks. It runs at a low priority: it stands for machines that are not this one.

An attack is repeated until the time is over, at least once, with a pause between two rounds.
"""

import asyncio
import os
import time
from collections import Counter
from typing import Any

from dragoman.instance.process import raise_file_limit
from dragoman.tools.bench.abuse import accounts, connections, frames, messages, rooms
from dragoman.tools.bench.abuse.attack import Answers, Attack, Scale, Target
from dragoman.tools.processes import run_when_idle, serve

ATTACKS: tuple[Attack, ...] = (
    *messages.ATTACKS,
    *frames.ATTACKS,
    *connections.ATTACKS,
    *accounts.ATTACKS,
    *rooms.ATTACKS,
)
BY_NAME = {attack.name: attack for attack in ATTACKS}


PAUSE_S = 0.05
NICE = 10
SPARE_FILES = 2500


async def give_way() -> None:
    run_when_idle()


async def attack(name: str, seconds: float, scale: dict[str, int], **where: Any) -> dict[str, Any]:
    """Rounds of one attack, and what was answered; `where` has the other fields of `Target`."""
    target = Target(scale=Scale(**scale), **where)
    if not raise_file_limit(target.scale.strangers + SPARE_FILES):
        raise OSError("that many connections take more open files than the system allows (ulimit -Hn)")
    seen: Answers = Counter()
    began, rounds = time.monotonic(), 0
    while not rounds or time.monotonic() - began < seconds:
        seen += await BY_NAME[name].run(target)
        rounds += 1
        await asyncio.sleep(PAUSE_S)
    return {"answers": dict(seen), "rounds": rounds, "seconds": time.monotonic() - began}


def main() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # also where the bench itself was given a higher one
    os.nice(NICE)
    serve({"give_way": give_way, "attack": attack})


if __name__ == "__main__":
    main()
