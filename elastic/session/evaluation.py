"""Evaluation: every item of a data set once, shared out over the ranks, with one result at any world size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from elastic.data.carrier import Carrier
from elastic.data.fetch import Fetched, NumberedDataset, own_randomness
from elastic.data.stream import ShardStream
from elastic.distributed.group import Collectives
from elastic.distributed.peers import peer_errors
from elastic.errors import DataError, UsageError
from elastic.plan.batch import BatchPlan
from elastic.session.moving import to_device
from elastic.session.source import DataSource, length_of

Measure = Callable[[Any], Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]]]
"""Of one micro-batch: name -> (sum over its samples, weight). Never a mean."""


def evaluate(
    source: DataSource, measure: Measure, *, group: Collectives, device: str, batch_size: int, seed: int,
    lockstep: bool = False,
) -> dict[str, float]:  # fmt: skip
    """The weighted mean of each measure over all items.

    Micro-batches are the same at any world size, and their sums are added exactly (math.fsum), in whatever order they
    come: so the result is bitwise the same, whoever computed which. `lockstep`: all ranks must measure equally many;
    one that has fewer measures the first once more, for nothing.

    Raises:
        DataError: the data set has no items or cannot be indexed.
        UsageError: ranks measured different things, or nothing with any weight.
        PeerLost: from the group.
    """
    dataset = source.dataset
    if isinstance(dataset, ShardStream):
        raise DataError("a ShardStream has no end to evaluate up to: give a map-style data set")
    length = length_of(dataset)
    plan = BatchPlan(global_batch_size=length, micro_batch_size=batch_size, total_samples=length)
    own = plan.micro_batches(0, world_size=group.size, rank=group.rank)
    every = plan.micro_batches(0, world_size=group.size, rank=0)
    spare = [every[0]] * (len(every) - len(own)) if lockstep else []
    keys = [[(item, item) for item in range(part.start, part.stop)] for part in (*own, *spare)]
    fetcher = NumberedDataset(dataset, seed=seed, collate=source.collate_fn)
    carrier = Carrier(fetcher, batches=keys, transport=source.transport)
    try:
        with torch.no_grad(), peer_errors("evaluating") if lockstep else nullcontext():
            rows = [_row(measure(to_device(batch, device))) for _, _, batch, _ in _kept_apart(carrier)]
    finally:
        carrier.close()
    return _means(rows[: len(own)], group)


def _kept_apart(batches: Iterator[Fetched]) -> Iterator[Fetched]:
    """The same; fetching does not touch the randomness of the training that goes on afterwards."""
    while True:
        with own_randomness():
            fetched = next(batches, None)
        if fetched is None:
            return
        yield fetched


def _row(found: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]]) -> dict[str, list[float]]:
    return {name: [float(total), float(weight)] for name, (total, weight) in found.items()}


def _means(rows: list[dict[str, list[float]]], group: Collectives) -> dict[str, float]:
    everyone = group.gather(rows)
    every = None if everyone is None else [row for part in everyone for row in part]
    told = group.broadcast(None if every is None else _summed(every))
    if "error" in told:
        raise UsageError(told["error"])
    means: dict[str, float] = told["means"]
    return means


def _summed(rows: list[dict[str, list[float]]]) -> dict[str, Any]:
    names = {tuple(row) for row in rows}
    if len(names) != 1:
        return {"error": f"every micro-batch must be measured alike; found the names {sorted(names)}"}
    means = {}
    for name in names.pop():
        weight = math.fsum(row[name][1] for row in rows)
        if not weight > 0:
            return {"error": f"the weight of {name!r} over the whole data set is {weight}; it must be positive"}
        means[name] = math.fsum(row[name][0] for row in rows) / weight
    return {"means": means}
