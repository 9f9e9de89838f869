"""The present values of all metrics, and their form for Prometheus.

Our own store instead of prometheus_client's metric objects: one lock makes each scrape a single moment, gauges can be
absent until they are known, and no `_created` series are made (switching those off is a global of the library).
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from elastic.metrics.definition import Definition, Kind

Labels = tuple[str, ...]


@dataclass
class _Buckets:
    """A histogram's state: how many observations fell into each bucket, the last being +Inf."""

    counts: list[int]
    total: float = 0.0


@dataclass
class _Series:
    numbers: dict[Labels, float] = field(default_factory=dict)
    buckets: dict[Labels, _Buckets] = field(default_factory=dict)


class Values:
    """Values of the given metrics. All methods may be called from any thread."""

    def __init__(self, definitions: Iterable[Definition]) -> None:
        self._lock = threading.Lock()
        self._series = {definition: self._begin(definition) for definition in definitions}

    def set(self, definition: Definition, value: float, *labels: str) -> None:
        """Set a gauge."""
        self._require(definition, Kind.GAUGE)
        with self._lock:
            self._series[definition].numbers[definition.bounded(labels)] = float(value)

    def add(self, definition: Definition, amount: float, *labels: str) -> None:
        """Let a counter grow. A negative amount raises ValueError."""
        self._require(definition, Kind.COUNTER)
        if amount < 0:
            raise ValueError(f"{definition.name} can only grow, got {amount}")
        with self._lock:
            self._series[definition].numbers[definition.bounded(labels)] += amount

    def observe(self, definition: Definition, value: float, *labels: str) -> None:
        """Put one observation into a histogram."""
        self._require(definition, Kind.HISTOGRAM)
        with self._lock:
            state = self._series[definition].buckets[definition.bounded(labels)]
            state.counts[bisect.bisect_left(definition.buckets, value)] += 1
            state.total += value

    def get(self, definition: Definition, *labels: str) -> float | None:
        """A gauge's or counter's value; None while it is absent."""
        with self._lock:
            return self._series[definition].numbers.get(labels)

    def collect(self) -> list[Metric]:
        """All values at this moment. Metrics without a value are left out."""
        with self._lock:
            families = [_family(definition, series) for definition, series in self._series.items()]
        return [family for family in families if family.samples]

    def to_plain(self) -> dict[str, Any]:
        """All counters and histograms, as JSON. Gauges are of their moment only."""
        with self._lock:
            return {
                definition.name: [
                    *([list(labels), value] for labels, value in series.numbers.items()),
                    *([list(labels), [state.total, *state.counts]] for labels, state in series.buckets.items()),
                ]
                for definition, series in self._series.items()
                if definition.kind is not Kind.GAUGE
            }

    def adopt(self, plain: Mapping[str, Any]) -> None:
        """Go on from what `to_plain` gave; what another version had and this one has not is left out.

        Raises:
            TypeError, ValueError, KeyError: it is none of ours; then nothing is changed.
        """
        found = [
            (definition, tuple(labels), value)
            for definition in self._series
            for labels, value in plain.get(definition.name, ())
            if definition.bounded(tuple(labels)) == tuple(labels)
        ]
        numbers = [each for each in found if each[0].kind is Kind.COUNTER]
        histograms = [
            each for each in found if each[0].kind is Kind.HISTOGRAM and len(each[2]) == len(each[0].buckets) + 2
        ]
        checked = [(definition, labels, float(value)) for definition, labels, value in numbers]
        whole = [(definition, labels, _buckets(value)) for definition, labels, value in histograms]
        with self._lock:
            for definition, labels, number in checked:
                self._series[definition].numbers[labels] = number
            for definition, labels, state in whole:
                self._series[definition].buckets[labels] = state

    @staticmethod
    def _begin(definition: Definition) -> _Series:
        if not definition.from_start:
            return _Series()
        sets = list(definition.label_sets())
        if definition.kind is Kind.HISTOGRAM:
            size = len(definition.buckets) + 1
            return _Series(buckets={labels: _Buckets(counts=[0] * size) for labels in sets})
        return _Series(numbers=dict.fromkeys(sets, 0.0))

    @staticmethod
    def _require(definition: Definition, kind: Kind) -> None:
        if definition.kind is not kind:
            raise TypeError(f"{definition.name} is a {definition.kind}, not a {kind}")


def _buckets(plain: Iterable[Any]) -> _Buckets:
    total, *counts = plain
    return _Buckets(counts=[int(count) for count in counts], total=float(total))


def _family(definition: Definition, series: _Series) -> Metric:
    if definition.kind is Kind.HISTOGRAM:
        return _histogram(definition, series)
    family: CounterMetricFamily | GaugeMetricFamily
    if definition.kind is Kind.COUNTER:
        family = CounterMetricFamily(definition.name, definition.help, labels=definition.label_names)
    else:
        family = GaugeMetricFamily(definition.name, definition.help, labels=definition.label_names)
    for labels, value in series.numbers.items():
        family.add_metric(labels, value)
    return family


def _histogram(definition: Definition, series: _Series) -> HistogramMetricFamily:
    family = HistogramMetricFamily(definition.name, definition.help, labels=definition.label_names)
    edges = [*(str(edge) for edge in definition.buckets), "+Inf"]
    for labels, state in series.buckets.items():
        running, pairs = 0, []
        for edge, count in zip(edges, state.counts, strict=True):
            running += count
            pairs.append((edge, float(running)))
        family.add_metric(labels, pairs, state.total)
    return family
