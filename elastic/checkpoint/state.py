"""Tracked objects <-> named tensors and JSON: take them all, put them all back, or say what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from elastic.checkpoint import modules, optimizers
from elastic.checkpoint.cuts import Cut
from elastic.checkpoint.modules import Difference
from elastic.checkpoint.placing import apart
from elastic.checkpoint.sharded import is_spread, part_of, state_names
from elastic.checkpoint.shards import describe
from elastic.checkpoint.values import check_references, decode, encode
from elastic.errors import CheckpointError, ElasticError


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A state. The tensors are the live ones: who wants to keep it past the next step copies them."""

    model: dict[str, Tensor]
    opt: dict[str, Tensor]
    cuts: dict[str, Cut] = field(default_factory=dict)
    """Of the tensors, model's and opt's, of which only this rank's part is here."""
    own: bool = False
    """Whether they are nobody else's, so that who takes the state may keep them."""
    values: dict[str, Any]
    """JSON: `objects` (by tracked name), `ties`, `tensors` (what a file cannot say of them)."""


@dataclass(frozen=True, kw_only=True)
class _Sorted:
    """Tracked objects by what they are, with the prefix that keeps the names of several apart."""

    modules: dict[str, tuple[nn.Module, str]]
    optimizers: dict[str, tuple[Optimizer, str]]
    others: dict[str, Any]


def capture(tracked: Mapping[str, Any], *, weights_only: bool = False) -> Captured:
    """Take the state of everything tracked.

    Raises:
        CheckpointError: something that cannot be stored, with its place.
    """
    parts = _sort(tracked)
    model: dict[str, Tensor] = {}
    opt: dict[str, Tensor] = {}
    cuts: dict[str, Cut] = {}
    ties: dict[str, str] = {}
    objects: dict[str, Any] = {}

    def keep(name: str, tensor: Tensor) -> str:
        if name in opt:
            raise CheckpointError(f"two states would both be stored as {name!r}: track them under other names")
        opt[name], cut = part_of(tensor, name=name)
        if cut is not None:
            raise CheckpointError(
                f"{name} is dealt out over the ranks, which is known of modules and optimizers only: track its object "
                "as one of these, or give the whole tensor in its state_dict()"
            )
        return name

    names: dict[int, str] = {}
    for key, (module, prefix) in parts.modules.items():
        taken = modules.capture_module(module, prefix=prefix)
        names = taken.names | names
        _merge(model, taken.tensors)
        cuts |= taken.cuts
        ties |= taken.ties
        if not weights_only:
            others = {name: encode(value, path=f"extra.{name}", sink=keep) for name, value in taken.others.items()}
            objects[key] = {"kind": "module", "others": others}
    if not weights_only:
        for key, (optimizer, prefix) in parts.optimizers.items():
            state = optimizers.capture_optimizer(optimizer, key=key, names=names, prefix=prefix, cuts=cuts)
            _merge(opt, state.tensors)
            cuts |= state.cuts
            objects[key] = {"kind": "optimizer", **state.plain}
        for key, other in parts.others.items():
            objects[key] = {"kind": "other", "state": encode(other.state_dict(), path=f"extra.{key}", sink=keep)}
    notes = describe(model, cuts) | describe(opt, cuts)
    return Captured(model=model, opt=opt, cuts=cuts, values={"objects": objects, "ties": ties, "tensors": notes})


def buffer_names(tracked: Mapping[str, Any]) -> frozenset[str]:
    """The names under which buffers of tracked modules are stored: of the model's tensors these may differ by rank."""
    found: set[str] = set()
    for module, prefix in _sort(tracked).modules.values():
        found |= modules.buffer_names(module, prefix=prefix)
    return frozenset(found)


def wanted_cuts(values: Mapping[str, Any], tracked: Mapping[str, Any]) -> dict[str, Cut]:
    """Of which saved tensors this rank needs only a part, and which; none where nothing here is dealt out over ranks.

    `values`: those of the saved state.
    """
    parts = _sort(tracked)
    own = _own_cuts(parts)
    if not own:
        return {}
    ties, objects = values.get("ties", {}), values.get("objects", {})
    wanted = {ties.get(name, name): cut for name, cut in own.items()}
    for key in parts.optimizers:
        for member, tensor in state_names(objects.get(key, {}).get("state", {})):
            if member in own:
                wanted[tensor] = own[member]
    return wanted


def dealt_out(tracked: Mapping[str, Any]) -> bool:
    """Whether some module's tensors are spread over the ranks. Never raises, and is the same on all of them."""
    modules_here = (each for each in tracked.values() if isinstance(each, nn.Module))
    return any(is_spread(tensor) for module in modules_here for tensor in module.parameters())


def overwritable(tracked: Mapping[str, Any], *, weights_only: bool = False) -> dict[str, Tensor]:
    """The tensors that a restore gives other values, by the name that they are stored under: those of modules, and
    what optimizers keep for parameters. None where something is dealt out over ranks.

    Raises:
        CheckpointError: as `capture`.
    """
    parts = _sort(tracked)
    live: dict[str, Tensor] = {}
    if _own_cuts(parts):
        return live
    for module, prefix in parts.modules.values():
        live |= modules.capture_module(module, prefix=prefix).tensors
    names = _parameter_names(parts)
    for key, (optimizer, prefix) in ({} if weights_only else parts.optimizers).items():
        state = optimizers.capture_optimizer(optimizer, key=key, names=names, prefix=prefix, cuts={})
        live |= {name: state.tensors[name] for _, name in state_names(state.plain["state"])}
    return apart(live)


def prepare(captured: Captured, tracked: Mapping[str, Any], *, weights_only: bool = False) -> Callable[[], None]:
    """Check that a state fits the tracked objects; what is returned then puts it into them.

    Nothing is changed before that call. `weights_only`: modules alone, and a floating dtype may differ.

    Raises:
        CheckpointError: names, shapes, groups or objects differ; the message lists them and says what to do.
    """
    parts = _sort(tracked)
    ties: Mapping[str, str] = captured.values.get("ties", {})
    objects: Mapping[str, Any] = captured.values.get("objects", {})
    difference = Difference()
    pairs: list[tuple[Tensor, Tensor]] = []
    prefixes = [prefix for _, prefix in parts.modules.values()]
    difference.extra += [name for name in captured.model if _owner(name, prefixes) is None]
    for module, prefix in parts.modules.values():
        # Each module is shown its own names only, so that nothing of another one looks superfluous.
        saved = {name: tensor for name, tensor in captured.model.items() if _owner(name, prefixes) == prefix}
        found, unlike = modules.match_module(
            module, saved, ties, prefix=prefix, exact=not weights_only, cuts=captured.cuts
        )
        pairs += found
        _extend(difference, unlike)
    orders: dict[str, list[int]] = {}
    if not weights_only:
        check_references(objects)
        _compare_objects(objects, parts, difference)
        orders = _match_optimizers(objects, parts, difference)
    if lines := difference.lines():
        raise CheckpointError(
            "the state in the checkpoint and the tracked objects differ. "
            + "; ".join(lines)
            + ". Build the same model, optimizer and schedule as when it was saved; to start a new run from its "
            "weights, set checkpoint.load_path, no_load_optim: True and another save_path."
        )

    def apply() -> None:
        try:
            for target, source in pairs:
                modules.copy_into(target, source)
            if weights_only:
                _refresh_masters(parts)
            else:
                _apply_objects(captured, parts, orders)
        except ElasticError:
            raise
        except Exception as error:  # load_state_dict is the user's, and may raise anything
            raise CheckpointError(
                f"a tracked object refused its state, {type(error).__name__}: {error}. What is in memory now is a "
                "mixture: end this process; the files are as they were."
            ) from error

    return apply


def _apply_objects(captured: Captured, parts: _Sorted, orders: Mapping[str, list[int]]) -> None:
    objects = captured.values["objects"]
    for key, (module, prefix) in parts.modules.items():
        if others := objects[key]["others"]:
            _apply_others(module, prefix, {name: decode(plain, tensors=captured.opt) for name, plain in others.items()})
    names, cuts = _parameter_names(parts), _own_cuts(parts)
    for key, (optimizer, _) in parts.optimizers.items():
        optimizers.apply_optimizer(
            optimizer,
            objects[key],
            captured.opt,
            order=orders[key],
            key=key,
            names=names,
            cuts=cuts,
            known=captured.cuts,
            copy=not captured.own or bool(cuts or captured.cuts),  # of a part the rest would be kept, too
        )
    for key, other in parts.others.items():
        other.load_state_dict(decode(objects[key]["state"], tensors=captured.opt))


def _refresh_masters(parts: _Sorted) -> None:
    """New weights without their optimizer: one that made float32 copies of the old ones must take them anew."""
    for optimizer, _ in parts.optimizers.values():
        refresh = getattr(optimizer, "reload_main_params_from_model", None)
        if callable(refresh):
            refresh()


def _apply_others(module: nn.Module, prefix: str, others: Mapping[str, Any]) -> None:
    """Give each submodule its extra state back, through the one door that it has."""
    state = module.state_dict(keep_vars=True)
    clean = modules.entry_names(module, state)
    for name in state:
        if (value := others.get(prefix + clean[name])) is not None:
            owner = name.rpartition(".")[0]
            module.get_submodule(owner).set_extra_state(value)


def _compare_objects(objects: Mapping[str, Any], parts: _Sorted, difference: Difference) -> None:
    kinds = (
        dict.fromkeys(parts.modules, "module")
        | dict.fromkeys(parts.optimizers, "optimizer")
        | dict.fromkeys(parts.others, "other")
    )
    difference.missing += [f"tracked object {key}" for key in kinds if key not in objects]
    difference.extra += [f"tracked object {key}" for key in objects if key not in kinds]
    for key, kind in kinds.items():
        if key in objects and objects[key].get("kind") != kind:
            difference.unlike.append(
                f"tracked object {key} ({objects[key].get('kind')} in the checkpoint, {kind} here)"
            )


def _match_optimizers(objects: Mapping[str, Any], parts: _Sorted, difference: Difference) -> dict[str, list[int]]:
    names = _parameter_names(parts)
    orders: dict[str, list[int]] = {}
    for key, (optimizer, _) in parts.optimizers.items():
        if objects.get(key, {}).get("kind") == "optimizer":
            orders[key], unlike = optimizers.match_optimizer(optimizer, objects[key], key=key, names=names)
            _extend(difference, unlike)
    return orders


def _sort(tracked: Mapping[str, Any]) -> _Sorted:
    found: dict[str, dict[str, Any]] = {"modules": {}, "optimizers": {}, "others": {}}
    for key, value in tracked.items():
        if isinstance(value, nn.Module):
            found["modules"][key] = value
        elif isinstance(value, Optimizer):
            found["optimizers"][key] = value
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            found["others"][key] = value
        else:
            raise CheckpointError(
                f"{key!r} cannot be tracked: {type(value).__name__} has no state_dict and load_state_dict"
            )
    return _Sorted(
        modules=_with_prefixes(found["modules"], plain="model"),
        optimizers=_with_prefixes(found["optimizers"], plain="optimizer"),
        others=found["others"],
    )


def _with_prefixes(found: dict[str, Any], *, plain: str) -> dict[str, tuple[Any, str]]:
    """The only one of its kind, or the one of the usual name, keeps bare names; others get theirs in front."""
    bare = next(iter(found)) if len(found) == 1 else plain
    return {key: (value, "" if key == bare else f"{key}.") for key, value in found.items()}


def _owner(name: str, prefixes: list[str]) -> str | None:
    """The longest prefix that the name begins with; None where it belongs to no tracked module."""
    return max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)


def _parameter_names(parts: _Sorted) -> dict[int, str]:
    names: dict[int, str] = {}
    for module, prefix in parts.modules.values():
        for name, value in modules.live_state(module, prefix=prefix).items():
            if isinstance(value, Tensor):
                names.setdefault(id(value), name)
    return names


def _own_cuts(parts: _Sorted) -> dict[str, Cut]:
    """Cuts of the modules' tensors by each of their names, further names of tied ones included."""
    cuts: dict[str, Cut] = {}
    for module, prefix in parts.modules.values():
        for name, value in modules.live_state(module, prefix=prefix).items():
            if isinstance(value, Tensor) and (cut := part_of(value, name=name)[1]) is not None:
                cuts[name] = cut
    return cuts


def _merge(into: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    if double := into.keys() & tensors.keys():
        raise CheckpointError(f"two states would both be stored as {min(double)!r}: track them under other names")
    into.update(tensors)


def _extend(into: Difference, other: Difference) -> None:
    into.missing += other.missing
    into.extra += other.extra
    into.unlike += other.unlike
