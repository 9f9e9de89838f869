"""Optimizers <-> tensors by parameter NAME: moments, group membership and hyper-parameters, never by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from elastic.checkpoint.cuts import Cut
from elastic.checkpoint.modules import Difference
from elastic.checkpoint.sharded import own_part, part_of, state_names
from elastic.checkpoint.values import Sink, decode, encode
from elastic.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """An optimizer's state: what its opt tensors are called, and the JSON that says where each belongs."""

    tensors: dict[str, Tensor]
    cuts: dict[str, Cut]
    plain: dict[str, Any]


def capture_optimizer(
    optimizer: Optimizer, *, key: str, names: Mapping[int, str], prefix: str = "", cuts: Mapping[str, Cut]
) -> OptimizerState:
    """Take an optimizer's state. `names`: id of a parameter -> its name in the tracked modules; `cuts`: of these.

    Tensors are called `<state>.<parameter>`, for example `exp_avg.embed.weight`.
    """
    members = [_member_names(group["params"], key, names) for group in optimizer.param_groups]
    state = encode_packed(optimizer.state_dict(), members, prefix=prefix)
    for member, name in state_names(state.plain["state"]):
        # An optimizer that works on the parts alone keeps plain moments, each as large as the part.
        cut = cuts.get(member)
        if cut is not None and tuple(state.tensors[name].shape) == cut.window.size:
            state.cuts[name] = cut
    return state


def encode_packed(packed: Mapping[str, Any], members: Sequence[Sequence[str]], *, prefix: str = "") -> OptimizerState:
    """Turn what an optimizer's `state_dict` gave into tensors and JSON. `members`: names of each group's parameters.

    Raises:
        CheckpointError: something that cannot be stored, or would be stored under one name twice.
    """
    tensors: dict[str, Tensor] = {}
    cuts: dict[str, Cut] = {}

    def keep(name: str, tensor: Tensor) -> str:
        if name in tensors:
            raise CheckpointError(f"the optimizer has two entries that would both be stored as {name!r}")
        tensors[name], cut = part_of(tensor, name=name)
        if cut is not None:
            cuts[name] = cut
        return name

    groups: list[dict[str, Any]] = []
    state: dict[str, Any] = {}
    for at, (group, own) in enumerate(zip(packed["param_groups"], members, strict=True)):
        settings = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        head = f"{prefix}group.{at}"
        encoded = {name: encode(value, path=f"{head}.{name}", sink=keep) for name, value in settings.items()}
        groups.append({"params": list(own), "settings": encoded})
        for member, index in zip(own, group["params"], strict=True):
            if index in packed["state"]:
                state[member] = _encode_state(packed["state"][index], member, prefix, keep)
    return OptimizerState(tensors=tensors, cuts=cuts, plain={"groups": groups, "state": state})


def _encode_state(entries: Mapping[Any, Any], member: str, prefix: str, keep: Sink) -> list[Any]:
    # Pairs, not an object: the keys of an optimizer's state need not be strings.
    return [[key, encode(value, path=f"{prefix}{key}.{member}", sink=keep)] for key, value in entries.items()]


def match_optimizer(
    optimizer: Optimizer, plain: Mapping[str, Any], *, key: str, names: Mapping[int, str]
) -> tuple[list[int], Difference]:
    """Find the saved group for each of the optimizer's groups, by the names of its members.

    A state imported from a system that keeps no groups has None in their place: those of the optimizer stay.
    """
    difference = Difference()
    if plain["groups"] is None:
        all_of_it = {name for group in optimizer.param_groups for name in _member_names(group["params"], key, names)}
        difference.missing.extend(f"{key}: {name}" for name in sorted(all_of_it - plain["state"].keys()))
        difference.extra.extend(f"{key}: {name}" for name in sorted(plain["state"].keys() - all_of_it))
        return [], difference
    saved = [frozenset(group["params"]) for group in plain["groups"]]
    here = [frozenset(_member_names(group["params"], key, names)) for group in optimizer.param_groups]
    free = list(range(len(saved)))
    order: list[int] = []
    for members in here:
        match = next((at for at in free if saved[at] == members), None)
        if match is not None:
            free.remove(match)
            order.append(match)
    if len(order) == len(here) and not free:
        return order, difference
    all_saved, all_here = frozenset().union(*saved), frozenset().union(*here)
    difference.missing.extend(f"{key}: {name}" for name in sorted(all_here - all_saved))
    difference.extra.extend(f"{key}: {name}" for name in sorted(all_saved - all_here))
    if all_saved == all_here:
        difference.unlike.append(
            f"parameter groups of {key} ({_groups_text([saved[at] for at in free])} in the checkpoint, "
            f"{_groups_text([each for each in here if each not in saved])} here)"
        )
    return order, difference


def _groups_text(groups: Sequence[frozenset[str]], *, most: int = 6) -> str:
    """Groups that found no partner, as a person can compare them."""
    texts = []
    for members in groups:
        names = sorted(members)
        more = f" and {len(names) - most} more" if len(names) > most else ""
        texts.append(f"[{', '.join(names[:most])}{more}]")
    return " ".join(texts) or "none other"


def apply_optimizer(
    optimizer: Optimizer, plain: Mapping[str, Any], tensors: Mapping[str, Tensor], *, order: list[int], key: str,
    names: Mapping[int, str], cuts: Mapping[str, Cut], known: Mapping[str, Cut], copy: bool,
) -> None:  # fmt: skip
    """Put a saved state into an optimizer, fresh or not, exactly: no cast, nothing dropped.

    `cuts`: of the parameters here; `known`: of which saved tensors only this rank's part is given. `copy`: whether
    the tensors belong to somebody else, so that the optimizer may not keep them.
    """
    packed = optimizer.state_dict()
    parts = dict(tensors)
    for member, tensor in state_names(plain["state"]):
        parts[tensor] = own_part(tensors[tensor], cuts.get(member), known=known.get(tensor))
    state: dict[int, dict[str, Any]] = {}
    by_name: dict[str, dict[str, Any]] = {}
    kept = plain["groups"]
    found: list[dict[str, Any]] = [{} for _ in optimizer.param_groups] if kept is None else [kept[at] for at in order]
    for live, group, saved in zip(optimizer.param_groups, packed["param_groups"], found, strict=True):
        settings = saved.get("settings", {})
        group.update({name: decode(value, tensors=tensors) for name, value in settings.items()})
        for name, index in zip(_member_names(live["params"], key, names), group["params"], strict=True):
            if name in plain["state"]:
                by_name[name] = {each: decode(value, tensors=parts, copy=copy) for each, value in plain["state"][name]}
                state[index] = dict(by_name[name])
    optimizer.load_state_dict({**packed, "state": state, "param_groups": packed["param_groups"]})
    _undo_casts(optimizer, by_name, names)


def _undo_casts(optimizer: Optimizer, by_name: Mapping[str, dict[str, Any]], names: Mapping[int, str]) -> None:
    """load_state_dict casts moments to the parameter's dtype: float32 moments of a bfloat16 one would be lost."""
    for parameter, entries in optimizer.state.items():
        saved = by_name.get(names.get(id(parameter), ""), {})
        for each, value in saved.items():
            loaded = entries.get(each)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                entries[each] = value.to(loaded.device)


def _member_names(parameters: list[Tensor], key: str, names: Mapping[int, str]) -> list[str]:
    unknown = [list(parameter.shape) for parameter in parameters if id(parameter) not in names]
    if unknown:
        raise CheckpointError(
            f"the optimizer {key!r} holds {len(unknown)} parameters that no tracked module has (shapes {unknown[:4]}). "
            "Track the module they belong to as well: state is stored by parameter name."
        )
    return [names[id(parameter)] for parameter in parameters]
