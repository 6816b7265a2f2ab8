"""Samples the metrics of this instance every few seconds, and merges the samples of all instances for charts."""

from collections.abc import Callable
from time import monotonic
from typing import Any

from dragoman.domain.history import KEPT_MS, POINT_MS, Sample, merge
from dragoman.services.metrics import BUCKETS_S, Metrics
from dragoman.store.console import Samples
from dragoman.store.instances import Instances


class History:
    def __init__(
        self,
        instance: str,
        metrics: Metrics,
        samples: Samples,
        instances: Instances,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.instance, self._metrics, self._samples, self._instances = instance, metrics, samples, instances
        self._clock = clock
        self._taken_at = clock()
        self._counters, self._histograms = self._totals()

    async def run_once(self) -> None:
        now = self._clock()
        seconds = now - self._taken_at
        if seconds <= 0:
            return
        counters, histograms = self._totals()
        sample = Sample(
            self.instance,
            round(seconds, 3),
            {name: value - self._counters[name] for name, value in counters.items()},
            {name: _grown(self._histograms[name], buckets) for name, buckets in histograms.items()},
            self._gauges(),
        )
        await self._samples.add(sample)
        # After the write: what Redis did not accept is in the next sample.
        self._taken_at, self._counters, self._histograms = now, counters, histograms

    async def points(self, since_ms: int = 0) -> dict[str, Any]:
        """The points of the whole cluster from `since_ms` on, of the last half hour at most."""
        now_ms = await self._instances.now_ms()
        oldest = max(since_ms, now_ms - KEPT_MS)
        found = merge(await self._samples.since(oldest - oldest % POINT_MS), BUCKETS_S, now_ms)
        return {"now_ms": now_ms, "point_ms": POINT_MS, "kept_ms": KEPT_MS, "points": found}

    def _totals(self) -> tuple[dict[str, float], dict[str, list[int]]]:
        metrics = self._metrics
        histograms = {
            "job_ms": metrics.stage.labels("result"),
            "placed_ms": metrics.stage.labels("dispatched"),
            "accept_ms": metrics.chat_accept_ack,
            "save_ms": metrics.chat_save_lag,
            "lag_ms": metrics.loop_lag,
        }
        counters = {
            "ended": sum(child.value for child in metrics.jobs.children.values()),
            "failovers": sum(child.value for child in metrics.failovers.children.values()),
            "accepted": float(sum(metrics.chat_accept_ack.buckets)),
            "busy": metrics.chat_server_busy.value,
        }
        return counters, {name: list(spread.buckets) for name, spread in histograms.items()}

    def _gauges(self) -> dict[str, float]:
        metrics = self._metrics
        return {
            "sessions": metrics.sessions.value,
            "jobs": metrics.driven.value,
            "users": metrics.chat_users.value,
        }


def _grown(before: list[int], after: list[int]) -> list[int]:
    return [new - old for old, new in zip(before, after, strict=True)]
