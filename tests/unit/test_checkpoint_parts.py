"""State that is dealt out over ranks: saved by some, restored by others, each reading little more than its part."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from elastic.checkpoint.comparing import compare
from elastic.checkpoint.cuts import Cut, Window, whole
from elastic.checkpoint.exporting import export_weights
from elastic.checkpoint.inspection import show, verify
from elastic.checkpoint.layout import METADATA
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import CheckpointError
from tests.harness.apart import Apart
from tests.harness.checkpoints import Bench, make_run, meta
from tests.harness.dealt import deal, part
from tests.harness.golden import GOLDEN, known_run
from tests.harness.ranks import run_ranks, run_tensor_ranks
from tests.harness.strict_reader import read_root


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def make(seed: int, *, steps: int = 0, wide: int = 0):
    """Tracked objects: rows that divide by nothing, a single row, no row, no dimension, a tie, a buffer, a type."""
    torch.manual_seed(seed)
    model = nn.Module()
    model.embed = nn.Embedding(7, 3)
    model.head = nn.Linear(3, 7)
    model.head.weight = model.embed.weight
    model.one_row = nn.Parameter(torch.randn(1, 5))
    model.no_rows = nn.Parameter(torch.randn(0, 5))
    model.scale = nn.Parameter(torch.randn(()))
    model.low = nn.Parameter(torch.randn(11, 2).bfloat16())
    model.turned = nn.Parameter(torch.randn(5, 3).t())
    model.big = nn.Parameter(torch.randn(101, wide)) if wide else None
    model.register_buffer("counts", torch.randint(0, 9, (5,)))
    optimizer = torch.optim.AdamW([{"params": [*model.parameters()][:2]}, {"params": [*model.parameters()][2:]}])
    for _ in range(steps):
        for each in model.parameters():
            each.grad = torch.randn_like(each)
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


def bits(tracked, rank=0, ranks=1, axis=0):
    """Everything, of what `deal` deals out the part of one rank."""
    model = tracked["model"]
    found = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, each in model.state_dict().items():
        local = each.to_local() if hasattr(each, "to_local") else each
        found[name] = part(local, rank, ranks, axis) if name in parameters and local.dim() > axis else local
    names = {id(each): name for name, each in model.named_parameters()}
    for parameter, entries in tracked["optimizer"].state.items():
        for key, value in entries.items():
            found[f"{key}.{names[id(parameter)]}"] = part(value, rank, ranks, axis) if value.dim() > axis else value
    return {name: (str(v.dtype), v.tolist()) for name, v in found.items()}


def save(bench, tracked, iteration, **others):
    """`tracked`: of each rank."""
    size = len(tracked)
    done = run_ranks(
        size, lambda group: bench.manager(group=group).save(tracked[group.rank], meta(iteration, **others))
    )
    assert all(each.saved for each in done), done[0].reason


def restore(bench, tracked, storages=None, **settings):
    def work(group):
        storage = storages[group.rank] if storages else None
        return bench.manager(group=group, storage=storage, **settings).restore(tracked[group.rank])

    return run_ranks(len(tracked), work)


def dealt(ranks, *, seed, steps=0, axis=0, wide=0):
    """Every rank's part of the same run; not of what `fully_shard` would leave whole, either."""
    found = [make(seed, steps=steps, wide=wide) for _ in range(ranks)]
    for rank, each in enumerate(found):
        deal(each, rank=rank, ranks=ranks, axis=axis, without=("turned",))
    return found


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("there", "here"), [(4, 3), (2, 5), (3, 8)])
def test_saved_in_parts_restored_in_other_parts_or_whole(tmp_path, there, here, axis):
    bench = Bench(tmp_path / "root")
    expected = make(0, steps=2)
    save(bench, dealt(there, seed=0, steps=2, axis=axis), 2)
    others = dealt(here, seed=9, axis=1 - axis)
    assert {each.iteration for each in restore(bench, others)} == {2}
    for rank, other in enumerate(others):
        for parameter, state in other["optimizer"].state.items():
            assert state["exp_avg"].shape == getattr(parameter, "to_local", lambda p=parameter: p)().shape
        check(other, expected, rank, here, 1 - axis)
    replicas = [make(7 + rank) for rank in range(2)]
    restore(bench, replicas)
    assert all(bits(each) == bits(expected) for each in replicas)
    # And back: replicas save, parts read.
    save(bench, replicas, 3, generation=2)
    again = dealt(there, seed=11, axis=axis)
    restore(bench, again)
    for rank, other in enumerate(again):
        check(other, expected, rank, there, axis)


def check(tracked, expected, rank, ranks, axis):
    """Compare one rank's parts with the same parts of the whole."""
    whole_bits, own = bits(expected, rank, ranks, axis), bits(tracked)
    turned = bits(expected)
    for name, value in own.items():
        assert value == (turned[name] if name.endswith("turned") else whole_bits[name]), name
    assert own.keys() == whole_bits.keys()


def test_files_and_metadata_are_what_the_format_says(tmp_path):
    bench = Bench(tmp_path / "root")
    expected = make(0, steps=1)
    save(bench, dealt(4, seed=0, steps=1), 5)
    found = read_root(tmp_path / "root")
    for name, value in expected["model"].state_dict().items():
        if name != "head.weight":
            assert torch.equal(found.model[name], value), name
    assert torch.equal(
        found.opt["exp_avg.embed.weight"], expected["optimizer"].state[expected["model"].embed.weight]["exp_avg"]
    )
    stored = json.loads((bench.directory(5) / METADATA).read_text())["state_dict_metadata"]
    assert stored["embed.weight"]["axis_fragmentations"] == [4, 1]
    assert stored["embed.weight"]["chunk"][3] == {"global_offset": [6, 0], "local_shape": [1, 3]}
    assert stored["one_row"]["axis_fragmentations"] == [1, 1]
    assert stored["no_rows"]["chunk"] == [{"global_offset": [0, 0], "local_shape": [0, 5]}]


class Counting(PosixStorage):
    def __init__(self):
        self.read_bytes = 0

    def read(self, path):
        data = super().read(path)
        self.read_bytes += len(data) if path.endswith(".safetensors") else 0
        return data

    def read_part(self, path, start, stop):
        data = super().read_part(path, start, stop)
        self.read_bytes += len(data) if path.endswith(".safetensors") else 0
        return data


@pytest.mark.parametrize("there", [pytest.param(1, marks=pytest.mark.exhaustive), 4])
def test_a_rank_reads_its_part_and_little_more(tmp_path, there):
    """A tensor of 101 rows of 128 KiB, and two moments; chunks are 1 MiB: of each piece 2 MiB too much at most."""
    bench = Bench(tmp_path / "root")
    expected = make(0, steps=1, wide=32768)
    save(bench, dealt(there, seed=0, steps=1, wide=32768) if there > 1 else [expected], 1)
    total = sum(path.stat().st_size for path in bench.directory(1).glob("*.safetensors"))
    here = 3
    others, storages = dealt(here, seed=5, wide=32768), [Counting() for _ in range(here)]
    restore(bench, others, storages)
    for rank, (other, storage) in enumerate(zip(others, storages, strict=True)):
        check(other, expected, rank, here, 0)
        part_bytes = total * len(other["model"].big.to_local()) // 101
        pieces = 3 * (1 if there == 1 else 3)
        assert part_bytes * 0.9 < storage.read_bytes < part_bytes + pieces * 2 * (1 << 20) + 100_000, rank
    assert sum(each.read_bytes for each in storages) < 1.6 * total


def test_weights_alone_and_balanced_loading(tmp_path):
    bench = Bench(tmp_path / "root")
    expected = make(0, steps=1)
    save(bench, dealt(2, seed=0, steps=1), 1)
    fresh = Bench(tmp_path / "new")
    others = dealt(3, seed=5)
    for each in others:
        each["optimizer"].state.clear()
    settings = {"load_path": str(bench.root), "no_load_optim": True, "load_balanced": True}
    assert {each.iteration for each in restore(fresh, others, **settings)} == {0}
    for rank, other in enumerate(others):
        assert not other["optimizer"].state
        own, all_of_it = bits(other), bits(expected, rank, 3)
        assert own["embed.weight"] == all_of_it["embed.weight"]
        assert own["low"] == all_of_it["low"]


def test_another_shape_is_told_with_both_shapes(tmp_path):
    bench = Bench(tmp_path / "root")
    save(bench, dealt(2, seed=0), 1)
    others = [make(1) for _ in range(2)]
    for rank, each in enumerate(others):
        each["model"].low = nn.Parameter(torch.zeros(6, 2).bfloat16())  # what one rank held
        each["optimizer"].param_groups[1]["params"] = list(each["model"].parameters())[2:]
        deal(each, rank=rank, ranks=2)
    with pytest.raises(CheckpointError, match=r"low \(\[11, 2\] in the checkpoint, \[6, 2\] here\)"):
        restore(bench, others)


@pytest.mark.parametrize("what", ["header", "tensor", "metadata"])
def test_a_flipped_bit_in_what_is_read_is_found(tmp_path, what):
    bench = Bench(tmp_path / "root")
    save(bench, dealt(2, seed=0, steps=1), 1)
    name = METADATA if what == "metadata" else "checkpoint-model-0000000-0000002.safetensors"
    path = bench.directory(1) / name
    data = bytearray(path.read_bytes())
    data[40 if what != "tensor" else -9] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{name} is not what was written"):
        restore(bench, dealt(3, seed=5))


def test_a_tensor_dealt_over_other_ranks_is_refused(tmp_path):
    bench = Bench(tmp_path / "root")
    tracked = dealt(4, seed=0)
    done = run_ranks(2, lambda group: bench.manager(group=group).save(tracked[group.rank], meta(1)))
    assert not done[0].saved
    assert "dealt out over 4 ranks" in done[0].reason


def test_state_of_other_objects_must_be_whole(tmp_path):
    tracked = dealt(1, seed=0)[0]

    class Average:
        def state_dict(self):
            return {"mean": tracked["model"].embed.weight}

        def load_state_dict(self, state):
            """Never reached."""

    done = Bench(tmp_path / "root").manager().save({**tracked, "average": Average()}, meta(1))
    assert "extra.average.mean is dealt out" in done.reason


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 2))
def test_a_cut_is_what_chunk_gives(size, ranks, axis):
    shape = [3, 2, 4]
    shape[axis] = size
    tensor = torch.arange(float(3 * 2 * 4 * size)).reshape(-1)[: shape[0] * shape[1] * shape[2]].reshape(shape)
    found = []
    for rank in range(ranks):
        cut = Cut(shape=tuple(shape), axis=axis, ranks=ranks, rank=rank)
        own = tensor[cut.window.slices((0, 0, 0))]
        assert torch.equal(own, part(tensor, rank, ranks, axis))
        assert (rank in cut.holders) == (own.numel() > 0 or (size == 0 and rank == 0))
        found.append(own)
    assert torch.equal(torch.cat(found, dim=axis), tensor)


def test_windows_meet():
    one = Window(offset=(2, 0), size=(3, 4))
    assert one.meet(whole((3, 9))) == Window(offset=(2, 0), size=(1, 4))
    assert one.meet(whole((2, 9))).empty
    assert not whole(()).empty


def test_commands_show_compare_and_export_whole_tensors(tmp_path):
    storage = PosixStorage()
    parts, replicas = Bench(tmp_path / "parts"), Bench(tmp_path / "replicas")
    expected = make(0, steps=1)
    for axis in (0, 1):
        save(parts, dealt(3, seed=0, steps=1, axis=axis), 1 + axis, generation=1 + axis)
    save(replicas, [expected], 1)
    one, turned, other = parts.directory(1), parts.directory(2), replicas.directory(1)
    shown = {each.name: each for each in show(str(one), storage=storage).tensors}
    assert shown["embed.weight"].shape == (7, 3)
    assert shown["embed.weight"].file_name.endswith("-0000000-0000003.safetensors and 2 more")
    assert all(each.problem is None for each in verify(str(tmp_path / "parts"), storage=storage))
    for left, right in ((one, other), (turned, other), (one, turned)):
        changes = compare(str(left), str(right), contents=True, storage=storage)
        assert not [
            each for each in changes if each.what.startswith(("tensor", "contents of")) and "rng." not in each.what
        ]
    changed = make(0, steps=1)
    with torch.no_grad():
        changed["model"].embed.weight[6, 1] += 1
    save(replicas, [changed], 2, generation=2)
    (found,) = [
        each
        for each in compare(str(turned), str(replicas.directory(2)), contents=True, storage=storage)
        if each.what.startswith("contents of") and "rng." not in each.what
    ]
    assert found.what == "contents of embed.weight"
    assert found.other == f"differ from byte {(6 * 3 + 1) * 4} of 84"
    for number, directory in enumerate((one, turned)):
        export_weights(
            str(directory), str(tmp_path / f"out{number}"), most_bytes=100, storage=storage, nonce=lambda: "n"
        )
        for path in (tmp_path / f"out{number}").glob("*.safetensors"):
            for name, tensor in load_file(path).items():
                assert torch.equal(tensor, expected["model"].state_dict()[name]), name


def test_nodes_with_directories_of_their_own(tmp_path):
    """Three nodes save, one is lost with its disk, an empty one comes instead of another."""
    apart, expected = Apart(tmp_path), make(0, steps=2)
    parts, others = dealt(3, seed=0, steps=2), dealt(2, seed=9)

    def first(group):
        manager = apart.manager(group, [0, 1, 2], generation=1)
        manager.restore(parts[group.rank])
        return manager.save(parts[group.rank], meta(2))

    assert all(each.saved for each in run_tensor_ranks(3, first))
    apart.lose(1)
    restored = run_tensor_ranks(
        2, lambda group: apart.manager(group, [0, 3], generation=2).restore(others[group.rank]).iteration
    )
    assert restored == [2, 2]
    for rank, other in enumerate(others):
        check(other, expected, rank, 2, 0)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_of_the_format_is_read_in_parts(tmp_path, version):
    expected, path = known_run(8), GOLDEN / f"format-{version}" / "iteration_00000008"
    others = [make_run(seed=3).step() for _ in range(3)]
    for rank, other in enumerate(others):
        deal(other.tracked, rank=rank, ranks=3)
    restored = restore(Bench(tmp_path / "root"), [each.tracked for each in others], load_path=str(path))
    assert {each.iteration for each in restored} == {8}
    for rank, other in enumerate(others):
        found = dict(other.tracked["model"].named_parameters())
        for name, whole_one in expected.tracked["model"].named_parameters():
            assert torch.equal(found[name].to_local(), part(whole_one, rank, 3)), name
            state, other_state = (
                expected.tracked["optimizer"].state[whole_one],
                other.tracked["optimizer"].state[found[name]],
            )
            assert torch.equal(other_state["exp_avg_sq"], part(state["exp_avg_sq"], rank, 3)), name
            assert torch.equal(other_state["step"], state["step"]), name
