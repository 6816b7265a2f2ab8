"""The supervisor: one task keeps Redis running, one task each worker, and one waits for the signal to stop.

Shutdown has a fixed order: workers stop first and may take `server.drain_s`; Redis runs, and is restarted if it ends,
until the last worker has ended. A second signal shortens everything. All processes are started from the main thread,
because a child is bound to the thread that started it (see `embedded.parent_watch`).
"""

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import structlog

from dragoman.embedded.binary import EngineError, find_server
from dragoman.embedded.engine import LOAD_BYTES_PER_S, RedisServer
from dragoman.supervisor.worker import Failed, Silent, Up, Worker

if TYPE_CHECKING:
    from dragoman.config import Config


logger = structlog.get_logger()

# Time for a worker to end after its drain, before it is killed. Closing takes 2.5 s for sockets whose clients do not
# answer, 4 s for requests that hang and 2 s to leave Redis: a worker killed before that must be taken over by others.
GRACE_S = 10.0
# The same after a second signal, or if the start has failed.
HURRY_S = 2.0
# Time for Redis to write its data and end.
ENGINE_S = 10.0
# The supervisor gives up on a worker that ends this often before it was ever ready.
MAX_FAILED_STARTS = 3
# Delays before a restart: none after the first end, then 0.5 s, doubled each time.
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 10.0
STABLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Ready:
    """All workers are ready: `workers` holds their answers, `engine` is the private Redis, if there is one."""

    elapsed_s: float
    port: int
    workers: tuple[str, ...]
    engine: RedisServer | None


def run(
    config: "Config",
    *,
    worker_command: Sequence[str] | None = None,
    on_ready: Callable[[Ready], None] | None = None,
    started: float | None = None,
) -> int:
    """Run until a signal; returns the exit code. `started`: the monotonic time from which the start is measured."""
    command = worker_command or [sys.executable, "-m", "dragoman.instance"]
    supervisor = Supervisor(config, command, on_ready, time.monotonic() if started is None else started)
    return asyncio.run(supervisor.main())


class RestartDelay:
    """The delay before a process is started again. A process that ran for `STABLE_S` resets the delay."""

    def __init__(self) -> None:
        self.ends = 0  # in a row

    def after(self, ran_s: float) -> float:
        """The seconds to wait after a process that ran for `ran_s`: 0, 0.5, 1, 2 … 10."""
        self.ends = 1 if ran_s >= STABLE_S else self.ends + 1
        if self.ends == 1:
            return 0.0
        # The exponent is bounded: after many ends the result would be too large for a float.
        return float(min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** min(self.ends - 2, 16)))


class Supervisor:
    def __init__(
        self, config: "Config", command: Sequence[str], on_ready: Callable[[Ready], None] | None, started: float
    ) -> None:
        self._config = config
        self._command = command
        self._on_ready = on_ready
        self._started = started
        self._port = config.server.port
        self._engine: RedisServer | None = None
        self._running: dict[int, Worker] = {}
        self._answers: dict[int, str] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: str | None = None

    async def main(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        try:
            self._port = probe_port(self._config.server.host, self._config.server.port)
            if not self._config.scheduler.phase2.enabled:
                self._engine = await asyncio.to_thread(self._prepare_engine)
            await self._keep_all()
        except (EngineError, PortError) as error:
            # Not a failure after a signal: it may have ended the program that was being probed.
            if not self._stopping.is_set():
                self._fail(str(error))
        finally:
            if self._engine is not None:
                await self._stop_engine(self._engine)
        if self._failure is not None:
            # With the name of the program, as commands print failures: children may have printed around it.
            print(f"dragoman: {self._failure}", file=sys.stderr, flush=True)
            return 1
        logger.info("stopped")
        return 0

    def _signalled(self, number: signal.Signals) -> None:
        """Act first, then log: a failure to log must not keep the signal from its effect."""
        if self._stopping.is_set():
            self._hurry.set()
            logger.warning("killing", signal=number.name)
        else:
            self._stopping.set()
            logger.info("stopping", signal=number.name, drain_s=self._config.server.drain_s)

    def _fail(self, sentence: str) -> None:
        """Stop with exit code 1 and the first reason."""
        self._failure = self._failure or sentence
        self._stopping.set()

    def _prepare_engine(self) -> RedisServer:
        settings = self._config.embedded
        binary = find_server(settings.redis_server)
        engine = RedisServer(binary, Path(settings.data_dir), fsync=settings.fsync)
        engine.prepare()
        return engine

    async def _keep_all(self) -> None:
        """Start Redis and the workers together: workers retry until Redis answers."""
        async with asyncio.TaskGroup() as group:
            redis = None
            if self._engine is not None:
                redis = group.create_task(self._keep_engine(self._engine), name="redis")
            workers = [
                group.create_task(self._keep_worker(number), name=f"worker {number}")
                for number in range(1, self._config.server.workers + 1)
            ]
            await self._stopping.wait()
            await self._end(workers)
            if redis is not None:
                redis.cancel()

    async def _keep_engine(self, engine: RedisServer) -> None:
        delay = RestartDelay()
        while True:
            started = time.monotonic()
            try:
                engine.launch()
                await asyncio.to_thread(engine.wait_ready, _log_loading)
                self._log_engine(engine, time.monotonic() - started)
                code = await engine.child.until_ended()
                tail = engine.log_tail(3)
            except EngineError as error:
                if delay.ends == 0:
                    self._fail(str(error))
                    return
                code, tail = None, str(error)
            pause_s = delay.after(time.monotonic() - started)
            logger.error(
                "redis_ended",
                exit_code=code,
                again_in_s=pause_s,
                ends=delay.ends,
                log=str(engine.log_path),
                tail=tail,
            )
            await asyncio.sleep(pause_s)

    async def _stop_engine(self, engine: RedisServer) -> None:
        """Stop Redis; a second signal shortens it."""
        ending = asyncio.create_task(asyncio.to_thread(engine.stop, ENGINE_S))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await asyncio.wait({ending}, timeout=HURRY_S)
        if not ending.done() and engine.running:
            engine.child.signal(signal.SIGKILL)
        await ending

    def _log_engine(self, engine: RedisServer, started_s: float) -> None:
        for remark in engine.remarks:
            logger.warning("redis_remark", remark=remark)
        engine.remarks.clear()
        logger.info(
            "redis_ready",
            server=str(engine.binary),
            source=engine.binary.source,
            pid=engine.pid,
            after_s=round(started_s, 2),
            socket=str(engine.socket_path),
            log=str(engine.log_path),
        )

    async def _keep_worker(self, number: int) -> None:
        delay = RestartDelay()
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_worker(number)
            if self._stopping.is_set():
                return
            pause_s = delay.after(time.monotonic() - started)
            if number not in self._answers and delay.ends >= MAX_FAILED_STARTS:
                self._fail(
                    f"Worker {number} ended {delay.ends} times before it was ready (exit code {code}). "
                    "Its last output says why."
                )
                return
            logger.error("worker_ended", worker=number, exit_code=code, again_in_s=pause_s, ends=delay.ends)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _run_worker(self, number: int) -> int:
        """Run a worker once; returns its exit code."""
        worker = self._running[number] = Worker(self._command, self._hello(number))
        try:
            async with asyncio.TaskGroup() as group:
                ending = group.create_task(worker.ended())
                match answer := await worker.answer(ending):
                    case Up(text):
                        self._up(number, text, worker.child.pid)
                    case Failed(sentence):
                        self._failed(number, sentence)
                        worker.signal(signal.SIGTERM)
                    case Silent():
                        worker.signal(signal.SIGTERM)
                    case _:
                        assert_never(answer)
            return ending.result()
        finally:
            del self._running[number]
            worker.close()

    def _hello(self, number: int) -> dict[str, object]:
        config = json.loads(self._config.to_json())
        # The probe replaced port 0: all workers, restarted ones included, use the same port.
        config["server"]["port"] = self._port
        return {"config": config, "number": number, "redis_url": self._engine.url if self._engine else None}

    def _up(self, number: int, text: str, pid: int) -> None:
        announced = len(self._answers) == self._config.server.workers
        self._answers[number] = text
        logger.info("worker_ready", worker=number, pid=pid, answer=text)
        if announced or self._stopping.is_set() or len(self._answers) < self._config.server.workers:
            return
        if self._on_ready is not None:
            workers = tuple(self._answers[each] for each in sorted(self._answers))
            self._on_ready(Ready(time.monotonic() - self._started, self._port, workers, self._engine))

    def _failed(self, number: int, sentence: str) -> None:
        """A worker that cannot start stops everything; one that was ready before is restarted."""
        if number in self._answers:
            logger.error("worker_failed", worker=number, reason=sentence)
        else:
            self._fail(sentence)

    async def _end(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        for worker in self._running.values():
            worker.signal(signal.SIGTERM)
        hurry = asyncio.create_task(self._hurry.wait())
        all_ended = asyncio.create_task(_all(keepers))
        timeout_s = HURRY_S if self._failure else self._config.server.drain_s + GRACE_S
        await asyncio.wait({hurry, all_ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for number, worker in self._running.items():
            logger.warning("worker_killed", worker=number, pid=worker.child.pid)
            worker.signal(signal.SIGKILL)
        await all_ended


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _log_loading(size: int) -> None:
    """Warn about a load that takes more than half a second."""
    level = logger.warning if size > LOAD_BYTES_PER_S // 2 else logger.debug
    level("redis_loading", megabytes=round(size / 1e6, 1), expected_s=round(size / LOAD_BYTES_PER_S, 1))


# -- port ------------------------------------------------------------------------------------------
#
# Checks that the port is free before the workers share it.
#
# Workers bind with SO_REUSEPORT, so a second Dragoman on the same port would get a part of the connections. The check
# binds the port without that option, and closes it again.

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class PortError(Exception):
    """The port cannot be used; `str()` is one sentence for the operator."""


def probe_port(host: str, port: int) -> int:
    """The port, if it can be bound on every address of `host`; for 0, a free port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise PortError(f"server.host {host!r} is not an address to listen on: {error}.") from error
    absent: OSError | None = None
    bound = 0
    for family, kind, protocol, _, address in found:
        try:
            bound = _bind_once(family, kind, protocol, (address[0], bound or port, *address[2:]))
        except OSError as error:
            # A name may have an IPv6 address on a machine without IPv6: one address that works is enough.
            if error.errno not in _ABSENT:
                raise PortError(_sentence(host, bound or port, error)) from error
            absent = error
    if absent is not None and not bound:
        raise PortError(_sentence(host, port, absent)) from absent
    return bound


def _bind_once(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> int:
    with socket.socket(family, kind, protocol) as probe:
        # Ignores connections that have just ended, but not a socket that listens.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(address)
        # With SO_REUSEADDR, bind succeeds beside another bound socket; listen does not.
        probe.listen(1)
        return int(probe.getsockname()[1])


def _sentence(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} on {host} is taken by another program. Stop that program, or set another server.port."
        case errno.EACCES:
            return f"Port {port} on {host} needs root. Set server.port to a number above 1023."
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            return f"This machine does not have the address {host}. Set another server.host."
        case number:
            reason = os.strerror(number or 0)
            return f"Port {port} on {host} cannot be used ({reason}). Set another server.host or server.port."
