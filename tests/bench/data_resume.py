"""What it costs to go on in the middle of a large epoch: until the first batch, ours and torchdata's."""

from __future__ import annotations

import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from elastic.data.loader import ElasticLoader
from elastic.plan.batch import BatchPlan
from elastic.plan.order import Order
from tests.bench.data_rivals import Numbers

BATCH = 24
Resume = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Median of some resumes, and the most memory that Python took during one: of the one that took least, since the
    first ones fill caches that are not theirs."""

    seconds: float
    peak_bytes: int


def cost(resume: Resume, *, rounds: int, more_rounds: int = 4) -> Cost:
    """Time `rounds` resumes; then as many, and a few more, with their memory counted."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        resume()
        seconds.append(time.perf_counter() - began)
    peak_bytes = min(_peak_bytes(resume) for _ in range(rounds + more_rounds))
    return Cost(seconds=statistics.median(seconds), peak_bytes=peak_bytes)


def _peak_bytes(resume: Resume) -> int:
    tracemalloc.start()
    try:
        resume()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def ours(items: int) -> Resume:
    """A loader at the middle of the epoch, and its first micro-batch."""

    def resume() -> Any:
        loader = ElasticLoader(
            Numbers(items),
            plan=BatchPlan(global_batch_size=BATCH, micro_batch_size=BATCH, total_samples=items),
            order=Order(length=items, seed=0),
            seed=0,
            world_size=1,
            rank=0,
            position=items // 2,
            collate_fn=list,
        )
        first = next(loader.next_step())
        loader.close()
        return first

    return resume


def torchdata(items: int) -> Resume:
    """A shuffling StatefulDataLoader given a state of the middle of the epoch, and its first batch.

    The state is made up from one of the first batch, or making it would take as long as half an epoch.
    """
    loader = _torchdata_loader(items)
    next(iter(loader))
    state = loader.state_dict()
    done = items // 2 // BATCH
    state["_num_yielded"] = state["_sampler_iter_yielded"] = done
    state["_sampler_iter_state"]["samples_yielded"] = done * BATCH
    state["_sampler_iter_state"]["sampler_iter_state"]["yielded"] = done * BATCH

    def resume() -> Any:
        again = _torchdata_loader(items)
        again.load_state_dict(state)
        return next(iter(again))

    return resume


def _torchdata_loader(items: int) -> StatefulDataLoader:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
        return StatefulDataLoader(Numbers(items), batch_size=BATCH, shuffle=True, collate_fn=list)
