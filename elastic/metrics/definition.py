"""What a metric is: its name, type, labels with all their values, who exports it, and how agents' values combine."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

OTHER = "other"
"""Stands for every label value that this version does not know."""


class Kind(enum.StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Over(enum.StrEnum):
    """How to make one value for the job out of its agents' values."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    EACH = "each"
    """It says something of one agent; there is no value for the job."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One metric. `labels` are names with all the values they can have; None: any one value, set once."""

    name: str
    kind: Kind
    over: Over
    help: str
    labels: tuple[tuple[str, tuple[str, ...] | None], ...] = ()
    buckets: tuple[float, ...] = field(default=())
    from_start: bool = True
    """Whether every series exists before anything happened."""
    job: bool = False
    """It says something of the whole job: only the leader's exporter has it."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels, in order."""
        return tuple(name for name, _ in self.labels)

    def label_sets(self) -> Iterator[tuple[str, ...]]:
        """Every combination of label values that it starts with."""
        return product(*(values or () for _, values in self.labels))

    def bounded(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels, with OTHER in the place of a value outside its set."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.label_names}, got the values {labels}")
        pairs = zip(self.labels, labels, strict=True)
        return tuple(value if known is None or value in known else OTHER for (_, known), value in pairs)


def gauge(
    name: str, over: Over, text: str, *, from_start: bool = True, job: bool = False, **labels: tuple[str, ...] | None
) -> Definition:
    """A value that goes up and down."""
    return Definition(
        name=name, kind=Kind.GAUGE, over=over, help=text, labels=tuple(labels.items()), from_start=from_start, job=job
    )


def counter(name: str, text: str, *, job: bool = False, **labels: tuple[str, ...]) -> Definition:
    """A value that only grows."""
    return Definition(name=name, kind=Kind.COUNTER, over=Over.SUM, help=text, labels=tuple(labels.items()), job=job)


def histogram(
    name: str, text: str, buckets: tuple[float, ...], *, job: bool = False, **labels: tuple[str, ...]
) -> Definition:
    """How often values lay below each bound, and their sum."""
    return Definition(
        name=name, kind=Kind.HISTOGRAM, over=Over.SUM, help=text, labels=tuple(labels.items()), buckets=buckets, job=job
    )
