"""Merges the samples of all instances into one series of points for the whole cluster.

Each instance takes a sample every `SAMPLE_MS`: how much its counters and the buckets of its histograms grew since the
sample before, and the value of its gauges. Points are `POINT_MS` apart, so that each has a sample of every instance.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SAMPLE_MS: Final = 5_000
POINT_MS: Final = 10_000
KEPT_MS: Final = 1_800_000
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Sample:
    """What one instance counted in `seconds`."""

    instance: str
    seconds: float
    counters: Mapping[str, float]
    histograms: Mapping[str, Sequence[int]]
    gauges: Mapping[str, float]


Point = dict[str, float | None]


def quantile_ms(buckets: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """The upper bound of the bucket that holds it, in ms; None if nothing was counted."""
    wanted, running = share * sum(buckets), 0
    for bound, count in zip((*bounds, bounds[-1]), buckets, strict=True):
        running += count
        if running and running >= wanted:
            return bound * 1000
    return None


def merge(samples: Iterable[tuple[int, Sample]], bounds: Sequence[float], now_ms: int) -> list[Point]:
    """One point for each `POINT_MS` in which there is a sample, oldest first; `at` is where it begins.

    The last points are left out: samples for them may still arrive.
    """
    grouped: dict[int, list[Sample]] = {}
    for at_ms, sample in samples:
        grouped.setdefault(at_ms - at_ms % POINT_MS, []).append(sample)
    complete = now_ms - POINT_MS - SAMPLE_MS
    return [_point(at, grouped[at], bounds) for at in sorted(grouped) if at <= complete]


def _point(at: int, samples: Sequence[Sample], bounds: Sequence[float]) -> Point:
    by_instance: dict[str, list[Sample]] = {}
    for sample in samples:
        by_instance.setdefault(sample.instance, []).append(sample)
    made: Point = {"at": at, "instances": len(by_instance)}
    for own in by_instance.values():
        seconds = sum(sample.seconds for sample in own)
        for name in own[-1].counters:
            grown = sum(sample.counters.get(name, 0) for sample in own)
            made[name] = (made.get(name) or 0) + grown / seconds
        for name, value in own[-1].gauges.items():
            made[name] = (made.get(name) or 0) + value
    for name, buckets in _added(samples, len(bounds) + 1).items():
        for called, share in QUANTILES.items():
            made[f"{name}_{called}"] = quantile_ms(buckets, bounds, share)
    return made


def _added(samples: Sequence[Sample], size: int) -> dict[str, list[int]]:
    """The histograms of all samples, bucket by bucket; those of a release with other buckets are left out."""
    added: dict[str, list[int]] = {}
    for sample in samples:
        for name, buckets in sample.histograms.items():
            if len(buckets) == size:
                added[name] = [a + b for a, b in zip(added.get(name, [0] * size), buckets, strict=True)]
    return added
