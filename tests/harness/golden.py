"""Small checkpoint roots in tests/testdata, one for each version of the format: what they hold, how they are made.

    python -m tests.harness.golden     writes the root of the present version where there is none yet

A root that is there is never written anew: it stands for all that users have on their disks.
"""

from __future__ import annotations

from pathlib import Path

import torch

from elastic.checkpoint import manifest
from tests.harness.checkpoints import Bench, Run, make_run, meta
from tests.harness.dealt import deal
from tests.harness.ranks import run_ranks

GOLDEN = Path(__file__).parents[1] / "testdata" / "checkpoint"
ITERATIONS = (4, 8)
WORLD_SIZE = 2


def known_run(iteration: int) -> Run:
    """A run whose numbers need no training, so that they are the same on every machine."""
    run = make_run()
    run.step()
    with torch.no_grad():
        for at, value in enumerate(run.tracked["model"].state_dict().values()):
            fill(value, at + iteration)
        for at, entries in enumerate(run.tracked["optimizer"].state.values()):
            for offset, value in enumerate(entries.values()):
                fill(value, 100 * at + 10 * offset + iteration)
    run.steps = iteration
    return run


def fill(tensor: torch.Tensor, start: int) -> None:
    """Numbers from `start` on in steps of 1/8, which every floating type here holds exactly."""
    numbers = torch.arange(tensor.numel(), dtype=torch.float64).div(8).add(start)
    tensor.copy_(numbers.reshape(tensor.shape).to(tensor.dtype))


def write(root: Path) -> None:
    """Save the known run at every iteration, by two ranks: at the first one as replicas, then each its part."""
    bench = Bench(root)
    runs = [[known_run(iteration) for iteration in ITERATIONS] for _ in range(WORLD_SIZE)]
    for rank, (_, dealt) in enumerate(runs):
        deal(dealt.tracked, rank=rank, ranks=WORLD_SIZE)

    def save(group):
        manager = bench.manager(group=group)
        return [
            manager.save(run.tracked, meta(iteration)).saved
            for iteration, run in zip(ITERATIONS, runs[group.rank], strict=True)
        ]

    assert run_ranks(WORLD_SIZE, save) == [[True] * len(ITERATIONS)] * WORLD_SIZE


if __name__ == "__main__":
    target = GOLDEN / f"format-{manifest.FORMAT}"
    if not target.exists():
        write(target)
