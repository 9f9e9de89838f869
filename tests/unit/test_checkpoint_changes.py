"""What changes between runs: groups and names are mapped, or refused with a diff; nothing lands in a wrong place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastic.checkpoint.state import capture, prepare
from elastic.errors import CheckpointError
from tests.harness.checkpoints import Bench, meta
from tests.harness.dealt import mesh_of


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def layers():
    return nn.ModuleDict({name: nn.Linear(3, 3) for name in "abc"})


def trained(make_groups, seed=0):
    """Tracked objects after a step; every parameter has moments of its own."""
    torch.manual_seed(seed)
    model = layers()
    optimizer = torch.optim.AdamW(make_groups(model), lr=0.1)
    x = torch.ones(2, 3)
    for each in model.values():
        x = torch.tanh(each(x))
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def plain(model):
    return [{"params": list(model.parameters())}]


def by_kind(model):
    weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    return [{"params": weights, "lr": 0.5}, {"params": biases, "lr": 0.25, "weight_decay": 0.0}]


def moments(tracked):
    names = {id(each): name for name, each in tracked["model"].named_parameters()}
    return {names[id(each)]: state for each, state in tracked["optimizer"].state.items()}


def through_disk(tmp_path, source, target):
    bench = Bench(tmp_path / "root")
    bench.manager().save(source, meta(10))
    bench.manager().restore(target)
    one, other = moments(source), moments(target)
    assert one.keys() == other.keys()
    for name, state in one.items():
        assert all(torch.equal(state[key], other[name][key]) for key in state), name


@pytest.mark.parametrize(
    "order",
    [lambda groups: groups[::-1], lambda groups: [{**g, "params": g["params"][::-1]} for g in groups]],
    ids=["groups", "members"],
)
def test_another_order_is_mapped_by_name(tmp_path, order):
    source, target = trained(by_kind), trained(lambda model: order(by_kind(model)), seed=1)
    through_disk(tmp_path, source, target)
    rates = {
        name: group["lr"]
        for group in target["optimizer"].param_groups
        for name, each in target["model"].named_parameters()
        if any(each is member for member in group["params"])
    }
    assert all(rate == (0.5 if name.endswith("weight") else 0.25) for name, rate in rates.items())


def test_a_frozen_parameter_that_stays_in_its_group_keeps_its_state(tmp_path):
    source, target = trained(plain), trained(plain, seed=1)
    target["model"]["a"].weight.requires_grad_(False)
    through_disk(tmp_path, source, target)


def test_a_parameter_that_never_had_a_gradient_has_no_state_afterwards(tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        model = layers()
        optimizer = torch.optim.AdamW(model.parameters())
        model["a"](torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    through_disk(tmp_path, make(0), trained(plain, seed=1))


def refusal(source, target):
    before = [each.clone() for each in target["model"].state_dict().values()]
    rate = target["optimizer"].param_groups[0]["lr"]
    with pytest.raises(CheckpointError, match="differ") as caught:
        prepare(capture(source), target)
    assert all(map(torch.equal, before, target["model"].state_dict().values()))
    assert target["optimizer"].param_groups[0]["lr"] == rate
    return str(caught.value)


def test_what_cannot_be_mapped_is_refused_with_a_diff():
    text = refusal(trained(plain), trained(by_kind))
    assert "[a.bias, a.weight, b.bias, b.weight, c.bias, c.weight] in the checkpoint" in text
    assert "[a.weight, b.weight, c.weight] [a.bias, b.bias, c.bias] here" in text
    moved = trained(lambda model: [{"params": list(model["a"].parameters())}, {"params": [*model["b"].parameters()]}])
    text = refusal(trained(plain), moved)
    assert "only in the checkpoint: optimizer: c.bias, optimizer: c.weight" in text
    text = refusal(moved, trained(plain))
    assert "not in the checkpoint: optimizer: c.bias, optimizer: c.weight" in text
    swapped = trained(lambda m: [{"params": [m["a"].weight, m["b"].bias]}, {"params": [m["b"].weight, m["a"].bias]}])
    straight = trained(lambda m: [{"params": [m["a"].weight, m["a"].bias]}, {"params": [m["b"].weight, m["b"].bias]}])
    text = refusal(straight, swapped)
    assert "[a.bias, a.weight] [b.bias, b.weight] in the checkpoint, [a.weight, b.bias] [a.bias, b.weight] here" in text


def test_a_group_added_during_the_run_must_be_there_again(tmp_path):
    def grown(seed):
        tracked = trained(lambda model: [{"params": list(model["a"].parameters())}], seed)
        tracked["optimizer"].add_param_group({"params": list(tracked["model"]["b"].parameters()), "lr": 0.01})
        return tracked

    through_disk(tmp_path, grown(0), grown(1))
    text = refusal(grown(0), trained(lambda model: [{"params": list(model["a"].parameters())}]))
    assert "only in the checkpoint: optimizer: b.bias, optimizer: b.weight" in text


class Compiled(nn.Module):
    """Names as torch.compile makes them."""

    def __init__(self, inner):
        super().__init__()
        self._orig_mod = inner


def part_wrapped(model):
    model["b"] = nn.DataParallel(model["b"])
    return model


def deep_wrapped(model):
    model["b"] = nn.DataParallel(Compiled(nn.DataParallel(model["b"])))
    model["c"] = Compiled(model["c"])
    return nn.DataParallel(Compiled(model))


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": Compiled,
    "parallel": nn.DataParallel,
    "compiled parallel": lambda model: Compiled(nn.DataParallel(model)),
    "parallel compiled": lambda model: nn.DataParallel(Compiled(model)),
    "a part": part_wrapped,
    "many": deep_wrapped,
}


@pytest.mark.parametrize("there", WRAPPERS)
@pytest.mark.parametrize("here", ["plain", "parallel compiled", "many"])
def test_wrapped_names_both_ways(there, here):
    def make(wrap, seed):
        torch.manual_seed(seed)
        model = wrap(layers())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for at, each in enumerate(model.parameters()):
            optimizer.state[each]["momentum_buffer"] = torch.full_like(each, at + seed)
        return {"model": model, "optimizer": optimizer}

    source, target = make(WRAPPERS[there], 0), make(WRAPPERS[here], 10)
    captured = capture(source)
    assert set(captured.model) == {f"{layer}.{kind}" for layer in "abc" for kind in ("weight", "bias")}
    prepare(captured, target)()
    for one, other in zip(source["model"].parameters(), target["model"].parameters(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(
            source["optimizer"].state[one]["momentum_buffer"], target["optimizer"].state[other]["momentum_buffer"]
        )


def test_a_part_of_the_users_that_is_called_module_keeps_its_name():
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    model.other = nn.Module()
    model.other.module = nn.Linear(2, 2)
    names = {"module.weight", "module.bias", "other.module.weight", "other.module.bias"}
    assert set(capture({"model": model}).model) == names
    assert set(capture({"model": nn.DataParallel(model)}).model) == names


@pytest.mark.parametrize("kind", ["compiled", "data parallel", "both"])
def test_torchs_own_wrappers(kind):
    """The real ones, of which names are all that matters here."""

    def wrap(model):
        with mesh_of(0, 2):
            if kind != "compiled":
                model = nn.parallel.DistributedDataParallel(model)
            return model if kind == "data parallel" else torch.compile(model, backend="eager")

    source, target = trained(plain), trained(plain, seed=1)
    source["model"] = wrap(source["model"])
    captured = capture(source)
    assert set(captured.model) == {f"{layer}.{each}" for layer in "abc" for each in ("weight", "bias")}
    assert set(captured.opt) >= {"exp_avg.a.weight", "step.c.bias"}
    prepare(captured, target)()
    for one, other in zip(source["model"].parameters(), target["model"].parameters(), strict=True):
        assert torch.equal(one, other)
    again = trained(plain, seed=2)
    again["model"] = wrap(again["model"])
    prepare(capture(target), again)()
    for one, other in zip(again["model"].parameters(), target["model"].parameters(), strict=True):
        assert torch.equal(one, other)
