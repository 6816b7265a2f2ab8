"""One life of one worker process: what it is told, what it answers, how it ends.

In:  one JSON line on stdin {"config", "number", "redis_url", "ready_fd"}; stdin then stays open for as long as the
     supervisor lives, and its end tells the worker to end as well (where the kernel does not see to that).
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
    """It ended, or closed the pipe, without an answer that we know."""


Answer = Up | Failed | Silent
LAST_WORDS_S = 1.0


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
        # One that is dead already is noticed by its end, not here.
        with contextlib.suppress(BrokenPipeError):
            if stdin is not None:
                stdin.write(line)
                stdin.flush()

    async def answer(self, ending: asyncio.Task[int]) -> Answer:
        """What it says, or that it says nothing; `ending` is done when it has ended."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._answers
        )
        saying = asyncio.create_task(reader.readline())
        try:
            await asyncio.wait({saying, ending}, return_when=asyncio.FIRST_COMPLETED)
            # Its last words may still be in the pipe; a grandchild that holds the pipe open is not waited for.
            await asyncio.wait({saying}, timeout=LAST_WORDS_S)
            return _understand(saying.result() if saying.done() else b"")
        finally:
            saying.cancel()
            transport.close()

    async def ended(self) -> int:
        return await self.child.until_ended()

    def signal(self, number: Signals) -> None:
        self.child.signal(number)

    def close(self) -> None:
        """Kill it if it still runs, and let go of its pipes."""
        self.child.process.kill()
        self.child.wait()
        self._answers.close()
        if self.child.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.child.process.stdin.close()
        self.child.close()


def _understand(line: bytes) -> Answer:
    word, _, text = line.decode(errors="replace").strip().partition(" ")
    match word:
        case "ready":
            return Up(text)
        case "failed":
            return Failed(text)
        case _:
            return Silent()
