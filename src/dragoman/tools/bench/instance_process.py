"""One instance as a process, started as a supervisor starts it; what it logs goes to a file of the bench."""

import asyncio
import json
import os
import subprocess
import sys
from signal import SIGKILL
from typing import IO, Self

import aiohttp

from dragoman.config import Config, load
from dragoman.embedded.parent_watch import Child
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.processes import last_words

PLAIN = "dragoman.instance"
STAMPED = "dragoman.tools.bench.stamped_instance"
START_PATIENCE_S = 30.0
SEE_PATIENCE_S = 30.0
LOOK_S = 0.05


def configured(redis_url: str, prefix: str, name: str, port: int) -> Config:
    """As it comes, but for limits that keep a single client from making a load like ours."""
    return load(
        None,
        {},
        {
            "scheduler.phase2.enabled": True,
            "scheduler.phase2.instance_id": name,
            "scheduler.phase2.redis.url": redis_url,
            "scheduler.phase2.redis.key_prefix": prefix,
            "server.port": port,
            "server.admin_port": 0,
            "limits.frames_per_s": 100_000,
            "limits.node_frames_per_s": 100_000,
            "log.level": "error",
        },
    )


class InstanceProcess:
    def __init__(self, config: Config, log: IO[bytes], module: str = PLAIN) -> None:
        self.url = f"ws://127.0.0.1:{config.server.port}"
        self.http = f"http://127.0.0.1:{config.server.port}"
        self._log = log
        self._answer_fd, ready_fd = os.pipe()
        command = [sys.executable, "-m", module]
        try:
            self._child = Child(command, dies_by=SIGKILL, pass_fds=(ready_fd,), stdin=subprocess.PIPE, output=log)
        finally:
            os.close(ready_fd)
        stdin = self._child.process.stdin
        assert stdin is not None
        hello = {"config": json.loads(config.to_json()), "number": 1, "redis_url": None, "ready_fd": ready_fd}
        try:
            stdin.write(json.dumps(hello).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, and `ready` says so

    @property
    def pid(self) -> int:
        return self._child.pid

    async def ready(self) -> None:
        """Return when it serves; a BenchError when it never will."""
        lines = asyncio.StreamReader()
        pipe = os.fdopen(self._answer_fd, "rb", buffering=0)
        answers, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), pipe
        )
        try:
            async with asyncio.timeout(START_PATIENCE_S):
                line = await lines.readline()
        except TimeoutError:
            line = b"failed it took too long"
        finally:
            answers.close()
        word, _, text = line.decode(errors="replace").strip().partition(" ")
        if word != "ready":
            raise BenchError(f"An instance did not start: {text or last_words(self._log)}.")

    async def sees(self, nodes: int) -> None:
        """Return when it knows so many nodes: those of other instances are announced to it a moment later."""
        try:
            async with asyncio.timeout(SEE_PATIENCE_S), aiohttp.ClientSession(self.http) as http:
                while True:
                    async with http.get("/api/v1/stats") as answer:
                        if (await answer.json())["nodes_known"] >= nodes:
                            return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise BenchError(f"An instance did not hear of all {nodes} nodes.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.process.kill()
        self._child.wait()
        if self._child.process.stdin is not None:
            try:
                self._child.process.stdin.close()
            except BrokenPipeError:
                pass
        self._child.close()
