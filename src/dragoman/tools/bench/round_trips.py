"""How often a job waits for Redis between its cut and its `job_assign`: counted by the connection of a real instance.

The instance, one node and one session share this process, so that the connection can be asked at both moments. One
job at a time: every write between the two is then one of this job, and one it waited for. What the instance writes
for itself now and then may fall in between, so the middle of many jobs counts.
"""

import asyncio
from statistics import median
from typing import Any

from dragoman import logs
from dragoman.instance.instance import Instance
from dragoman.protocol.peer import Assign, CancelJob
from dragoman.services.speech.job_request import JobRequest
from dragoman.store.inbox import PushReply
from dragoman.tools.bench.environment import configured
from dragoman.tools.bench.speech_load import NodeLoad, SpeechLoad
from dragoman.tools.load_process import serve
from dragoman.tools.processes import CannotRun

DRAIN_TIMEOUT_S = 10.0


class Probe:
    """Reads the count of writes at the two ends: a job is taken, its assignment is sent."""

    def __init__(self, instance: Instance) -> None:
        self._redis = instance.redis
        self._cut_at = 0
        self.counts: list[int] = []
        dispatcher, router = instance.services.dispatcher, instance.services.router
        take, to_node = dispatcher.take, router.to_node

        def taken(request: JobRequest, state_written: "asyncio.Future[bool] | None" = None) -> None:
            self._cut_at = self._redis.flushes
            take(request, state_written)

        async def sent(owner: str, message: Assign | CancelJob) -> PushReply:
            if isinstance(message, Assign):
                self.counts.append(self._redis.flushes - self._cut_at)
            return await to_node(owner, message)

        dispatcher.take, router.to_node = taken, sent  # type: ignore[method-assign]


async def measure(redis_url: str, jobs: int) -> dict[str, Any]:
    logs.configure("error", "json")
    config = configured(redis_url, "bench-round-trips", 1)
    instance = await Instance.start(config)
    try:
        url = f"ws://127.0.0.1:{config.server.port}"
        nodes, speakers = NodeLoad(), SpeechLoad()
        await nodes.open([url], 1, 4, ["es"])
        await speakers.open([url], 1, ["es"])
        probe = Probe(instance)
        for _ in range(jobs):
            speakers.sessions[0].send()
            await speakers.rest()
            # What follows a result (slot back, released) is written before the next job begins.
            await instance.services.dispatcher.drained(DRAIN_TIMEOUT_S)
        if len(probe.counts) != jobs:
            raise CannotRun(f"of {jobs} jobs, {len(probe.counts)} were assigned")
        return {"before_assign": median(probe.counts)}
    finally:
        await instance.stop()


if __name__ == "__main__":
    serve({"measure": measure})
