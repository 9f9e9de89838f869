"""Digests of the samples used: small numbers that agree whatever the world size, and differ when a sample does.

A step's digest is a sum, so that the ranks' parts add up in any grouping; the run's digest is a chain, so that the
order of steps counts. All are 32 bits: the sum of up to 2**20 of them is exact in float64, in which it may travel.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastic.plan.mix import mix64, mix_pair

RUN_DIGEST_START = 0
"""The run's digest before its first step."""

_MASK_32 = (1 << 32) - 1
_SKIPPED = 1 << 63  # no sample number


def sample_digest(sample: int, index: int) -> int:
    """Digest of one use: global sample number `sample` was item `index` of the data set."""
    return mix_pair(sample, index) >> 32


def step_digest(pairs: Iterable[tuple[int, int]]) -> int:
    """Digest of (sample, index) pairs in any order; parts of a step are put together by `merge`."""
    return merge(sample_digest(sample, index) for sample, index in pairs)


def skip_digest(start: int, stop: int) -> int:
    """What stands in the run's digest for the samples start..stop-1 that a policy had passed over."""
    return mix_pair(mix_pair(start, stop), _SKIPPED) >> 32


def merge(parts: Iterable[int]) -> int:
    """Digest of a whole step from the digests of its parts."""
    return sum(parts) & _MASK_32


def chain(run_digest: int, step_digest: int) -> int:
    """The run's digest after a step."""
    return mix64((run_digest << 32) | step_digest) >> 32
