"""Counters, gauges and histograms as plain numbers; the exposition format is made when somebody asks.

The same few calls as the metrics library's own (`inc`, `set`, `observe`, `labels`), a tenth of the price: no lock,
because there is one loop, and no walk over the buckets.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from dragoman.domain.history import quantile_ms

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Number:
    """A counter's or gauge's value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        self.value += by

    def set(self, value: float) -> None:
        self.value = value


class Spread:
    """A histogram's buckets."""

    __slots__ = ("_bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.total += value
        self.buckets[bisect_left(self._bounds, value)] += 1

    def quantile(self, share: float) -> float | None:
        """In milliseconds: the upper bound of the bucket that holds it; None before the first observation."""
        return quantile_ms(self.buckets, self._bounds, share)

    def merged(self, others: Iterable[Sequence[int]]) -> "Spread":
        """With the buckets of others. Those that were counted in other bounds, by another release, are left out."""
        whole = Spread(self._bounds)
        same = [buckets for buckets in others if len(buckets) == len(self.buckets)]
        whole.buckets = [sum(counts) for counts in zip(self.buckets, *same, strict=True)]
        return whole

    def cumulative(self) -> list[tuple[str, float]]:
        running, rows = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.buckets, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows


Child = TypeVar("Child", Number, Spread)


class Labelled(Generic[Child]):
    """One child for each combination of label values; who asks often keeps the child."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.children: dict[tuple[str, ...], Child] = {}

    def new(self) -> Child:
        raise TypeError("a kind of metric makes its own children")

    def labels(self, *values: str) -> Child:
        child = self.children.get(values)
        if child is None:
            child = self.children[tuple(map(str, values))] = self.new()
        return child


class Numbers(Labelled[Number]):
    def new(self) -> Number:
        return Number()


class Spreads(Labelled[Spread]):
    def __init__(self, names: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(names)
        self._bounds = bounds

    def new(self) -> Spread:
        return Spread(self._bounds)


class Board(Collector):
    """All of them, for the registry."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, type[Family], Numbers | Spreads]] = []

    def counter(self, name: str, help: str) -> Number:
        return self.counters(name, help, ()).labels()

    def counters(self, name: str, help: str, labels: Sequence[str]) -> Numbers:
        return self._add(name.removesuffix("_total"), help, CounterMetricFamily, Numbers(labels))

    def gauge(self, name: str, help: str) -> Number:
        return self.gauges(name, help, ()).labels()

    def gauges(self, name: str, help: str, labels: Sequence[str]) -> Numbers:
        return self._add(name, help, GaugeMetricFamily, Numbers(labels))

    def histogram(self, name: str, help: str, bounds: Sequence[float]) -> Spread:
        return self.histograms(name, help, (), bounds).labels()

    def histograms(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> Spreads:
        return self._add(name, help, HistogramMetricFamily, Spreads(labels, bounds))

    Kind = TypeVar("Kind", Numbers, Spreads)

    def _add(self, name: str, help: str, family: type[Family], metric: Kind) -> Kind:
        self._rows.append((name, help, family, metric))
        return metric

    def collect(self) -> Iterator[Family]:
        for name, help, family, metric in self._rows:
            made = family(name, help, labels=list(metric.names))
            for values, child in list(metric.children.items()):
                if isinstance(made, HistogramMetricFamily):
                    assert isinstance(child, Spread)
                    made.add_metric(list(values), child.cumulative(), child.total)
                else:
                    assert isinstance(child, Number)
                    made.add_metric(list(values), child.value)
            yield made
