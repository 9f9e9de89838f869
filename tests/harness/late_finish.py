"""An own loop whose last rank goes on for a while after the others have ended: LATE_S seconds, from the environment."""

import os
import threading

import torch

import elastic
from tests.harness.small_job import build_dataset, build_model, loss


def main() -> None:
    with elastic.Session() as run:
        model = run.parallelize(build_model(run.world))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(build_dataset()):
            with step:
                for batch in step.micro_batches():
                    step.backward(loss(model, batch))
                optimizer.step()
        last = run.world.rank == run.world.size - 1
    if last:
        threading.Event().wait(float(os.environ["LATE_S"]))


if __name__ == "__main__":
    main()
