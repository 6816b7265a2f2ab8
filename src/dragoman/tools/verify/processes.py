"""Instances and nodes as processes that can be killed, paused and asked how they are.

Each ends with the process that started it, however that ends, and is started as its users start it: an instance as
a supervisor would, a node by its command. What they print goes to a file.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGCONT, SIGKILL, Signals
from typing import IO, Any

import aiohttp

from dragoman.config import Config
from dragoman.embedded.parent_watch import Child
from dragoman.tools.verify.errors import CannotRun

LOG_TAIL = 2000


class Process:
    """One child. To be started from the main thread, so that the kernel binds it to us."""

    def __init__(
        self, command: Sequence[str], log: Path, *, stdin: int = subprocess.DEVNULL, pass_fds: Sequence[int] = ()
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.child = Child(
                [sys.executable, *command], dies_by=SIGKILL, stdin=stdin, output=output, pass_fds=pass_fds
            )

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self.child.process

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def runs(self) -> bool:
        return self.child.ended() is None

    def signal(self, number: int) -> None:
        self.child.signal(Signals(number))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.runs:
            self.signal(SIGCONT)
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        self.child.close()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:]


class InstanceProcess(Process):
    """One `python -m dragoman.instance`, as a supervisor would start it."""

    def __init__(self, settings: Config, log: Path) -> None:
        self.settings, self.port = settings, settings.server.port
        answers, ready_fd = os.pipe()
        self._answers: IO[bytes] = os.fdopen(answers, "rb")
        try:
            super().__init__(["-m", "dragoman.instance"], log, stdin=subprocess.PIPE, pass_fds=(ready_fd,))
        finally:
            os.close(ready_fd)
        hello = {"config": json.loads(settings.to_json()), "number": 1, "redis_url": None, "ready_fd": ready_fd}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(hello).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, and `ready` says so

    @property
    def name(self) -> str:
        return self.settings.scheduler.phase2.instance_id

    async def ready(self) -> str:
        """What it says when it is up; CannotRun with its reason when it is not."""
        line = await asyncio.to_thread(self._answers.readline)
        word, _, text = line.decode().strip().partition(" ")
        if word != "ready":
            raise CannotRun(f"An instance did not start: {text or 'it died'}\n{self.last_words()}")
        return text

    def close(self) -> None:
        super().close()
        self._answers.close()

    async def get(self, path: str) -> Any:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{self.port}{path}") as answer:
            return await answer.json(content_type=None)

    async def node_count(self) -> int:
        return int((await self.get("/api/v1/cluster"))["node_count"])

    async def has_nodes(self, count: int) -> bool:
        return await self.node_count() == count

    async def instances(self) -> dict[str, bool]:
        """Every instance this one knows of, and whether it lives."""
        return {row["instance"]: row["alive"] for row in (await self.get("/api/v1/cluster"))["instances"]}

    async def sees_only(self, *names: str) -> bool:
        return await self.instances() == dict.fromkeys(names, True)

    async def metric(self, name: str) -> float:
        return float((await self.get("/api/v1/metrics"))[name])

    async def is_ready(self) -> bool:
        return bool((await self.get("/health/ready"))["ready"])

    async def is_not_ready(self) -> bool:
        return not await self.is_ready()

    async def lease_is_over(self) -> bool:
        return bool((await self.get("/api/v1/stats"))["lease_s"] <= 0)


class NodeProcess(Process):
    """One `dragoman node`, with the engine that only pretends unless another is named."""

    def __init__(self, ports: Sequence[int], log: Path, **options: object) -> None:
        flags = [part for port in ports for part in ("--url", f"ws://127.0.0.1:{port}/ws/node")]
        for name, value in options.items():
            flags += [f"--{name.replace('_', '-')}", str(value)]
        super().__init__(["-m", "dragoman.cli.main", "node", *flags], log)
