"""Made-up histories of runs, as the events that their ranks would have written."""

import dataclasses
from dataclasses import dataclass

from elastic.data.digest import RUN_DIGEST_START, chain, step_digest
from elastic.events import Record, Restored, StepCommitted
from elastic.plan.batch import BatchPlan
from elastic.plan.order import Order


@dataclass(frozen=True, kw_only=True)
class Life:
    """One generation: it goes on from `restored`, does `steps`, and is over."""

    generation: int
    world_size: int
    restored: int
    steps: int


def write_history(lives, *, plan, order):
    """Records of a run in which nothing went wrong but deaths."""
    known = {0: (0, RUN_DIGEST_START)}  # iteration -> (position, run digest)
    records = []
    for life in lives:
        position, digest = known[life.restored]
        start = Restored(tier="disk", iteration=life.restored, consumed_samples=position, seconds=0.1, reason="a test")
        records += [_record(life, rank, start) for rank in range(life.world_size)]
        for iteration in range(life.restored + 1, life.restored + life.steps + 1):
            position, digest, events = _step(life, iteration, position, digest, plan=plan, order=order)
            known[iteration] = (position, digest)
            records += [_record(life, rank, event) for rank, event in enumerate(events)]
    return records


def _step(life, iteration, position, digest, *, plan, order):
    start, stop = plan.span(position)
    total = step_digest((sample, order.index(sample)) for sample in range(start, stop))
    digest = chain(digest, total)
    events = [
        StepCommitted(
            iteration=iteration,
            start=start,
            stop=stop,
            ranges=tuple(
                (micro.start, micro.stop)
                for micro in plan.micro_batches(position, world_size=life.world_size, rank=rank)
            ),
            step_samples=stop - start,
            step_digest=total,
            run_digest=digest,
            loss=1.0,
            world_size=life.world_size,
            seconds=0.1,
        )
        for rank in range(life.world_size)
    ]
    return stop, digest, events


def _record(life, rank, event):
    return Record(time_s=0.0, node=f"node-{rank}", rank=rank, generation=life.generation, event=event)


def change(records, *, generation, rank, iteration, **changes):
    """The same records with fields of one rank's step replaced. `rank=None`: of all ranks."""
    changed = []
    for record in records:
        event = record.event
        if (
            isinstance(event, StepCommitted)
            and (record.generation, event.iteration) == (generation, iteration)
            and rank in (None, record.rank)
        ):
            record = dataclasses.replace(record, event=dataclasses.replace(event, **changes))
        changed.append(record)
    assert changed != records, "the change hit nothing"
    return changed


def without(records, *, generation, rank, iteration):
    """The same records without one rank's word on one step."""
    kept = [
        record
        for record in records
        if not (
            isinstance(record.event, StepCommitted)
            and (record.generation, record.rank, record.event.iteration) == (generation, rank, iteration)
        )
    ]
    assert len(kept) == len(records) - 1, "exactly one record was to go"
    return kept


def small_plan(total=100):
    return BatchPlan(global_batch_size=12, micro_batch_size=5, total_samples=total)


def small_order(seed=3):
    return Order(length=37, seed=seed)
