"""Our side of the overhead benchmark: the default job with marks, and the small one of the other benchmarks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jobs import pretrain_lm
from tests.bench.overhead_marks import Marks

if TYPE_CHECKING:
    from elastic.config.model import Settings
    from elastic.job import Job


def job(settings: Settings) -> Job:
    """The default job; its schedule, which is asked once a step, leaves the marks."""
    plain, marks, batch = pretrain_lm.job(settings), Marks(), settings.training.global_batch_size

    def schedule(consumed_samples: int) -> float:
        marks(consumed_samples // batch)
        assert plain.schedule is not None  # the default job has one
        return plain.schedule(consumed_samples)

    return dataclasses.replace(plain, schedule=schedule)
