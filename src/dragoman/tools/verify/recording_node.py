"""A node that records every job it gets: `python -m dragoman.tools.verify.recording_node --help`.

It answers audio (see `pieces`) with the numbers of its pieces, after a random delay; some jobs take long, so that later
ones are answered first. It answers silence with an empty result. Its file shows which node had which job when, and how
often. It previews utterances while they are spoken: each time, with the numbers of the pieces so far.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, assert_never

from dragoman import node
from dragoman.node import Job, Node, PreviewStream, Result, Timing
from dragoman.protocol.node import JobAssign
from dragoman.tools.verify import pieces
from dragoman.tools.verify.recordings import EventFile, Kind, NodeEvent

MODULE = "dragoman.tools.verify.recording_node"
LANGUAGES = ("en", "es")
ALIVE_EVERY_S = 0.2
SLOW_SHARE = 0.1
QUICK = Timing(backoff_first_s=0.05, backoff_longest_s=0.5, heartbeat_s=2.0)


@dataclass(frozen=True, slots=True)
class Handler:
    """Previews name the pieces so far."""

    work: Callable[[Job], Awaitable[Result | None]]

    async def __call__(self, job: Job) -> Result | None:
        return await self.work(job)

    async def preview(self, stream: PreviewStream) -> None:
        heard: list[int] = []
        async for audio in stream:
            heard += pieces.decode(audio)
            stream.partial(pieces.text(heard))


class RecordingNode:
    def __init__(
        self, urls: Sequence[str], node_id: str, file: EventFile, *, slots: int, delay_s: float, slow_s: float
    ) -> None:
        self._name, self._slots, self._file = node_id, slots, file
        self._delay_s, self._slow_s = delay_s, slow_s
        self._random = Random(node_id)
        self._node = Node(
            urls,
            Handler(self._work),
            languages=LANGUAGES,
            slots=slots,
            node_id=node_id,
            on_event=self._on_event,
            timing=QUICK,
        )

    async def run(self) -> None:
        self._write(Kind.BEGAN)
        signs = asyncio.get_running_loop().create_task(self._report_alive())
        try:
            await self._node.run(signals=True)
        finally:
            signs.cancel()

    async def _report_alive(self) -> None:
        while True:
            self._write(Kind.ALIVE)
            await asyncio.sleep(ALIVE_EVERY_S)

    # -- what happens to it --------------------------------------------------------------------------

    def _on_event(self, event: node.NodeEvent) -> None:
        match event:
            case node.Registered():
                self._write(Kind.REGISTERED, url=event.url)
            case node.ConnectFailed() | node.Disconnected():
                self._write(Kind.LOST, url=event.url)
            case node.Assigned():
                self._write(Kind.GIVEN, event.assign)
            case node.Cancelled():
                self._write(Kind.CANCELLED, job=event.job_id)
            case _:
                assert_never(event)

    async def _work(self, job: Job) -> Result | None:
        words = pieces.decode(job.audio)
        self._write(Kind.STARTED, job.assign, pieces=pieces.text(words))
        usual_s = self._slow_s if self._random.random() < SLOW_SHARE else self._delay_s
        await asyncio.sleep(usual_s * self._random.uniform(0.2, 1.8))
        silent = all(word < 0 for word in words)
        # Written before it is sent: no record of a result may be later than the result.
        self._write(Kind.ENDED, job.assign, outcome="empty" if silent else "ok")
        return None if silent else Result(text_asr=pieces.text(words), text_translated=pieces.text(words))

    def _write(self, kind: Kind, assign: JobAssign | None = None, **fields: Any) -> None:
        if assign is not None:
            fields |= {
                "job": assign.job_id,
                "attempt": assign.attempt_id,
                "session": assign.session_id,
                "index": assign.utterance_index,
                "turn": assign.turn_id or "",
            }
        event = NodeEvent(time.monotonic(), kind, self._name, os.getpid(), slots=self._slots, **fields)
        self._file.write(event)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description="A node that writes down what it is given."
    )
    parser.add_argument("--url", action="append", required=True, help="of an instance; may be given several times")
    parser.add_argument("--id", required=True)
    parser.add_argument("--file", type=Path, required=True, help="events are appended to it")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--delay-ms", type=float, default=80.0, help="a job takes so long, more or less")
    parser.add_argument("--slow-ms", type=float, default=900.0, help="and one in ten so long")
    given = parser.parse_args()
    asyncio.run(_be(given))


async def _be(given: argparse.Namespace) -> None:
    file = EventFile(given.file)
    delay_s, slow_s = given.delay_ms / 1000, given.slow_ms / 1000
    await RecordingNode(given.url, given.id, file, slots=given.slots, delay_s=delay_s, slow_s=slow_s).run()


if __name__ == "__main__":
    main()
