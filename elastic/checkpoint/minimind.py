"""MiniMind's resume file (`*_resume.pth`) -> a state of ours, with a list of all that had to be assumed or was lost.

The file: {model: half-precision weights by name, optimizer: state by INDEX, epoch, step, world_size, scaler, ...}.
`step` counts micro-batches of one rank within the epoch. Batch size, accumulation and length of the data it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elastic.checkpoint.modules import clean_names
from elastic.checkpoint.optimizers import encode_packed
from elastic.checkpoint.shards import describe
from elastic.checkpoint.state import Captured
from elastic.checkpoint.values import encode
from elastic.errors import CheckpointDamaged, UsageError


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the file lacks and a person must say. `batch_size`: samples of one rank's micro-batch."""

    batch_size: int
    accumulation_steps: int
    dataset_length: int


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where the run stood, in our terms."""

    iteration: int
    consumed_samples: int
    epoch: int
    global_batch_size: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A state of ours, where it stands, and what a person must know of how it came about."""

    captured: Captured
    position: Position
    world_size: int
    notes: tuple[str, ...]


def convert(
    plain: Mapping[str, Any], given: Given, *, dtype: torch.dtype = torch.float32, accept_infinite: bool = False
) -> Converted:
    """Turn what the file holds into a state. The tracked objects are to be called model, optimizer and scaler.

    Raises:
        CheckpointDamaged: not a MiniMind resume file.
        UsageError: values that were lost for good, or parameters whose order cannot be told.
    """
    weights, packed = _dict(plain, "model"), _dict(plain, "optimizer")
    counts = {name: _count(plain, name) for name in ("epoch", "step")}
    world_size = max(1, _count(plain, "world_size", 1))
    position = place(given, world_size=world_size, **counts)
    total = _parameters_of(packed)
    model, ties = _untie(weights, most=total)
    names = _parameter_order(model, packed, total)
    members = [[names[index] for index in group["params"]] for group in packed["param_groups"]]
    state = encode_packed(packed, members)
    opt = dict(state.tensors)
    objects = {"model": {"kind": "module", "others": {}}, "optimizer": {"kind": "optimizer", **state.plain}}
    if isinstance(plain.get("scaler"), dict):

        def keep(name: str, tensor: Tensor) -> str:
            opt[name] = tensor
            return name

        objects["scaler"] = {"kind": "other", "state": encode(plain["scaler"], path="extra.scaler", sink=keep)}
    loss = _loss_of_half(model, accept_infinite=accept_infinite)
    model = {name: each.to(dtype) if each.is_floating_point() else each for name, each in model.items()}
    values = {"objects": objects, "ties": ties, "tensors": describe(model) | describe(opt)}
    left = sorted(set(plain) - {"model", "optimizer", "epoch", "step", "world_size", "scaler"})
    notes = (*position.notes, *loss, f"left out: {', '.join(left) or 'nothing'}; the file holds no random state")
    return Converted(
        captured=Captured(model=model, opt=opt, values=values), position=position, world_size=world_size, notes=notes
    )


def place(given: Given, *, epoch: int, step: int, world_size: int) -> Position:
    """Where the run stood after `step` micro-batches of an epoch (epochs count from 0)."""
    wide = given.batch_size * world_size
    micro_batches = math.ceil(math.ceil(given.dataset_length / world_size) / given.batch_size)
    if step > micro_batches:
        raise UsageError(
            f"the file says step {step}, but {given.dataset_length} samples at {given.batch_size} x {world_size} make "
            f"only {micro_batches} steps an epoch: --batch-size or --dataset-length is not that of the run"
        )
    steps_of_epoch = math.ceil(micro_batches / given.accumulation_steps)
    whole, rest = divmod(step, given.accumulation_steps)
    consumed = epoch * given.dataset_length + min(given.dataset_length, whole * given.accumulation_steps * wide)
    notes = [
        f"taken from you: batch size {given.batch_size} a rank, accumulation {given.accumulation_steps}, "
        f"{given.dataset_length} samples; from the file: epoch {epoch}, step {step}, world size {world_size}",
        f"that is iteration {epoch * steps_of_epoch + whole} and {consumed} consumed samples",
    ]
    if rest:
        notes.append(f"{rest} micro-batches since the last optimizer step left no trace in the weights: done again")
    if consumed % given.dataset_length:
        notes.append(
            f"within epoch {epoch} samples were drawn in MiniMind's order and go on in ours: some of this epoch are "
            "used twice and as many not at all; later epochs are whole"
        )
    return Position(
        iteration=epoch * steps_of_epoch + whole,
        consumed_samples=consumed,
        epoch=epoch,
        global_batch_size=wide * given.accumulation_steps,
        notes=tuple(notes),
    )


def weights_of(plain: Mapping[str, Any], *, dtype: torch.dtype, accept_infinite: bool) -> tuple[Captured, list[str]]:
    """The weights alone, of a resume file or of a bare file of weights; ties are left as equal copies.

    Raises:
        CheckpointDamaged, UsageError: as `convert`.
    """
    inner = plain["model"] if isinstance(plain.get("model"), Mapping) else plain
    model, _ = _untie(inner, most=None)
    notes = _loss_of_half(model, accept_infinite=accept_infinite)
    model = {name: each.to(dtype) if each.is_floating_point() else each for name, each in model.items()}
    return Captured(model=model, opt={}, values={"objects": {}, "ties": {}, "tensors": describe(model)}), notes


def _untie(weights: Mapping[str, Any], *, most: int | None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once: the file holds a tied one as equal copies. `most`: how many parameters there really are."""
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointDamaged(f"the weight {name!r:.60} is a {type(value).__name__}, expected a tensor")
    clean = clean_names(weights)
    model: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    spare = 0 if most is None else sum(each.is_floating_point() for each in weights.values()) - most
    for name, value in weights.items():
        # Only as many as there are too many: two parameters may be equal by chance, as zeros are.
        twins = (known for known, each in model.items() if len(ties) < spare and _equal(each, value))
        twin = next(twins, None) if value.is_floating_point() else None
        if twin is None:
            model[clean[name]] = value
        else:
            ties[clean[name]] = twin
    return model, ties


def _parameters_of(packed: Mapping[str, Any]) -> int:
    """How many parameters an optimizer's state is of; they must be numbered from 0."""
    try:
        numbers = [index for group in packed["param_groups"] for index in group["params"]]
        sound = sorted(numbers) == list(range(len(numbers))) and all(
            isinstance(entries, dict) for entries in packed["state"].values()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"optimizer is not the state of an optimizer: {error!r}") from error
    if not sound:
        raise CheckpointDamaged("optimizer is not the state of an optimizer: its parameters are not numbered from 0")
    return len(numbers)


def _parameter_order(model: Mapping[str, Tensor], packed: Mapping[str, Any], total: int) -> Sequence[str]:
    """Number in the optimizer -> name: parameters in the order of the weights; every moment's shape must agree."""
    moments = {
        at: each.shape for at, entries in packed["state"].items() if (each := entries.get("exp_avg")) is not None
    }
    names = [name for name, each in model.items() if each.is_floating_point()]
    wrong = [at for at, shape in moments.items() if not (isinstance(at, int) and at < len(names))]
    wrong = wrong or [at for at, shape in moments.items() if model[names[at]].shape != shape]
    if total != len(names) or wrong:
        raise UsageError(
            f"the optimizer knows its {total} parameters by number only, and they do not fit the {len(names)} weights "
            f"in their order (first misfit: {wrong[:1] or 'the count'}). Import the weights alone: --weights-only"
        )
    return names


def _loss_of_half(model: Mapping[str, Tensor], *, accept_infinite: bool) -> list[str]:
    half = {name: each for name, each in model.items() if each.dtype == torch.float16}
    if not half:
        return []
    infinite = {name: count for name, each in half.items() if (count := int(torch.isinf(each).sum()))}
    tiny = sum(int(((each.abs() < 2**-14) & (each != 0)).sum()) for each in half.values())
    zero = sum(int((each == 0).sum()) for each in half.values())
    total = sum(each.numel() for each in half.values())
    if infinite and not accept_infinite:
        raise UsageError(
            f"float16 could not hold {sum(infinite.values())} values, which are infinite now ({', '.join(infinite)}): "
            "they are lost. Take an earlier file, or --accept-infinite to go on with them"
        )
    return [
        f"float16 kept 11 significant bits of {total} weights; {tiny} lie below 2^-14 and kept fewer, {zero} are zero "
        f"(some may have been smaller than 2^-25), {sum(infinite.values())} are infinite",
        "the moments are those of the weights before they were rounded",
    ]


def _dict(plain: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = plain.get(name)
    if not isinstance(value, Mapping):
        raise CheckpointDamaged(f"it is no MiniMind resume file: {name!r} is {value!r:.60}, expected a dict")
    return value


def _count(plain: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = plain.get(name, default)
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise CheckpointDamaged(f"it is no MiniMind resume file: {name!r} is {value!r:.60}, expected a count")
    return value


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
