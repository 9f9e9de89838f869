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


def train(root, *, worst, at=12, clip=False, scaler=None):
    """Twelve steps with losses of 1 and gradients of 1, but for `worst` in step `at`; the steps' norms, the flag."""
    norms = []
    with Session(
        environ={}, global_batch_size=4, micro_batch_size=4, steps=12, save_path=str(root), save_interleaved_steps=6
    ) as run:
        model = run.parallelize(nn.Linear(1, 1, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        run.track(model=model, optimizer=optimizer, **({"scaler": scaler} if scaler else {}))
        for step in run.steps(torch.ones(48, 1)):
            with step:
                for batch in step.micro_batches():
                    factor = worst if step.iteration == at else 1.0
                    out = model(batch)
                    out.register_hook(lambda gradient, factor=factor: gradient * factor)
                    step.backward((out - out.detach() + 1).squeeze(1))
                if clip:
                    assert step.clip_grad_norm_(0.5) == pytest.approx(factor, nan_ok=True)
                    assert model.weight.grad.item() == pytest.approx(min(factor, 0.5), rel=1e-5, nan_ok=True)
                norms.append(step.grad_norm)
                optimizer.step()
    common = json.loads((root / "iteration_00000012" / "common.json").read_text())
    return norms, common["ckpt_status"]


@pytest.mark.parametrize(
    ("worst", "clip", "status"),
    [
        (1.0, False, 0),
        (float("nan"), False, 1),
        (float("nan"), True, 1),
        (1000.0, True, 1),
        (50.0, True, 0),
        (1000.0, False, 0),  # only one norm, that of step 6, came before it
    ],
)
def test_the_gradient_norm_reaches_the_health_flag(tmp_path, monkeypatch, worst, clip, status):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    norms, found = train(tmp_path / "root", worst=worst, clip=clip)
    assert found == status
    measured = {at for at, norm in enumerate(norms, start=1) if norm is not None}
    assert measured == (set(range(1, 13)) if clip else {6, 12})


def test_under_a_grad_scaler_gradients_tell_nothing(tmp_path, monkeypatch):
    """It leaves a step out whose gradients are not finite: the state is as sound as before."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    norms, found = train(tmp_path / "root", worst=float("inf"), scaler=torch.amp.GradScaler("cpu"))
    assert (set(norms), found) == ({None}, 0)


def test_clipping_comes_after_the_micro_batches(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def early():
        with Session(environ={}, global_batch_size=4, steps=1, save_path=str(tmp_path)) as run:
            run.parallelize(nn.Linear(1, 1))
            for step in run.steps(torch.ones(48, 1)):
                with step:
                    step.clip_grad_norm_(1.0)

    with pytest.raises(SystemExit):
        early()
    assert "after the loop over micro_batches" in caplog.text
