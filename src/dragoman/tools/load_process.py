"""A process that makes load: it takes one command a line and answers each with one line.

    parent   nodes = await LoadProcess.start("dragoman.tools.bench.speech_load", log)     {"command": "open_nodes", …}
             await nodes.call("open_nodes", count=20)                          {"done": {…}} or {"failed": "sentence"}
    child    serve({"open_nodes": open_nodes, …})

One command at a time. A load process ends with its parent, however that ends, and when its stdin does.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop

from dragoman.tools.processes import Answers, CannotRun, Process, last_line

CALL_TIMEOUT_S = 60.0

Command = Callable[..., Awaitable[Mapping[str, Any] | None]]


class LoadProcess(Process):
    """The parent's side. Start it from the main thread, so that the kernel binds it to this process."""

    def __init__(self, module: str, log: Path) -> None:
        self.module, self._answers = module, Answers()
        childs_fd = self._answers.childs_fd
        try:
            super().__init__(["-m", module, str(childs_fd)], log, stdin=subprocess.PIPE, pass_fds=(childs_fd,))
        finally:
            os.close(childs_fd)

    async def call(self, command: str, /, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        try:
            self.write_line({"command": command, **arguments})
            line = await self._answers.line(timeout_s)
        except (BrokenPipeError, TimeoutError) as error:
            raise CannotRun(f"{self.module} did not do `{command}`: {str(error) or 'no answer in time'}.") from error
        answer: dict[str, Any] = json.loads(line) if line else {"failed": f"it ended: {last_line(self.log)}"}
        if "failed" in answer:
            raise CannotRun(f"{self.module} could not do `{command}`: {answer['failed']}.")
        return answer["done"] or {}

    def close(self) -> None:
        self._answers.close()
        super().close()


def serve(commands: Mapping[str, Command]) -> None:
    """The child's side: execute commands until stdin ends."""
    uvloop.run(_serve(commands, int(sys.argv[1])))


async def _serve(commands: Mapping[str, Command], answers: int) -> None:
    lines = asyncio.StreamReader()
    stdin = os.fdopen(0, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), stdin)
    with os.fdopen(answers, "wb", buffering=0) as out:
        while line := await lines.readline():
            arguments = json.loads(line)
            answer: dict[str, object]
            try:
                answer = {"done": await commands[arguments.pop("command")](**arguments)}
            except Exception as error:  # the parent reports it, whatever it is
                answer = {"failed": _reason(error)}
            out.write(json.dumps(answer).encode() + b"\n")


def _reason(error: BaseException) -> str:
    """Of a group, that of the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).rstrip(".") or type(error).__name__
