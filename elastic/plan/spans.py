"""Spans: numbers that follow on one another, in short."""

from __future__ import annotations

from collections.abc import Iterable


def ranges(samples: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Consecutive numbers as (start, stop) pairs, in the order given."""
    pairs: list[tuple[int, int]] = []
    for sample in samples:
        if pairs and pairs[-1][1] == sample:
            pairs[-1] = (pairs[-1][0], sample + 1)
        else:
            pairs.append((sample, sample + 1))
    return tuple(pairs)
