"""Directories in the seed's layout that another system wrote: their weights can be loaded."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from elastic.errors import CheckpointError, NothingToRestore
from tests.harness.checkpoints import Bench, make_run


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def weights(run):
    """As another system would name and hold them: no tie, no strides."""
    state = run.tracked["model"].state_dict()
    return {name: value.contiguous().clone() for name, value in state.items() if name != "head.weight"}


def write_foreign(root, run, *, ending="safetensors", split=False, metadata=True):
    """A save of two ranks by hand; `split`: each holds half of the rows of the embedding."""
    directory = root / "iteration_00002000"
    directory.mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text("2000")
    common = {"epoch_num": 1, "step_num": 2000, "global_step": 2000, "loss_scale": 1.0, "global_batch_size": 64}
    (directory / "common.json").write_text(json.dumps(common | {"ckpt_status": None}, indent=4))
    parts: list[dict[str, torch.Tensor]] = [{}, {}]
    state: dict[str, object] = {}
    storage: dict[str, object] = {}
    for at, (name, value) in enumerate(weights(run).items()):
        rows = [(0, value[:3]), (3, value[3:])] if split and name == "embed.weight" else [(0, value)]
        for rank, (start, piece) in enumerate(rows, start=at % 2 if len(rows) == 1 else 0):
            parts[rank][name] = piece.contiguous()
            offset = (start, *[0] * (value.dim() - 1)) if value.dim() else ()
            file_name = f"checkpoint-model-{rank:07d}-0000002.{ending}"
            storage[str((name, offset))] = [{"file_name": file_name, "storage_rank": rank, "rank_group": [rank]}]
        state[name] = {"properties": {"dtype": "Float32"}, "global_shape": list(value.shape), "layout": None}
    for rank, tensors in enumerate(parts):
        save_file(tensors, directory / f"checkpoint-model-{rank:07d}-0000002.{ending}")
        save_file({"exp_avg.embed.weight": torch.ones(1)}, directory / f"checkpoint-opt-{rank:07d}-0000002.{ending}")
    if metadata:
        text = json.dumps({"state_dict_metadata": state, "storage_data": storage})
        (directory / "metadata.json").write_text(text)
    return directory


@pytest.mark.parametrize("ending", ["safetensors", "safetensor"])
@pytest.mark.parametrize(("split", "metadata"), [(False, True), (False, False), (True, True)])
def test_weights_of_another_system_are_loaded(tmp_path, ending, split, metadata):
    source, target = make_run().step(3), make_run(seed=4)
    write_foreign(tmp_path / "theirs", source, ending=ending, split=split, metadata=metadata)
    bench = Bench(tmp_path / "root")
    restored = bench.manager(load_path=str(tmp_path / "theirs"), no_load_optim=True).restore(target.tracked)
    assert (restored.iteration, restored.consumed_samples, restored.tier) == (0, 0, "disk")
    for name, value in source.tracked["model"].state_dict().items():
        assert torch.equal(target.tracked["model"].state_dict()[name], value), name
    assert target.tracked["model"].head.weight is target.tracked["model"].embed.weight


def test_its_optimizer_is_not_taken_for_ours(tmp_path):
    write_foreign(tmp_path / "theirs", make_run())
    with pytest.raises(CheckpointError, match="no_load_optim: True"):
        Bench(tmp_path / "root").manager(load_path=str(tmp_path / "theirs")).restore(make_run().tracked)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: (path / "checkpoint-model-0000001-0000002.safetensors").unlink(), "0000001-0000002.* is missing"),
        (lambda path: (path / "metadata.json").write_text("{"), "metadata.json is not JSON"),
        (lambda path: (path / "common.json").write_text("[]"), "common.json is not a JSON object"),
        (
            lambda path: (path / "checkpoint-model-0000000-0000002.safetensors").write_bytes(b"x" * 9),
            "not a readable safetensors",
        ),
    ],
)
def test_damage_in_it_is_told(tmp_path, spoil, told):
    spoil(write_foreign(tmp_path / "theirs", make_run()))
    manager = Bench(tmp_path / "root").manager(load_path=str(tmp_path / "theirs"), no_load_optim=True)
    fresh = make_run()
    with pytest.raises(NothingToRestore, match=told):
        manager.restore(fresh.tracked)


def test_pieces_without_metadata_are_not_guessed(tmp_path):
    write_foreign(tmp_path / "theirs", make_run(), split=True, metadata=False)
    manager = Bench(tmp_path / "root").manager(load_path=str(tmp_path / "theirs"), no_load_optim=True)
    with pytest.raises(NothingToRestore, match=r"embed\.weight in .* is not what other files hold"):
        manager.restore(make_run().tracked)


def test_stale_files_of_another_world_are_not_mixed_in(tmp_path):
    directory = write_foreign(tmp_path / "theirs", make_run(), metadata=False)
    save_file({"embed.weight": torch.zeros(7, 4)}, directory / "checkpoint-model-0000003-0000004.safetensors")
    manager = Bench(tmp_path / "root").manager(load_path=str(tmp_path / "theirs"), no_load_optim=True)
    with pytest.raises(NothingToRestore, match="several saves"):
        manager.restore(make_run().tracked)
