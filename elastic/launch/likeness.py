"""Likeness: how this node's workers will compute, as far as their agent can tell, for the others to compare."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from elastic.config.choices import Numerics
from elastic.config.model import TrainingSettings
from elastic.distributed import cuda
from elastic.distributed.likeness import measure


def likeness_of(training: TrainingSettings, *, environ: Mapping[str, str]) -> str:
    """JSON of a Likeness; "" where it does not matter. Threads are what the settings say: 0 is seen by workers only."""
    if training.numerics is not Numerics.EXACT:
        return ""
    found = measure(training, device="cuda:0" if cuda.available() else "cpu", environ=environ)
    found = dataclasses.replace(found, threads=training.threads_per_worker)
    return json.dumps(found.to_plain(), sort_keys=True, separators=(",", ":"))
