"""A process that makes load: it takes one command a line and answers each with one line.

    parent   nodes = await LoadProcess.start("dragoman.tools.bench.speech_load", log)     {"command": "open_nodes", …}
             await nodes.call("open_nodes", count=20)                          {"done": {…}} or {"failed": "sentence"}
    child    serve({"open_nodes": open_nodes, …})

One command at a time. A load process ends with its parent, however that ends, and when its stdin does.
"""

import asyncio
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from signal import SIGCONT, SIGKILL, Signals
from typing import Any, ClassVar, Self

import aiohttp
import uvloop

from dragoman.config import Config
from dragoman.embedded.parent_watch import Child

# -- processes -------------------------------------------------------------------------------------
#
# Instances, nodes and other children as processes that can be killed, paused and asked for their state.
#
# Each ends with the process that started it, however that ends, and is started as its users start it: an instance as
# a supervisor would, a node by its command. Its output goes to a file.


LOG_TAIL = 2000
START_TIMEOUT_S = 90.0
NODES_TIMEOUT_S = 30.0
POLL_S = 0.02
MAX_LINE_BYTES = 64 * 2**20  # an answer may have the times of everything that was measured
NO_OUTPUT = "it wrote no output"
PLAIN_INSTANCE = "dragoman.instance"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class CannotRun(Exception):
    """Something that a bench or a verification needs did not start or did not work: one sentence for the user."""


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_S)


class Process:
    """One child. Start it from the main thread, so that the kernel binds it to this process."""

    start_child: ClassVar[type[Child]] = Child

    def __init__(
        self, command: Sequence[str], log: Path, *, stdin: int = subprocess.DEVNULL, pass_fds: Sequence[int] = ()
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.child = self.start_child(
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:]

    def write_line(self, message: object) -> None:
        """One JSON line to its stdin. Raises BrokenPipeError if it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()


class Answers:
    """The reading end of a pipe whose other end a child has."""

    def __init__(self) -> None:
        self._fd, self.childs_fd = os.pipe()
        self._lines: asyncio.StreamReader | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._closed = False

    async def line(self, timeout_s: float) -> str:
        """The next line, '' at the end. Raises TimeoutError."""
        if self._lines is None:
            self._lines = lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
            pipe = os.fdopen(self._fd, "rb", buffering=0)
            self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(lines), pipe
            )
        async with asyncio.timeout(timeout_s):
            return (await self._lines.readline()).decode(errors="replace")

    def close(self) -> None:
        """The loop closes the pipe itself, one turn later; closed before that, it would abort the process."""
        if self._closed:
            return
        self._closed = True
        if self._transport is not None:
            self._transport.close()
        elif self._lines is None:
            os.close(self._fd)


class InstanceProcess(Process):
    """One `python -m dragoman.instance`, or another module that serves like it, as a supervisor would start it."""

    def __init__(self, settings: Config, log: Path, *module: str) -> None:
        self.settings, self.port = settings, settings.server.port
        self.url, self.http = f"ws://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port}"
        self._answers = Answers()
        ready_fd = self._answers.childs_fd
        try:
            super().__init__(["-m", *(module or (PLAIN_INSTANCE,))], log, stdin=subprocess.PIPE, pass_fds=(ready_fd,))
        finally:
            os.close(ready_fd)
        hello = {"config": json.loads(settings.to_json()), "number": 1, "redis_url": None, "ready_fd": ready_fd}
        try:
            self.write_line(hello)
        except BrokenPipeError:
            pass  # it has ended already, and `ready` says so

    @property
    def name(self) -> str:
        return self.settings.scheduler.phase2.instance_id

    async def ready(self) -> str:
        """Wait until it serves, and return what it reports then. Raises CannotRun with the reason if it does not."""
        try:
            line = await self._answers.line(START_TIMEOUT_S)
        except TimeoutError:
            line = "failed it took too long"
        self._answers.close()  # here: this loop may be closed before the process is
        await asyncio.sleep(0)
        word, _, text = line.strip().partition(" ")
        if word != "ready":
            raise CannotRun(f"An instance did not start: {text or 'it died'}\n{self.log_tail()}")
        return text

    def close(self) -> None:
        super().close()
        self._answers.close()

    async def get(self, path: str) -> Any:
        async with aiohttp.ClientSession() as http, http.get(f"{self.http}{path}") as answer:
            return await answer.json(content_type=None)

    async def node_count(self) -> int:
        return int((await self.get("/api/v1/cluster"))["node_count"])

    async def has_nodes(self, count: int) -> bool:
        return await self.node_count() == count

    async def wait_for_nodes(self, count: int) -> None:
        """Wait until it knows so many nodes: those of other instances are announced to it a moment later."""

        async def known() -> bool:
            return int((await self.get("/api/v1/stats"))["nodes_known"]) >= count

        if not await until(known, NODES_TIMEOUT_S):
            raise CannotRun(f"An instance did not learn of all {count} nodes.")

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


# -- resources -------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU time of all its threads so far, user and system, as the kernel counts it."""
    # The name in brackets may hold spaces; the fields are counted from the closing bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def last_line(log: Path) -> str:
    """The last line with text that was written to a log, NO_OUTPUT if there is none."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), NO_OUTPUT)


def run_when_idle() -> None:
    """Give this process only the CPU time that no other process wants: it stands for other machines.

    A low priority is not enough: a process that becomes runnable meanwhile waits for the scheduler's next tick, 4 ms.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


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


async def open_all(
    numbers: Iterable[int], at_a_time: int, timeout_s: float, one: Callable[[int], Awaitable[None]]
) -> None:
    """Open connections, so many at a time, each within the timeout. The first that fails ends it, with its error."""
    gate = asyncio.Semaphore(at_a_time)

    async def opened(number: int) -> None:
        async with gate, asyncio.timeout(timeout_s):
            await one(number)

    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(opened(number))


def serve(commands: Mapping[str, Command]) -> None:
    """The child's side: execute commands until stdin ends."""
    uvloop.run(_serve(commands, int(sys.argv[1])))


async def _serve(commands: Mapping[str, Command], answers: int) -> None:
    lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
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
