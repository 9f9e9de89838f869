"""An iteration of MindSpore Transformers, moments and position too -> a state of ours, with what had to be assumed.

Its opt files hold `exp_avg.<parameter>`, `exp_avg_sq.<parameter>`, float32 masters `main_param.<parameter>` and
`global_step`. Parameter groups and their settings it does not keep: those of the job's own optimizer stay.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from elastic.checkpoint.foreign import read_seed_kind
from elastic.checkpoint.layout import COMMON, MANIFEST, MAX_SMALL_BYTES, CommonInfo, ShardKind
from elastic.checkpoint.minimind import Position
from elastic.checkpoint.shards import describe
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import read_small
from elastic.checkpoint.values import encode
from elastic.errors import CheckpointDamaged, UsageError

_MOMENTS = ("exp_avg", "exp_avg_sq")
_MASTER = "main_param."
_STEP = "global_step"


def convert_iteration(
    directory: str, *, dtype: torch.dtype, storage: Storage
) -> tuple[Captured, Position, tuple[str, ...]]:
    """The state of an AdamW, where the run stood, and notes. The tracked objects: model and optimizer.

    Raises:
        UsageError: we wrote it, or it holds no optimizer.
        CheckpointDamaged: a file or a piece is missing or not what its texts say.
    """
    if storage.size_bytes(os.path.join(directory, MANIFEST)) is not None:
        raise UsageError(f"{directory} is one of ours: name it as checkpoint.load_path, there is nothing to import")
    try:
        common = CommonInfo.from_bytes(
            read_small(os.path.join(directory, COMMON), storage=storage, limit_bytes=MAX_SMALL_BYTES)
        )
        model = read_seed_kind(directory, ShardKind.MODEL, storage=storage)
        saved = read_seed_kind(directory, ShardKind.OPT, storage=storage)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"{directory}: {error}") from error
    if not saved:
        raise UsageError(f"{directory} holds no optimizer: load its weights with no_load_optim: True instead")
    step = int(saved.pop(_STEP).reshape(()).item()) if _STEP in saved else common.global_step
    masters = {name.removeprefix(_MASTER): saved.pop(name) for name in [*saved] if name.startswith(_MASTER)}
    state, opt, left = _moments(saved, step)
    weights = {name: masters.get(name, each) for name, each in model.items()}
    weights = {name: each.to(dtype) if each.is_floating_point() else each for name, each in weights.items()}
    objects = {
        "model": {"kind": "module", "others": {}},
        "optimizer": {"kind": "optimizer", "groups": None, "state": state},
    }
    captured = Captured(model=weights, opt=opt, values={"objects": objects, "ties": {}, "tensors": describe(weights)})
    position = _position(common)
    notes = (
        *position.notes,
        f"AdamW goes on from its own step {step}; learning rate and other settings are those of the job's optimizer",
        f"{len(masters)} weights were taken from their float32 masters",
        f"left out: {', '.join(sorted(left)) or 'nothing'}; random states are not kept there",
        "samples go on in our order, not theirs: within the epoch under way some come twice and others not",
    )
    return captured, position, notes


def _moments(saved: dict[str, Tensor], step: int) -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    """State by parameter, its tensors, and names of what is no moment."""
    opt: dict[str, Tensor] = {}
    entries: dict[str, dict[str, Tensor]] = {}
    left = []
    for name, value in saved.items():
        kind, _, parameter = name.partition(".")
        if kind in _MOMENTS and parameter:
            entries.setdefault(parameter, {})[kind] = value
        else:
            left.append(name)

    def keep(name: str, tensor: Tensor) -> str:
        opt[name] = tensor
        return name

    state: dict[str, Any] = {}
    for parameter, found in entries.items():
        if lacking := [kind for kind in _MOMENTS if kind not in found]:
            raise CheckpointDamaged(f"{parameter} has no {lacking[0]}")
        whole = {"step": torch.tensor(float(step)), **found}
        state[parameter] = [[key, encode(each, path=f"{key}.{parameter}", sink=keep)] for key, each in whole.items()]
    return state, opt, left


def _position(common: CommonInfo) -> Position:
    consumed = common.consumed_samples or common.global_step * common.global_batch_size
    told = "as it says" if common.consumed_samples else f"{common.global_step} steps of {common.global_batch_size}"
    return Position(
        iteration=common.global_step,
        consumed_samples=consumed,
        epoch=common.epoch_num,
        global_batch_size=common.global_batch_size,
        notes=(f"iteration {common.global_step}, {consumed} consumed samples ({told})",),
    )
