"""A process that makes load, told what to do by lines, answering each with one.

    parent   fleet = await LoadProcess.start("dragoman.tools.bench.fleet_load", log)      {"act": "open", "count": 20}
             await fleet.act("open", count=20)                                 {"done": {…}} or {"failed": "sentence"}
    child    play({"open": open, …})

One command at a time. A load process ends with its parent, however that ends, and when its stdin does.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from signal import SIGKILL
from typing import IO, Any, Self

import uvloop

from dragoman.embedded.parent_watch import Child
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.processes import last_words

PATIENCE_S = 60.0

Act = Callable[..., Awaitable[Mapping[str, Any] | None]]


class LoadProcess:
    """The parent's side. Started from the main thread, so that the kernel binds it to us."""

    def __init__(self, module: str, log: IO[bytes], answers_fd: int) -> None:
        self.module = module
        self._log = log
        self._lines = asyncio.StreamReader()
        self._answers: asyncio.ReadTransport | None = None
        command = [sys.executable, "-m", module, str(answers_fd)]
        self.child = Child(command, dies_by=SIGKILL, pass_fds=(answers_fd,), stdin=subprocess.PIPE, output=log)

    @classmethod
    async def start(cls, module: str, log: IO[bytes]) -> Self:
        """What it prints goes to `log`, a file."""
        ours, theirs = os.pipe()
        pipe = os.fdopen(ours, "rb", buffering=0)
        try:
            load_process = cls(module, log, theirs)
        finally:
            os.close(theirs)
        try:
            load_process._answers, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(load_process._lines), pipe
            )
        except BaseException:
            load_process.close()
            raise
        return load_process

    @property
    def pid(self) -> int:
        return self.child.pid

    async def act(self, act: str, /, patience_s: float = PATIENCE_S, **arguments: Any) -> dict[str, Any]:
        stdin = self.child.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"act": act, **arguments}).encode() + b"\n")
            stdin.flush()
            async with asyncio.timeout(patience_s):
                line = await self._lines.readline()
        except (BrokenPipeError, TimeoutError) as error:
            raise BenchError(f"{self.module} did not do `{act}`: {str(error) or 'no answer in time'}.") from error
        answer: dict[str, Any] = json.loads(line) if line else {"failed": f"it ended: {last_words(self._log)}"}
        if "failed" in answer:
            raise BenchError(f"{self.module} could not do `{act}`: {answer['failed']}.")
        return answer["done"] or {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # The loop closes the pipe itself, a turn later; closed under its hands it would abort the process.
        if self._answers is not None:
            self._answers.close()
        self.child.process.kill()
        self.child.wait()
        if self.child.process.stdin is not None:
            try:
                self.child.process.stdin.close()
            except BrokenPipeError:
                pass
        self.child.close()


def play(acts: Mapping[str, Act]) -> None:
    """The child's side: obey until stdin ends."""
    uvloop.run(_play(acts, int(sys.argv[1])))


async def _play(acts: Mapping[str, Act], answers: int) -> None:
    orders = asyncio.StreamReader()
    stdin = os.fdopen(0, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), stdin)
    with os.fdopen(answers, "wb", buffering=0) as out:
        while line := await orders.readline():
            order = json.loads(line)
            answer: dict[str, object]
            try:
                answer = {"done": await acts[order.pop("act")](**order)}
            except Exception as error:  # whatever it is, it is for the parent to hear
                answer = {"failed": _reason(error)}
            out.write(json.dumps(answer).encode() + b"\n")


def _reason(error: BaseException) -> str:
    """Of a group, that of the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).rstrip(".") or type(error).__name__
