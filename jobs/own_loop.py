"""Your own training loop, made elastic: the same model and data as jobs/sentiment.py, the loop spelled out.

Run it alone (`python -m jobs.own_loop`, a world of one) or under torchrun with the etcd rendezvous.
"""

import elastic
from jobs.sentiment import build_dataset, build_model, build_optimizer, loss


def main() -> None:
    """Train for 40 steps of 100 samples, at whatever world size there is."""
    with elastic.Session(global_batch_size=100, micro_batch_size=16, steps=40) as run:
        model = run.parallelize(build_model(run.world))  # what depends on the world is built in here
        optimizer = build_optimizer(model)
        run.track(model=model, optimizer=optimizer)  # what is saved and restored, by these names
        for step in run.steps(build_dataset()):
            with step:  # a lost peer ends the block; the same step comes again
                for batch in step.micro_batches():
                    step.backward(loss(model, batch))
                optimizer.step()


if __name__ == "__main__":
    main()
