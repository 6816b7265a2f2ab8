"""One worker process.

In:  one JSON line on stdin {"config", "number", "redis_url", "ready_fd"}. Stdin stays open as long as the supervisor
     runs; its end makes the worker end as well, on systems whose kernel does not do that.
Out: one line on the descriptor `ready_fd`: "ready <text>" or "failed <sentence>".
"""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from signal import SIGKILL, Signals

from dragoman.embedded.parent_watch import Child


@dataclass(frozen=True, slots=True)
class Up:
    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    sentence: str


@dataclass(frozen=True, slots=True)
class Silent:
    """The worker ended, or closed the pipe, without a valid answer."""


Answer = Up | Failed | Silent
ANSWER_AFTER_END_S = 1.0


class Worker:
    def __init__(self, command: Sequence[str], hello: Mapping[str, object]) -> None:
        answer_end, ready_fd = os.pipe()
        self._answers = os.fdopen(answer_end, "rb", buffering=0)
        try:
            self.child = Child(command, dies_by=SIGKILL, pass_fds=(ready_fd,), stdin=subprocess.PIPE)
        except BaseException:
            self._answers.close()
            raise
        finally:
            os.close(ready_fd)
        line = json.dumps({**hello, "ready_fd": ready_fd}).encode() + b"\n"
        stdin = self.child.process.stdin
        # If it has ended already, `ended` reports that.
        with contextlib.suppress(BrokenPipeError):
            if stdin is not None:
                stdin.write(line)
                stdin.flush()

    async def answer(self, ending: asyncio.Task[int]) -> Answer:
        """The answer of the worker. `ending` is done when it has ended."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._answers
        )
        reading = asyncio.create_task(reader.readline())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            # The answer may still be in the pipe. The timeout is for a grandchild that keeps the pipe open.
            await asyncio.wait({reading}, timeout=ANSWER_AFTER_END_S)
            return _parse(reading.result() if reading.done() else b"")
        finally:
            reading.cancel()
            transport.close()

    async def ended(self) -> int:
        return await self.child.until_ended()

    def signal(self, number: Signals) -> None:
        self.child.signal(number)

    def close(self) -> None:
        """Kill the worker if it still runs, and close its pipes."""
        self.child.process.kill()
        self.child.wait()
        self._answers.close()
        if self.child.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.child.process.stdin.close()
        self.child.close()


def _parse(line: bytes) -> Answer:
    word, _, text = line.decode(errors="replace").strip().partition(" ")
    match word:
        case "ready":
            return Up(text)
        case "failed":
            return Failed(text)
        case _:
            return Silent()
