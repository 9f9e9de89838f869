"""Accumulation is never cut: a step that broke off among its micro-batches is done again from its first one."""

import sys

import pytest
import torch

import elastic
from elastic.events import StepCommitted, read_records
from elastic.history import audit_run
from tests.harness.training import dataset, model, per_sample

STEPS, SLOTS = 5, 8


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Train in a place, saving each step; `dies_at`: (step, micro-batch) at which the life ends."""
    monkeypatch.setattr(sys, "argv", ["own_loop.py"])

    def run(name, *, numerics, dies_at=None):
        options = {"steps": STEPS, "global_batch_size": 4 * SLOTS, "micro_batch_size": 4, "save_interleaved_steps": 1}
        session = elastic.Session(environ={}, save_path=str(tmp_path / name), numerics=numerics, **options)
        with session as life:
            net = life.parallelize(model(dropout=0.3))
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
            life.track(model=net, optimizer=optimizer)
            for step in life.steps(dataset()):
                with step:
                    for number, batch in enumerate(step.micro_batches(), start=1):
                        if (step.iteration, number) == dies_at:
                            raise ZeroDivisionError
                        step.backward(per_sample(net, batch))
                    optimizer.step()
        return torch.nn.utils.parameters_to_vector(net.parameters()).detach()

    return run


@pytest.mark.parametrize("numerics", ["plain", "exact"])
@pytest.mark.parametrize("micro_batch", [1, 3, SLOTS])
def test_a_life_that_ends_at_a_micro_batch(run, tmp_path, numerics, micro_batch):
    whole = run("whole", numerics=numerics)
    with pytest.raises(ZeroDivisionError):
        run("broken", numerics=numerics, dies_at=(3, micro_batch))
    assert torch.equal(run("broken", numerics=numerics), whole)
    committed = [
        [(r.event.iteration, r.event.loss) for r in read_records(tmp_path / name / "events")
         if isinstance(r.event, StepCommitted)]
        for name in ("whole", "broken")
    ]  # fmt: skip
    assert committed[0] == committed[1]
    assert audit_run(tmp_path / "broken").exact
