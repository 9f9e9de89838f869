"""Reads metrics as Prometheus would: from text, through a parser, sample by sample."""

from collections.abc import Iterable

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from elastic.metrics.fold import Metrics

Key = tuple
"""(name, (label, value), ...) with labels in alphabetic order."""


def parsed(text: str, *, openmetrics: bool = False) -> dict[Key, float]:
    """All samples of an exposition by name and labels. A sample given twice fails."""
    return of_families((parse_openmetrics if openmetrics else parse_text)(text))


def of_families(families: Iterable[Metric]) -> dict[Key, float]:
    """The same of what is not text yet."""
    found: dict[Key, float] = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found, f"{key} is given twice"
            found[key] = sample.value
    return found


def samples(metrics: Metrics) -> dict[Key, float]:
    """What a scrape of these metrics would find."""
    return parsed(generate_latest(metrics.registry).decode())
