"""Objects <-> named tensors: exact, by name, and a clear message where they do not fit."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elastic.checkpoint.shards import assign, decode_shard, describe, encode_shard, original_form, own_shards
from elastic.checkpoint.state import capture, prepare
from elastic.checkpoint.values import decode, encode
from elastic.errors import CheckpointDamaged, CheckpointError

quick = settings(deadline=None, max_examples=60)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def through_a_file(captured):
    """The state as it is after being written and read."""
    notes = json.loads(json.dumps(captured.values))["tensors"]

    def read(tensors):
        back = decode_shard(encode_shard(tensors)[0], file_name="f")
        return {name: original_form(tensor, notes.get(name)) for name, tensor in back.items()}

    return type(captured)(
        model=read(captured.model), opt=read(captured.opt), values=json.loads(json.dumps(captured.values))
    )


def move(source, target, **options):
    prepare(through_a_file(capture(source)), target, **options)()


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.just("$")), inner, max_size=3),
    ),
    max_leaves=12,
)


@quick
@given(values)
def test_plain_values_come_back_with_their_types(value):
    back = decode(json.loads(json.dumps(encode(value, path="x", sink=_refuse), allow_nan=False)), tensors={})
    assert repr(back) == repr(value)  # repr tells nan, -0.0, types and order apart


def _refuse(path, tensor):
    raise AssertionError(path)


def test_other_values_come_back():
    kept = {}

    def keep(name, tensor):
        kept[name] = tensor
        return name

    value = {
        "counter": Counter({3: 2}),
        "ordered": OrderedDict(b=1, a=2),
        "set": {1, 2},
        "dtype": torch.bfloat16,
        "scalar": numpy.float32(1.5),
        "array": numpy.arange(3),
        "tensor": torch.tensor([1.0, math.nan]),
    }
    back = decode(json.loads(json.dumps(encode(value, path="x", sink=keep))), tensors=kept)
    assert torch.equal(back["tensor"].view(torch.int32), value["tensor"].view(torch.int32))
    assert back["tensor"] is not value["tensor"]
    assert (back["array"] == value["array"]).all()
    for name in ("counter", "ordered", "set", "dtype", "scalar"):
        assert back[name] == value[name]
        assert type(back[name]) is type(value[name])
    with pytest.raises(CheckpointError, match=r"x\.deep\.1 is of type builtins\.object"):
        encode({"deep": [1, object()]}, path="x", sink=keep)
    with pytest.raises(CheckpointDamaged):
        decode({"$": "tensor", "name": "gone"}, tensors={})


TENSORS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "expanded": torch.arange(3.0).reshape(3, 1).expand(3, 4),
    "sliced": torch.arange(12.0).reshape(3, 4)[:, ::2],
    "complex128": torch.tensor([[1 + 2j, 3 - 4j]] * 2, dtype=torch.complex128).t(),
    "conjugate": torch.tensor([1 + 2j], dtype=torch.complex64).conj(),
    "bfloat16": torch.tensor([1.0, -0.0, math.nan], dtype=torch.bfloat16),
    "float8": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False]),
    "int64": torch.tensor([2**62]),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 3),
}


def as_bytes(tensor):
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def test_tensors_of_all_kinds_come_back():
    shared = torch.arange(4.0)
    tensors = TENSORS | {"half": shared[:2], "whole": shared}
    data, facts = encode_shard(tensors)
    assert {each.name for each in facts} == set(tensors)
    notes = describe(tensors)
    for name, read in decode_shard(data, file_name="f").items():
        back, wanted = original_form(read, notes.get(name)), tensors[name]
        assert (back.dtype, back.shape) == (wanted.dtype, wanted.shape), name
        assert torch.equal(as_bytes(back), as_bytes(wanted)), name
        if name in ("transposed", "channels_last", "complex128"):
            assert back.stride() == wanted.stride(), name


def test_what_a_file_cannot_hold_is_named():
    with pytest.raises(CheckpointError, match=r"odd is a torch\.sparse"):
        encode_shard({"odd": torch.eye(2).to_sparse()})
    with pytest.raises(CheckpointDamaged, match="f is not a readable"):
        decode_shard(b"rubbish", file_name="f")


@quick
@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=20), st.integers(1, 8))
def test_every_tensor_has_one_writer_and_bytes_are_balanced(sizes, world_size):
    owners = assign(sizes, world_size=world_size)
    assert owners.keys() == sizes.keys()
    assert owners == assign(dict(reversed(sizes.items())), world_size=world_size)
    loads = [sum(max(1, sizes[name]) for name in owners if owners[name] == rank) for rank in range(world_size)]
    if sizes:  # the bound of "longest first": nobody has more than the mean and one more tensor
        assert max(loads) <= sum(loads) / world_size + max(1, *sizes.values())


def test_files_are_numbered_among_those_that_hold_something():
    tensors = {"a": torch.zeros(4)}
    shards = [own_shards(model=tensors, opt={}, own={}, rank=rank, world_size=3, prefix="") for rank in range(3)]
    assert [[shard.name for shard in each] for each in shards] == [["model-0000000-0000001.safetensors"], [], []]


def test_several_modules_and_optimizers_keep_apart():
    def make():
        model, critic = nn.Linear(2, 2), nn.Linear(2, 2)
        return {
            "model": model,
            "critic": critic,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "slow": torch.optim.SGD(critic.parameters(), lr=0.2, momentum=0.9),
        }

    source, target = make(), make()
    for name, optimizer in (("model", "optimizer"), ("critic", "slow")):
        source[name](torch.ones(1, 2)).sum().backward()
        source[optimizer].step()
    captured = capture(source)
    assert set(captured.model) == {"weight", "bias", "critic.weight", "critic.bias"}
    assert set(captured.opt) >= {"momentum_buffer.weight", "slow.momentum_buffer.critic.weight"}
    move(source, target)
    assert torch.equal(source["critic"].weight, target["critic"].weight)
    assert target["slow"].param_groups[0]["lr"] == 0.2
    assert target["slow"].state[target["critic"].bias]["momentum_buffer"].tolist() == [1.0, 1.0]


def test_groups_in_another_order_are_found_by_name():
    def make(swap):
        model = nn.Linear(2, 3)
        groups = [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 2.0}]
        return {"model": model, "optimizer": torch.optim.AdamW(groups[::-1] if swap else groups)}

    source, target = make(False), make(True)
    source["model"](torch.ones(1, 2)).sum().backward()
    source["optimizer"].step()
    move(source, target)
    state = target["optimizer"].state
    assert state[target["model"].bias]["exp_avg"].shape == (3,)
    assert [group["lr"] for group in target["optimizer"].param_groups] == [2.0, 1.0]


def test_float32_moments_of_a_bfloat16_parameter_stay():
    def make():
        model = nn.Linear(2, 2, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"model": model, "optimizer": optimizer}

    source, target = make(), make()
    source["optimizer"].state[source["model"].weight] = {"master": torch.full((2, 2), 1 / 3), "seen": 3, "none": None}
    move(source, target)
    state = target["optimizer"].state[target["model"].weight]
    assert state["master"].dtype == torch.float32
    assert torch.equal(state["master"], torch.full((2, 2), 1 / 3))
    assert (state["seen"], state["none"]) == (3, None)


def test_wrapped_and_plain_names_agree():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self._orig_mod = inner

    plain, wrapped = nn.Sequential(nn.Linear(2, 2)), Wrapper(nn.Sequential(Wrapper(nn.Linear(2, 2))))
    assert set(capture({"model": wrapped}).model) == {"0.weight", "0.bias"}
    move({"model": wrapped}, {"model": plain})
    assert torch.equal(plain[0].weight, wrapped._orig_mod[0]._orig_mod.weight)


def test_scaler_extra_state_and_buffers_come_back():
    class Extra(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("wide", torch.zeros(3, 1).expand(3, 4))
            self.register_buffer("not_kept", torch.zeros(1), persistent=False)
            self.note = None

        def get_extra_state(self):
            return {"note": self.note, "table": torch.ones(2)}

        def set_extra_state(self, state):
            self.note = state["note"]

    def make():
        return {"model": nn.Sequential(Extra()), "scaler": torch.amp.GradScaler("cpu", init_scale=8.0)}

    source, target = make(), make()
    source["model"][0].note = ("x", 1)
    source["model"][0].wide = torch.arange(3.0).reshape(3, 1).expand(3, 4)
    source["scaler"].load_state_dict(source["scaler"].state_dict() | {"scale": 64.0, "_growth_tracker": 5})
    move(source, target)
    assert target["model"][0].note == ("x", 1)
    assert torch.equal(target["model"][0].wide, source["model"][0].wide)
    assert target["scaler"].state_dict() == source["scaler"].state_dict()
    assert set(capture(source).model) == {"0.wide"}


def broken(change):
    """The message for a model of two layers, restored into what `change` makes of it."""
    torch.manual_seed(0)
    source = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    target = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    change(target)
    before = [value.clone() for value in target.state_dict().values()]
    with pytest.raises(CheckpointError, match="differ") as caught:
        prepare(capture({"model": source}), {"model": target})
    assert all(map(torch.equal, before, target.state_dict().values()))
    return str(caught.value)


def test_misfits_are_listed_with_the_remedy():
    text = broken(lambda model: model.update({"c": nn.Linear(1, 1, bias=False)}))
    assert "not in the checkpoint: c.weight" in text
    assert "load_path" in text
    assert "only in the checkpoint: b.weight, b.bias" in broken(lambda model: model.pop("b"))
    text = broken(lambda model: model.update({"b": nn.Linear(2, 3)}))
    assert "b.weight ([2, 2] in the checkpoint, [3, 2] here)" in text
    assert "torch.float32 in the checkpoint, torch.float64 here" in broken(lambda model: model.double())
    assert "one tensor here, several in the checkpoint" in broken(
        lambda model: setattr(model.b, "weight", model.a.weight)
    )


def test_objects_and_groups_that_differ_are_listed():
    model = nn.Linear(2, 2)
    adam = torch.optim.AdamW(model.parameters())
    captured = capture({"model": model, "optimizer": adam})
    with pytest.raises(CheckpointError, match="only in the checkpoint: tracked object optimizer"):
        prepare(captured, {"model": model})
    with pytest.raises(CheckpointError, match="not in the checkpoint: tracked object scaler"):
        prepare(captured, {"model": model, "optimizer": adam, "scaler": torch.amp.GradScaler("cpu")})
    split = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias]}])
    with pytest.raises(CheckpointError, match="parameter groups of optimizer"):
        prepare(captured, {"model": model, "optimizer": split})
    frozen = torch.optim.AdamW([model.weight])
    with pytest.raises(CheckpointError, match="only in the checkpoint: optimizer: bias"):
        prepare(captured, {"model": model, "optimizer": frozen})
    with pytest.raises(CheckpointError, match="no tracked module has"):
        capture({"optimizer": adam})
    with pytest.raises(CheckpointError, match="cannot be tracked"):
        capture({"model": 3})


def test_weights_only_may_cast_and_untie():
    source, target = nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16)
    move({"model": source}, {"model": target}, weights_only=True)
    assert torch.equal(target.weight, source.weight.to(torch.bfloat16))


def test_an_optimizer_with_master_weights_is_told_of_new_weights():
    class Masters(torch.optim.SGD):
        refreshed = 0

        def reload_main_params_from_model(self):
            self.refreshed += 1

    target = nn.Linear(2, 2)
    optimizer = Masters(target.parameters(), lr=0.1)
    move({"model": nn.Linear(2, 2)}, {"model": target, "optimizer": optimizer}, weights_only=True)
    assert optimizer.refreshed == 1
