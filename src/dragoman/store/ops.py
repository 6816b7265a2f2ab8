"""What every Redis operation cost: counted and timed per operation and result.

Plain integers and one bisect a call; the exposition format is made on request. At 100,000
operations a second a metrics library's increment would be a tenth of the whole.
"""

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from dragoman.store.errors import RedisAway, UnknownOutcome

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


class Op:
    """The tally of one operation."""

    __slots__ = ("away", "buckets", "errors", "name", "ok", "seconds", "unknown")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ok = self.errors = self.away = self.unknown = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BOUNDS_S) + 1)

    def answered(self, seconds: float) -> None:
        self.ok += 1
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1

    def failed(self, error: Exception) -> None:
        if isinstance(error, RedisAway):
            self.away += 1
        elif isinstance(error, UnknownOutcome):
            self.unknown += 1
        else:
            self.errors += 1


class Ops(Collector):
    """All operations of one Redis client, as a Prometheus collector."""

    def __init__(self) -> None:
        self._ops: dict[str, Op] = {}

    def __getitem__(self, name: str) -> Op:
        op = self._ops.get(name)
        if op is None:
            op = self._ops[name] = Op(name)
        return op

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        total = CounterMetricFamily(
            "scheduler_phase2_redis_op",
            "Redis operations: ok, error, away (not sent), unknown (sent, no answer)",
            labels=["op", "result"],
        )
        seconds = HistogramMetricFamily(
            "dragoman_redis_op_seconds", "Time from call to reply; scripts have their own name", labels=["op"]
        )
        for op in self._ops.values():
            for result, count in (("ok", op.ok), ("error", op.errors), ("away", op.away), ("unknown", op.unknown)):
                if count:
                    total.add_metric([op.name, result], count)
            running, buckets = 0, []
            for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), op.buckets, strict=True):
                running += count
                buckets.append((bound, running))
            seconds.add_metric([op.name], buckets, op.seconds)
        yield total
        yield seconds
