"""A worker as the supervisor knows it: worker.py <folder for what it saw> <what is strange about it>.

It writes its hello to `<folder>/<number>-<life>.json`; when it is told to end it notes that in Redis, which is there
for as long as any worker is. Strange are: `nothing`, `mute` (ends without an answer), `refuses` (answers *failed*),
`refuses-later` (from its second life on), `ready-then-dies`, `stubborn` (ignores SIGTERM), `closes-pipe`.
"""

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from dragoman.embedded.engine import Wire


def reach(url: str) -> Wire:
    """Redis comes up beside the workers: tried until it is there."""
    until = time.monotonic() + 10
    while True:
        try:
            wire = Wire(Path(url.removeprefix("unix://")))
            wire.call("PING")
            return wire
        except Exception:
            if time.monotonic() > until:
                raise
            select.select([], [], [], 0.005)


def main(folder: Path, strange: str) -> None:
    hello = json.loads(sys.stdin.buffer.readline())
    number = hello["number"]
    life = sum(1 for _ in folder.glob(f"{number}-*.json")) + 1
    told = {**hello, "pid": os.getpid()}
    draft = folder / f"draft-{number}"
    draft.write_text(json.dumps(told))
    if strange == "mute":
        draft.rename(folder / f"{number}-{life}.json")
        sys.exit(3)
    if strange == "refuses" or (strange == "refuses-later" and life > 1):
        draft.rename(folder / f"{number}-{life}.json")
        os.write(hello["ready_fd"], b"failed Set security.secret: the address is not a loopback.\n")
        sys.exit(1)
    wire = reach(hello["redis_url"]) if hello["redis_url"] else None

    def end(_: int, __: FrameType | None) -> None:
        if wire is not None:
            wire.call("INCR", "drained")
        sys.exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if strange == "stubborn" else end)
    draft.rename(folder / f"{number}-{life}.json")
    if strange == "closes-pipe":
        os.close(hello["ready_fd"])
        signal.pause()
    os.write(hello["ready_fd"], f"ready worker {number}, life {life}\n".encode())
    if strange == "ready-then-dies":
        sys.exit(7)
    while sys.stdin.buffer.read(1):
        pass


main(Path(sys.argv[1]), sys.argv[2])
