"""Any state at any world size: everything awkward comes back bit equal, and the next steps are the same ones."""

from __future__ import annotations

import pytest
import torch

from tests.harness.awkward import differences, make_awkward, train
from tests.harness.checkpoints import Bench, meta
from tests.harness.ranks import run_ranks
from tests.harness.strict_reader import read_root


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def save(bench, world_size, tracked, iteration, **others):
    done = run_ranks(world_size, lambda group: bench.manager(group=group).save(tracked, meta(iteration, **others)))
    assert all(each.saved for each in done), done[0].reason


def restore(bench, world_size, seed):
    others = [make_awkward(seed + rank) for rank in range(world_size)]
    run_ranks(world_size, lambda group: bench.manager(group=group).restore(others[group.rank]))
    return others


def test_the_comparison_sees_a_single_bit():
    one, other = make_awkward(1), make_awkward(1)
    assert differences(one, other) == []
    other["model"].of_bfloat16.view(torch.uint8)[0] ^= 1
    other["masters"].state[other["model"].low]["main_param"].view(torch.uint8)[0] ^= 1
    assert differences(one, other) == ["masters.main_param.low", "of_bfloat16"]


@pytest.mark.parametrize("here", [1, 2, 3, 5, 8])
def test_saved_by_four_restored_by_any_and_back(tmp_path, here):
    bench = Bench(tmp_path / "root")
    run = make_awkward(0)
    train(run, 0, 3)
    save(bench, 4, run, 3)
    others = restore(bench, here, seed=100)
    train(run, 3, 2)
    for other in others:
        train(other, 3, 2)
        assert differences(run, other) == []
    save(bench, here, others[0], 5, generation=2)
    for other in restore(bench, 4, seed=200):
        assert differences(run, other) == []


def test_more_ranks_than_tensors(tmp_path):
    bench = Bench(tmp_path / "root")
    source = {"model": torch.nn.Linear(3, 1)}
    save(bench, 8, source, 1)
    assert len(list(bench.directory(1).glob("*-model-*"))) == 2
    target = {"model": torch.nn.Linear(3, 1)}
    bench.manager().restore(target)
    assert torch.equal(source["model"].weight, target["model"].weight)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_reader_made_from_the_description_alone_reads_it(tmp_path, world_size):
    bench = Bench(tmp_path / "root")
    run = make_awkward(0)
    train(run, 0, 2)
    save(bench, world_size, run, 2)
    read = read_root(tmp_path / "root")
    assert read.common | {"ckpt_status": 0} == {
        "epoch_num": 0,
        "step_num": 0,
        "global_step": 2,
        "loss_scale": 16.0,
        "global_batch_size": 8,
        "consumed_samples": 16,
        "ckpt_status": 0,
    }
    wanted = {name: each for name, each in run["model"].state_dict().items() if name != "head.weight"}
    assert read.model.keys() == wanted.keys()
    for name, value in wanted.items():
        stored = torch.view_as_real(value) if value.dtype == torch.complex128 else value
        assert torch.equal(_bytes(read.model[name]), _bytes(stored)), name
    moments = run["optimizer"].state[run["model"].embed]
    assert torch.equal(read.opt["exp_avg.embed"], moments["exp_avg"])
    assert torch.equal(read.opt["masters.main_param.low"], run["masters"].state[run["model"].low]["main_param"])
    assert {name for name in read.opt if name.startswith("rng.")} >= {f"rng.{r}.torch" for r in range(world_size)}


def _bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)
