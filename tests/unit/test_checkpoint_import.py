"""MiniMind's resume file in our terms: position, names, ties, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint.minimind import Given, convert, place
from elastic.errors import CheckpointDamaged, UsageError
from tests.harness.minimind import make, train


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def plain_file():
    tracked = make(0)
    train(tracked, 1)
    half = {name: value.half() for name, value in tracked["model"].state_dict().items()}
    return {"model": half, "optimizer": tracked["optimizer"].state_dict(), "epoch": 0, "step": 8, "world_size": 1}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": None}, CheckpointDamaged),
        ({"model": {"a": 1}}, CheckpointDamaged),
        ({"optimizer": {}}, CheckpointDamaged),
        ({"optimizer": {"param_groups": [{"params": [0, 2]}], "state": {}}}, CheckpointDamaged),
        ({"optimizer": {"param_groups": [{"params": [0, 1]}], "state": {}}}, UsageError),
        ({"epoch": -1}, CheckpointDamaged),
        ({"step": "8"}, CheckpointDamaged),
        ({"world_size": True}, CheckpointDamaged),
    ],
)
def test_another_file_is_told(change, error):
    given = Given(batch_size=4, accumulation_steps=8, dataset_length=1000)
    assert convert(plain_file(), given).position.iteration == 1
    with pytest.raises(error):
        convert(plain_file() | change, given)


def test_parameters_that_are_equal_by_chance_are_not_tied():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight.data.copy_(model[0].weight.data)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    half = {name: torch.ones(3, 3).half() for name in model.state_dict()}
    plain = {"model": half, "optimizer": optimizer.state_dict(), "epoch": 0, "step": 1, "world_size": 1}
    converted = convert(plain, Given(batch_size=1, accumulation_steps=1, dataset_length=9))
    assert set(converted.captured.model) == {"0.weight", "1.weight"}


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 40), st.integers(1, 9), st.integers(1, 3000), st.integers(1, 9), st.integers(0, 3), st.floats(0, 1)
)
def test_the_position_is_where_minimind_was(batch_size, accumulation, length, world_size, epoch, part):
    """Beside MiniMind's own loop, counted step by step."""
    per_rank = -(-length // world_size)
    micro_batches = -(-per_rank // batch_size)
    step = round(part * micro_batches)
    iteration = samples = 0
    for at_epoch in range(epoch + 1):
        for at in range(1, (step if at_epoch == epoch else micro_batches) + 1):
            if at % accumulation == 0:
                iteration, samples = iteration + 1, at_epoch * length + min(length, at * batch_size * world_size)
        if at_epoch < epoch:
            iteration, samples = iteration + (micro_batches % accumulation > 0), (at_epoch + 1) * length
    given = Given(batch_size=batch_size, accumulation_steps=accumulation, dataset_length=length)
    found = place(given, epoch=epoch, step=step, world_size=world_size)
    assert (found.iteration, found.consumed_samples) == (iteration, samples)
