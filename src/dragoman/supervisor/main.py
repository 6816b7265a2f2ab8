"""Starting, keeping and ending: one task keeps Redis, one task keeps each worker, one waits for the end.

The order of the end is what this is arranged for: workers are asked first and may take `server.drain_s`; Redis runs,
and is restarted, until the last of them is gone. A second signal shortens all of it. Everything is started from the
main thread, because a child is bound to the thread that started it (see `embedded.parent_watch`).
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

from dragoman.embedded.engine import LOAD_BYTES_PER_S, EngineError, RedisServer, find_server
from dragoman.supervisor.backoff import Backoff
from dragoman.supervisor.port import PortError, probe_port
from dragoman.supervisor.settings import Settings
from dragoman.supervisor.worker import Failed, Silent, Up, Worker

logger = structlog.get_logger()

# What a worker gets beyond its drain before it is killed. Closing takes 2.5 s for sockets whose peers do not follow,
# 4 s for requests that hang and 2 s for leaving Redis: killed before that, it leaves itself for others to take over.
GRACE_S = 10.0
# The same when somebody is in a hurry, or the start has failed.
HURRY_S = 2.0
# What Redis gets to write its data and end.
ENGINE_S = 10.0
# A worker that dies this often before it was ever ready will not become ready.
START_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Ready:
    """Every worker answers: `workers` is what each of them said, `engine` the private Redis, if there is one."""

    elapsed_s: float
    port: int
    workers: tuple[str, ...]
    engine: RedisServer | None


def run(
    config: Settings,
    *,
    worker_command: Sequence[str] | None = None,
    on_ready: Callable[[Ready], None] | None = None,
    started: float | None = None,
) -> int:
    """Run until a signal ends it; the exit code. `started`: the monotonic moment from which the start is counted."""
    command = worker_command or [sys.executable, "-m", "dragoman.instance"]
    supervisor = Supervisor(config, command, on_ready, time.monotonic() if started is None else started)
    return asyncio.run(supervisor.main())


class Supervisor:
    def __init__(
        self, config: Settings, command: Sequence[str], on_ready: Callable[[Ready], None] | None, started: float
    ) -> None:
        self._config = config
        self._command = command
        self._on_ready = on_ready
        self._started = started
        self._port = config.server.port
        self._engine: RedisServer | None = None
        self._running: dict[int, Worker] = {}
        self._said: dict[int, str] = {}
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
            # Once told to stop nothing has failed: the signal may have hit what was just being asked.
            if not self._stopping.is_set():
                self._fail(str(error))
        finally:
            if self._engine is not None:
                await self._stop_engine(self._engine)
        if self._failure is not None:
            # As every failure of the command line is told: it may stand among what children have printed.
            print(f"dragoman: {self._failure}", file=sys.stderr, flush=True)
            return 1
        logger.info("stopped")
        return 0

    def _signalled(self, number: signal.Signals) -> None:
        """Act first, log after: what goes wrong with the log must not keep a signal from its effect."""
        if self._stopping.is_set():
            self._hurry.set()
            logger.warning("killing", signal=number.name)
        else:
            self._stopping.set()
            logger.info("stopping", signal=number.name, drain_s=self._config.server.drain_s)

    def _fail(self, sentence: str) -> None:
        """End everything with exit code 1; the first reason is the one that is told."""
        self._failure = self._failure or sentence
        self._stopping.set()

    def _prepare_engine(self) -> RedisServer:
        settings = self._config.embedded
        binary = find_server(settings.redis_server)
        engine = RedisServer(binary, Path(settings.data_dir), fsync=settings.fsync)
        engine.prepare()
        return engine

    async def _keep_all(self) -> None:
        """Workers begin to load while Redis comes up, and try to reach it until it is there."""
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
        backoff = Backoff()
        while True:
            born = time.monotonic()
            try:
                engine.launch()
                await asyncio.to_thread(engine.wait_ready, _tell_loading)
                self._tell_engine(engine, time.monotonic() - born)
                code = await engine.child.until_ended()
                told = engine.log_tail(3)
            except EngineError as error:
                if backoff.deaths == 0:
                    self._fail(str(error))
                    return
                code, told = None, str(error)
            pause_s = backoff.after(time.monotonic() - born)
            logger.error(
                "redis_died",
                exit_code=code,
                again_in_s=pause_s,
                deaths=backoff.deaths,
                log=str(engine.log_path),
                told=told,
            )
            await asyncio.sleep(pause_s)

    async def _stop_engine(self, engine: RedisServer) -> None:
        """A signal that comes meanwhile shortens it."""
        ending = asyncio.create_task(asyncio.to_thread(engine.stop, ENGINE_S))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await asyncio.wait({ending}, timeout=HURRY_S)
        if not ending.done() and engine.running:
            engine.child.signal(signal.SIGKILL)
        await ending

    def _tell_engine(self, engine: RedisServer, started_s: float) -> None:
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
        backoff = Backoff()
        while not self._stopping.is_set():
            born = time.monotonic()
            code = await self._live(number)
            if self._stopping.is_set():
                return
            pause_s = backoff.after(time.monotonic() - born)
            if number not in self._said and backoff.deaths >= START_DEATHS:
                self._fail(
                    f"Worker {number} ended {backoff.deaths} times before it was ready (exit code {code}): "
                    "what it printed last says why."
                )
                return
            logger.error("worker_died", worker=number, exit_code=code, again_in_s=pause_s, deaths=backoff.deaths)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _live(self, number: int) -> int:
        """One life of a worker, from its start to its exit code."""
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
        # A port of 0 was settled by the probe: every worker, and every later life of one, takes the same.
        config["server"]["port"] = self._port
        return {"config": config, "number": number, "redis_url": self._engine.url if self._engine else None}

    def _up(self, number: int, text: str, pid: int) -> None:
        announced = len(self._said) == self._config.server.workers
        self._said[number] = text
        logger.info("worker_ready", worker=number, pid=pid, told=text)
        if announced or self._stopping.is_set() or len(self._said) < self._config.server.workers:
            return
        if self._on_ready is not None:
            workers = tuple(self._said[each] for each in sorted(self._said))
            self._on_ready(Ready(time.monotonic() - self._started, self._port, workers, self._engine))

    def _failed(self, number: int, sentence: str) -> None:
        """A worker that cannot start ends everything; one that could before is tried again."""
        if number in self._said:
            logger.error("worker_failed", worker=number, told=sentence)
        else:
            self._fail(sentence)

    async def _end(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        for worker in self._running.values():
            worker.signal(signal.SIGTERM)
        hurry = asyncio.create_task(self._hurry.wait())
        all_ended = asyncio.create_task(_all(keepers))
        patience_s = HURRY_S if self._failure else self._config.server.drain_s + GRACE_S
        await asyncio.wait({hurry, all_ended}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for number, worker in self._running.items():
            logger.warning("worker_killed", worker=number, pid=worker.child.pid)
            worker.signal(signal.SIGKILL)
        await all_ended


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _tell_loading(size: int) -> None:
    """Nobody notices a load of a fraction of a second: that is not worth a warning."""
    level = logger.warning if size > LOAD_BYTES_PER_S // 2 else logger.debug
    level("redis_loading", megabytes=round(size / 1e6, 1), expected_s=round(size / LOAD_BYTES_PER_S, 1))
