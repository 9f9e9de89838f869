"""Loaders over a small data set, set up so that nothing divides."""

from dataclasses import fields

from elastic.data.carrier import Transport
from elastic.data.loader import ElasticLoader
from elastic.plan.batch import BatchPlan
from elastic.plan.order import Order
from tests.harness.datasets import Drawing, as_list

LENGTH = 41  # epochs end inside steps and inside micro-batches
SEED = 5


def make(dataset=None, *, batch=10, micro=3, total=130, world_size=1, rank=0, position=0, **options):
    """A loader; `options` are its own and those of its transport."""
    dataset = Drawing(LENGTH) if dataset is None else dataset
    names = {each.name for each in fields(Transport)}
    transport = Transport(**{name: options.pop(name) for name in names & set(options)})
    return ElasticLoader(
        dataset,
        plan=BatchPlan(global_batch_size=batch, micro_batch_size=micro, total_samples=total),
        world_size=world_size,
        rank=rank,
        position=position,
        transport=transport,
        **{"collate_fn": as_list, "seed": SEED, "order": Order(length=LENGTH, seed=SEED), **options},
    )


def flat(micros):
    """(slot, samples, indices, items, draw of the collate) of micro-batches: everything that training would see."""
    return [(micro.slot, micro.samples, micro.indices, *micro.batch) for micro in micros]


def run_undisturbed(**options):
    loader, steps = make(**options), []
    while not loader.finished:
        steps.append(flat(loader.next_step()))
        loader.commit()
    return steps
