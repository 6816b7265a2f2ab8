"""A server whose log pipe is closed, or full and unread: it goes on serving, and every signal still ends it."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import aiohttp
import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest

from dragoman.embedded.engine import free_port
from support.cluster import Speaker, config
from support.commands import READY, environment
from support.redis_servers import RedisAt
from support.waiting import Descendants, alive, wait_for

DRAIN_S = 1
# Ending takes the drain, at most 1 s for log lines that wait, and what a busy machine adds. A hang takes for ever.
END_S = 45.0

INSTANCES = {"instance": ["-m", "dragoman.instance"], "stuck": [str(Path(__file__).with_name("stuck_instance.py"))]}

_direct = build_opener(ProxyHandler({}))


class Piped:
    """One command whose stdout and stderr are a pipe that the test holds the other end of."""

    def __init__(self, command: list[str], port: int, folder: Path, **options: Any) -> None:
        self.port, self._below = port, Descendants()
        self.read_end, write_end = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder, stdout=write_end, stderr=write_end, start_new_session=True, env=environment(), **options,
        )  # fmt: skip
        self._own_end: int | None = write_end
        self._said, self._reading = b"", True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        os.set_blocking(self.read_end, False)
        while self._reading:
            try:
                data = os.read(self.read_end, 65536)
            except BlockingIOError:
                time.sleep(0.002)
                continue
            if not data:
                return
            self._said += data

    def until(self, text: str) -> None:
        wait_for(lambda: text.encode() in self._said, text)

    def break_off(self) -> None:
        """The reader of the pipe dies."""
        self._stop_reading()
        os.close(self.read_end)

    def fill(self) -> None:
        """The reader of the pipe reads no more, and the pipe is full to the last byte."""
        self._stop_reading()
        fcntl.fcntl(self.read_end, fcntl.F_SETPIPE_SZ, 4096)
        # A description of our own: O_NONBLOCK on the shared one would change what the server's writes do.
        with open(os.open(f"/proc/self/fd/{self._own_end}", os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0) as end:
            for size in (4096, 1):
                while end.write(b"x" * size) is not None:
                    pass

    def _stop_reading(self) -> None:
        self._reading = False
        self._reader.join()

    def healthy(self) -> bool:
        with _direct.open(f"http://127.0.0.1:{self.port}/health/ready", timeout=10) as answer:
            return bool(json.load(answer)["ready"])

    def worker(self) -> int:
        below = map(psutil.Process, self._below.of(self.process.pid))
        return next(int(process.pid) for process in below if "dragoman.instance" in process.cmdline())

    def end(self, number: signal.Signals) -> tuple[int, list[int]]:
        """The exit code, and what is left of the processes below."""
        below = self._below.of(self.process.pid)
        self.process.send_signal(number)
        code = self.process.wait(END_S)
        return code, [pid for pid in below if alive(pid)]

    def close(self) -> None:
        self._below.of(self.process.pid)
        self.process.kill()
        self.process.wait()
        self._below.kill()
        self._reading = False
        if self.process.stdin is not None:
            self.process.stdin.close()
        for end in (self._own_end, self.read_end):
            try:
                os.close(end or -1)
            except OSError:
                pass


Start = Callable[..., Piped]


@pytest.fixture
def started(tmp_path: Path, redis_server: RedisAt) -> Iterator[Start]:
    running: list[Piped] = []

    def start(what: str, *args: str) -> Piped:
        port = free_port()
        if what in INSTANCES:
            running.append(_instance(INSTANCES[what], tmp_path, redis_server, port))
        else:
            flags = ["--port", str(port), "--set", "server.admin_port=0", "--set", f"server.drain_s={DRAIN_S}"]
            running.append(Piped(["-m", "dragoman.cli.main", what, *flags, *args], port, tmp_path))
        running[-1].until("instance ready" if what in INSTANCES else READY)
        return running[-1]

    yield start
    for each in running:
        each.close()


def _instance(command: list[str], folder: Path, redis: RedisAt, port: int) -> Piped:
    """A worker process alone, as a supervisor starts it."""
    settings = config(redis, f"t-{port}", server__port=port, server__drain_s=DRAIN_S)
    answers, ready_fd = os.pipe()
    hello = {"config": json.loads(settings.to_json()), "number": 1, "redis_url": None, "ready_fd": ready_fd}
    piped = Piped(command, port, folder, stdin=subprocess.PIPE, pass_fds=(ready_fd,))
    os.close(ready_fd)
    assert piped.process.stdin is not None
    piped.process.stdin.write(json.dumps(hello).encode() + b"\n")
    piped.process.stdin.flush()
    with os.fdopen(answers, "rb") as answer:
        assert answer.readline().startswith(b"ready ")
    return piped


CLOSED = pytest.param(Piped.break_off, id="closed")
FULL = pytest.param(Piped.fill, id="full")
# A full pipe blocks a writer, which is the harder case; a closed one differs only in the error.
broken = pytest.mark.parametrize("breaks", [pytest.param(Piped.break_off, id="closed", marks=pytest.mark.long), FULL])


@pytest.mark.parametrize("breaks", [CLOSED, FULL])
@pytest.mark.parametrize(
    ("what", "number"),
    [
        pytest.param("instance", signal.SIGTERM, id="instance-SIGTERM"),
        pytest.param("serve", signal.SIGINT, id="serve-SIGINT"),
        pytest.param("instance", signal.SIGINT, id="instance-SIGINT", marks=pytest.mark.long),
        pytest.param("serve", signal.SIGTERM, id="serve-SIGTERM", marks=pytest.mark.long),
    ],
)
def test_server_whose_log_pipe_is_broken_still_ends_by_a_signal(
    started: Start, what: str, breaks: Callable[[Piped], None], number: signal.Signals
) -> None:
    server = started(what)
    breaks(server)
    assert server.healthy()
    assert server.end(number) == (0, [])


@broken
async def test_demo_whose_log_pipe_is_broken_still_translates_and_ends_by_ctrl_c(
    started: Start, breaks: Callable[[Piped], None]
) -> None:
    demo = started("demo", "--engine", "sim", "--nodes", "1")
    demo.until("node registered")
    breaks(demo)
    async with aiohttp.ClientSession() as http, http.ws_connect(f"ws://127.0.0.1:{demo.port}/ws/session") as ws:
        speaker = Speaker(ws)
        await speaker.init()
        await speaker.utterance(0)
        await speaker.result(0)
    assert demo.end(signal.SIGINT) == (0, [])


@broken
def test_second_signal_kills_a_worker_that_does_not_end_although_the_log_pipe_is_broken(
    started: Start, breaks: Callable[[Piped], None]
) -> None:
    server = started("serve", "--set", "server.drain_s=600")
    breaks(server)
    os.kill(server.worker(), signal.SIGSTOP)
    # Two different signals: the kernel merges two of the same kind that are pending.
    server.process.send_signal(signal.SIGTERM)
    assert server.end(signal.SIGINT) == (0, [])


@broken
def test_second_signal_ends_an_instance_that_does_not_stop(started: Start, breaks: Callable[[Piped], None]) -> None:
    instance = started("stuck")
    breaks(instance)
    instance.process.send_signal(signal.SIGTERM)
    assert instance.end(signal.SIGINT) == (-signal.SIGALRM, [])
