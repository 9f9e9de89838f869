"""How others read an epoch through a change of the world size: their own samplers, driven as their docs say.

Each gives the epoch as loader steps: for each step, the items that each rank read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch.distributed.elastic.utils.data import ElasticDistributedSampler
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from elastic.data.loader import ElasticLoader
from elastic.plan.batch import BatchPlan, MicroSpan
from elastic.plan.order import Order

Steps = list[list[list[int]]]
"""By loader step, by rank: the items read."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One epoch: `items` in all, `batch` a rank's micro-batch; after `steps` loader steps the world changes."""

    items: int
    batch: int
    old_world: int
    new_world: int
    steps: int

    def __str__(self) -> str:
        if self.old_world == self.new_world:
            return f"{self.items} items, {self.old_world} ranks, restarted"
        return f"{self.items} items, {self.old_world} -> {self.new_world} ranks"


class Numbers:
    """The data set: each item is its own number."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> int:
        return index


def ours(change: Change) -> Steps:
    """Position in samples; the batch of all ranks stays as it was, whoever computes it."""
    return _elastic(change, BatchPlan(**_plan(change)))


class OffByOne(BatchPlan):
    """Planted: each rank's first micro-batch of a step begins one sample early."""

    def micro_batches(self, position: int, *, world_size: int, rank: int) -> tuple[MicroSpan, ...]:
        spans = super().micro_batches(position, world_size=world_size, rank=rank)
        if not spans or spans[0].start == 0:
            return spans
        first = MicroSpan(slot=spans[0].slot, start=spans[0].start - 1, stop=spans[0].stop - 1)
        return (first, *spans[1:])


def ours_off_by_one(change: Change) -> Steps:
    """The same with a planted mistake, for the audit to find."""
    return _elastic(change, OffByOne(**_plan(change)))


def torchdata_state_as_it_is(change: Change) -> Steps:
    """torchdata's StatefulDistributedSampler; each new rank loads an old rank's state, as it was saved."""

    def loader(world: int, rank: int) -> StatefulDataLoader:
        sampler = StatefulDistributedSampler(Numbers(change.items), num_replicas=world, rank=rank)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
            return StatefulDataLoader(Numbers(change.items), batch_size=change.batch, sampler=sampler, collate_fn=list)

    old = [loader(change.old_world, rank) for rank in range(change.old_world)]
    first = [list(islice(each, change.steps)) for each in old]
    states = [each.state_dict() for each in old]
    new = [loader(change.new_world, rank) for rank in range(change.new_world)]
    for rank, each in enumerate(new):
        each.load_state_dict(states[rank % change.old_world])
    return _by_step(first) + _by_step([list(each) for each in new])


def torch_elastic_sampler(change: Change) -> Steps:
    """torch.distributed.elastic's own ElasticDistributedSampler, told where to start."""

    def sampler(world: int, rank: int, start: int) -> ElasticDistributedSampler:
        return ElasticDistributedSampler(Numbers(change.items), num_replicas=world, rank=rank, start_index=start)

    first = [list(sampler(change.old_world, rank, 0)) for rank in range(change.old_world)]
    done = change.steps * change.batch
    start = done * change.old_world
    rest = [list(sampler(change.new_world, rank, start)) for rank in range(change.new_world)]
    return _cut([part[:done] for part in first], change.batch) + _cut(rest, change.batch)


def minimind_rule(change: Change) -> Steps:
    """step x old world // new world; one rank alone shuffles by another seed than several do."""

    def order(world: int, rank: int) -> list[int]:
        if world == 1:
            return torch.randperm(change.items, generator=torch.Generator().manual_seed(42)).tolist()
        return list(DistributedSampler(Numbers(change.items), num_replicas=world, rank=rank))

    first = [order(change.old_world, rank)[: change.steps * change.batch] for rank in range(change.old_world)]
    skip = change.steps * change.old_world // change.new_world * change.batch
    rest = [order(change.new_world, rank)[skip:] for rank in range(change.new_world)]
    return _cut(first, change.batch) + _cut(rest, change.batch)


SYSTEMS: dict[str, Callable[[Change], Steps]] = {
    "this project": ours,
    "torchdata StatefulDistributedSampler": torchdata_state_as_it_is,
    "torch ElasticDistributedSampler": torch_elastic_sampler,
    "MiniMind's rule": minimind_rule,
    "this project, off by one (planted)": ours_off_by_one,
}


def _plan(change: Change) -> dict[str, int]:
    return {
        "global_batch_size": change.batch * change.old_world,
        "micro_batch_size": change.batch,
        "total_samples": change.items,
    }


def _elastic(change: Change, plan: BatchPlan) -> Steps:
    steps: Steps = []
    position = 0
    for world, most in ((change.old_world, change.steps), (change.new_world, None)):
        loaders = [_our_loader(change, plan, world, rank, position) for rank in range(world)]
        while not loaders[0].finished and (most is None or len(steps) < most):
            steps.append([[item for micro in each.next_step() for item in micro.batch] for each in loaders])
            position = {each.commit() for each in loaders}.pop()
        for each in loaders:
            each.close()
    return steps


def _our_loader(change: Change, plan: BatchPlan, world: int, rank: int, position: int) -> ElasticLoader:
    return ElasticLoader(
        Numbers(change.items),
        plan=plan,
        order=Order(length=change.items, seed=0),
        seed=0,
        world_size=world,
        rank=rank,
        position=position,
        collate_fn=list,
    )


def _cut(parts: list[list[int]], batch: int) -> Steps:
    return _by_step([[part[at : at + batch] for at in range(0, len(part), batch)] for part in parts])


def _by_step(parts: list[list[list[int]]]) -> Steps:
    return list(_zipped(parts))


def _zipped(parts: list[list[list[int]]]) -> Iterator[list[list[int]]]:
    for step in range(max(map(len, parts))):
        yield [part[step] if step < len(part) else [] for part in parts]
