"""What a session tells a checkpoint of the run's health."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from elastic.session.run import Session


@pytest.mark.parametrize(("worst", "status"), [(1.0, 0), (1000.0, 1)])
def test_the_losses_of_a_run_reach_the_health_flag(tmp_path, monkeypatch, worst, status):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    root = tmp_path / "root"
    with Session(
        environ={}, global_batch_size=4, micro_batch_size=4, steps=12, save_path=str(root), save_interleaved_steps=12
    ) as run:
        model = run.parallelize(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(torch.ones(48, 1)):
            with step:
                for batch in step.micro_batches():
                    scale = worst if step.iteration == 12 else 1.0
                    step.backward((model(batch) * 0.0 + scale).squeeze(1))
                optimizer.step()
    common = json.loads((root / "iteration_00000012" / "common.json").read_text())
    assert common["ckpt_status"] == status
