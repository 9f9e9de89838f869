"""The seed's system in all its spellings, and Hugging Face directories: fixtures by the documented formats."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from elastic.checkpoint.foreign import read_foreign, same_bits
from elastic.checkpoint.inspection import verify
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import CheckpointError, NothingToRestore
from tests.harness.checkpoints import Bench

WEIGHTS = {
    "model.embedding.word_embeddings.weight": torch.arange(21.0).reshape(7, 3),
    "model.layers.0.mlp.weight": torch.arange(12.0).reshape(3, 4).to(torch.bfloat16),
    "model.norm.weight": torch.ones(3),
    "scale": torch.tensor(0.5),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.embedding = nn.Module()
        self.model.embedding.word_embeddings = nn.Embedding(7, 3)
        self.model.layers = nn.ModuleList([nn.Module()])
        self.model.layers[0].mlp = nn.Linear(4, 3, bias=False)
        self.model.norm = nn.LayerNorm(3, bias=False)
        self.scale = nn.Parameter(torch.zeros(()))


def pieces(world_size, *, split):
    """Rank -> {name: (offset, piece)}; `split`: rows shared out, some ranks may get none of a small tensor."""
    parts = [{} for _ in range(world_size)]
    for at, (name, value) in enumerate(WEIGHTS.items()):
        if not split or value.dim() == 0:
            parts[at % world_size][name] = ((0,) * value.dim(), value)
            continue
        rows = -(-value.shape[0] // world_size)
        for rank in range(world_size):
            piece = value[rank * rows : (rank + 1) * rows].contiguous()
            if piece.numel():
                parts[rank][name] = ((rank * rows, *[0] * (value.dim() - 1)), piece)
    return parts


def write_seed(
    root, *, world_size=2, split=True, ending="safetensors", prefix="checkpoint", common=None, metadata=True
):
    """An iteration as that system writes it: files numbered among the ranks that hold something."""
    directory = root / "iteration_00002000"
    directory.mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text("2000")
    if common is not None:
        (directory / "common.json").write_text(json.dumps(common, ensure_ascii=False, indent=4))
    held = [part for part in pieces(world_size, split=split) if part]
    state, storage = {}, {}
    for rank, part in enumerate(held):
        head = f"{prefix}-" if prefix else ""
        name = f"{head}model-{rank:07d}-{len(held):07d}.{ending}"
        save_file({each: piece for each, (_, piece) in part.items()}, directory / name)
        moments = {f"exp_avg.{each}": torch.zeros_like(piece) for each, (_, piece) in part.items()}
        save_file(moments, directory / f"{head}opt-{rank:07d}-{len(held):07d}.{ending}")
        for each, (offset, piece) in part.items():
            facts = state.setdefault(each, {"global_shape": list(WEIGHTS[each].shape), "chunk": []})
            facts["layout"] = {"device_matrix": [2], "tensor_map": [0, -1]}
            facts["chunk"].append({"global_offset": list(offset), "local_shape": list(piece.shape)})
            holders = [{"file_name": name, "storage_rank": rank, "rank_group": [rank, rank + 8]}]
            storage[str((each, tuple(offset)))] = holders
    if metadata:
        plain = {"state_dict_metadata": state, "storage_data": storage}
        (directory / "metadata.json").write_text(json.dumps(plain))
    return directory


COMMONS = [
    None,
    {"epoch_num": 1, "step_num": 2000, "global_step": 2000, "loss_scale": None, "global_batch_size": 64},
    {
        "epoch_num": 1,
        "step_num": 2000,
        "global_step": 2000,
        "loss_scale": 65536.0,
        "global_batch_size": 64,
        "consumed_samples": 128000,
        "ckpt_status": None,
    },
    {"global_step": 2000, "from_a_newer_version": [1, 2]},
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def load(tmp_path, path):
    model = Model().to(torch.float32)
    restored = Bench(tmp_path / "root").manager(load_path=str(path), no_load_optim=True).restore({"model": model})
    assert restored.tier == "disk"
    for name, value in model.state_dict().items():
        assert torch.equal(value, WEIGHTS[name].float()), name


@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
@pytest.mark.parametrize(("split", "metadata"), [(True, True), (False, True), (False, False)])
def test_every_world_size_and_layout(tmp_path, world_size, split, metadata):
    directory = write_seed(
        tmp_path / "theirs", world_size=world_size, split=split, metadata=metadata, common=COMMONS[1]
    )
    read = read_foreign(str(directory), storage=PosixStorage()).model
    assert read.keys() == WEIGHTS.keys()
    assert all(same_bits(read[name], value) for name, value in WEIGHTS.items())
    load(tmp_path, tmp_path / "theirs")
    assert [each.problem for each in verify(str(directory), storage=PosixStorage())].count(None) >= 3


@pytest.mark.parametrize(
    ("ending", "prefix", "common"),
    [
        *itertools.product(["safetensors", "safetensor"], ["", "checkpoint", "my-run-model"], COMMONS[1:2]),
        *itertools.product(["safetensors"], ["checkpoint"], COMMONS),
    ],
)
def test_every_spelling(tmp_path, ending, prefix, common):
    write_seed(tmp_path / "theirs", ending=ending, prefix=prefix, common=common)
    load(tmp_path, tmp_path / "theirs")


@pytest.mark.parametrize("text", ["2000", "2000\n", "\ufeff2000\r\n", "", "2001", "rubbish"])
def test_its_tracker_as_it_may_be_found(tmp_path, text):
    write_seed(tmp_path / "theirs", common=COMMONS[2])
    (tmp_path / "theirs" / "latest_checkpointed_iteration.txt").write_text(text)
    load(tmp_path, tmp_path / "theirs")


def test_the_directory_of_one_iteration_may_be_named(tmp_path):
    directory = write_seed(tmp_path / "theirs", common=COMMONS[2])
    load(tmp_path, directory)
    load(tmp_path, directory.rename(tmp_path / "renamed"))


def write_hf(directory, *, files=1, index=True):
    directory.mkdir(parents=True)
    names = list(WEIGHTS)
    if files == 1:
        save_file(WEIGHTS, directory / "model.safetensors", metadata={"format": "pt"})
        return directory
    weights = {}
    for at in range(files):
        file_name = f"model-{at + 1:05d}-of-{files:05d}.safetensors"
        save_file({name: WEIGHTS[name] for name in names[at::files]}, directory / file_name)
        weights |= dict.fromkeys(names[at::files], file_name)
    if index:
        text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weights})
        (directory / "model.safetensors.index.json").write_text(text)
    (directory / "config.json").write_text("{}")
    return directory


@pytest.mark.parametrize("files", [1, 2, 4])
def test_hugging_face_directories(tmp_path, files):
    load(tmp_path, write_hf(tmp_path / "hub", files=files))


def test_hugging_face_directories_that_are_not_whole(tmp_path):
    def told(path):
        with pytest.raises(CheckpointError) as caught:
            Bench(tmp_path / "root").manager(load_path=str(path), no_load_optim=True).restore({"model": Model()})
        return str(caught.value)

    gone = write_hf(tmp_path / "gone", files=2)
    (gone / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is missing" in told(gone)
    torn = write_hf(tmp_path / "torn", files=2)
    (torn / "model-00002-of-00002.safetensors").write_bytes(b"x" * 20)
    assert "model-00002-of-00002.safetensors is not a readable safetensors file" in told(torn)
    other = write_hf(tmp_path / "other", files=2)
    save_file({"a": torch.ones(1)}, other / "model-00002-of-00002.safetensors")
    assert "but it does not" in told(other)
    escape = write_hf(tmp_path / "escape", files=2)
    index = escape / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001-of-00002.safetensors", "../torn/x.safetensors"))
    assert "which is no name of a safetensors file" in told(escape)


def test_full_resume_from_others_is_refused_with_the_remedy(tmp_path):
    for path in (write_hf(tmp_path / "hub"), write_seed(tmp_path / "theirs").parent):
        with pytest.raises(CheckpointError, match="no_load_optim: True"):
            Bench(tmp_path / "root").manager(load_path=str(path)).restore({"model": Model()})


def test_an_index_that_is_not_there_is_not_guessed(tmp_path):
    with pytest.raises(NothingToRestore):
        load(tmp_path, write_hf(tmp_path / "hub", files=2, index=False))
