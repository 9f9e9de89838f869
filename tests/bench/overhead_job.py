"""Our side of the overhead benchmark: the default job with a gate."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jobs import pretrain_lm
from tests.bench.overhead_gate import Gate

if TYPE_CHECKING:
    from elastic.config.model import Settings
    from elastic.job import Job


def job(settings: Settings) -> Job:
    """The default job; its schedule, which is asked once a step, stops at the gate."""
    plain, gate, batch = pretrain_lm.job(settings), Gate(), settings.training.global_batch_size

    def schedule(consumed_samples: int) -> float:
        gate(consumed_samples // batch)
        assert plain.schedule is not None  # the default job has one
        return plain.schedule(consumed_samples)

    return dataclasses.replace(plain, schedule=schedule)
