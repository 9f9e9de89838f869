"""An iteration of MindSpore Transformers goes on in our run: moments, masters, step and position."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from elastic.cli import main
from elastic.errors import CheckpointError, ExitCode
from tests.harness.checkpoints import Bench

COMMON = {"epoch_num": 1, "step_num": 9, "global_step": 9, "loss_scale": 1.0, "global_batch_size": 16}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def make(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1, bias=False))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)}


def train(tracked, steps=1):
    for step in range(steps):
        tracked["model"](torch.full((2, 3), 0.3 * step + 1)).square().sum().backward()
        tracked["optimizer"].step()
        tracked["optimizer"].zero_grad()


def write(root, tracked, *, common, masters=True, low=torch.bfloat16):
    directory = root / "iteration_00000009"
    directory.mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text("9")
    (directory / "common.json").write_text(json.dumps(common))
    named = dict(tracked["model"].named_parameters())
    save_file({name: each.to(low) for name, each in named.items()}, directory / "model-0000000-0000001.safetensors")
    opt = {"global_step": torch.tensor(4, dtype=torch.int32)}
    for name, each in named.items():
        state = tracked["optimizer"].state[each]
        opt |= {f"exp_avg.{name}": state["exp_avg"], f"exp_avg_sq.{name}": state["exp_avg_sq"]}
        opt |= {f"main_param.{name}": each.detach()} if masters else {}
    save_file(opt, directory / "opt-0000000-0000001.safetensors")
    return directory


@pytest.mark.parametrize("common", [COMMON, COMMON | {"consumed_samples": 150, "ckpt_status": None}])
def test_it_goes_on_bit_for_bit(tmp_path, capsys, common):
    source = make(0)
    train(source, 4)
    write(tmp_path / "theirs", source, common=common)
    assert main(["ckpt", "import", str(tmp_path / "theirs"), str(tmp_path / "new")]) == 0
    told = capsys.readouterr().out
    assert "AdamW goes on from its own step 4" in told
    assert "3 weights were taken from their float32 masters" in told
    target = make(5)
    restored = Bench(tmp_path / "root").manager(load_path=str(tmp_path / "new")).restore(target)
    assert (restored.iteration, restored.consumed_samples) == (9, common.get("consumed_samples", 144))
    train(source)
    train(target)
    assert all(map(torch.equal, source["model"].state_dict().values(), target["model"].state_dict().values()))


def test_an_optimizer_of_other_parameters_is_refused_with_a_diff(tmp_path):
    source = make(0)
    train(source)
    write(tmp_path / "theirs", source, common=COMMON)
    main(["ckpt", "import", str(tmp_path / "theirs"), str(tmp_path / "new")])
    target = make(1)
    target["optimizer"] = torch.optim.AdamW([target["model"][0].weight])
    with pytest.raises(CheckpointError, match=r"only in the checkpoint: optimizer: 0.bias, optimizer: 1.weight"):
        Bench(tmp_path / "root").manager(load_path=str(tmp_path / "new")).restore(target)


def test_what_cannot_be_imported_is_told(tmp_path, capsys):
    source = make(0)
    train(source)
    directory = write(tmp_path / "theirs", source, common=COMMON)

    def told(*argv):
        code = main(["ckpt", "import", *map(str, argv)])
        return code, capsys.readouterr().err

    assert told(directory, tmp_path / "new", "--weights-only")[0] == ExitCode.USAGE
    (directory / "opt-0000000-0000001.safetensors").unlink()
    code, err = told(directory, tmp_path / "new")
    assert (code, "holds no optimizer" in err) == (ExitCode.USAGE, True)
    (directory / "common.json").unlink()
    assert told(directory, tmp_path / "new")[0] == ExitCode.INTERNAL
    main(["ckpt", "import", str(write(tmp_path / "more", source, common=COMMON)), str(tmp_path / "ours")])
    code, err = told(tmp_path / "ours", tmp_path / "again")
    assert (code, "is one of ours" in err) == (ExitCode.USAGE, True)
