"""Another system's checkpoint -> an iteration of ours in a new root, to be named as load_path of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from elastic.checkpoint.commit import Saving, finish
from elastic.checkpoint.image import heap_image
from elastic.checkpoint.inspection import locate
from elastic.checkpoint.layout import CommitRecord, CommonInfo
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.mindspore import convert_iteration
from elastic.checkpoint.minimind import Given, Position, convert, weights_of
from elastic.checkpoint.seams import AloneGroup, CommitVerdict
from elastic.checkpoint.shards import own_shards
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.unpickling import read_torch_file
from elastic.errors import CheckpointError, UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What was written, what was assumed and what was lost on the way."""

    root: str
    iteration: int
    consumed_samples: int
    notes: tuple[str, ...]
    next_step: str


class _NewRoot:
    """The committer of a root that nobody else knows of yet."""

    def record(self) -> CommitRecord | None:
        return None

    def commit(self, record: CommitRecord) -> CommitVerdict:
        return CommitVerdict(granted=True, reason="a new root")

    def fence(self) -> str | None:
        return None


def import_minimind(
    path: str, root: str, given: Given, *, dtype: str, accept_infinite: bool, storage: Storage, nonce: Callable[[], str]
) -> Imported:
    """Import a MiniMind resume file with its optimizer and position.

    Raises:
        UsageError: the root is not empty, or the file and what was given do not agree.
        CheckpointDamaged, CheckpointError: it cannot be read, or not be written.
    """
    _refuse_used(root, storage)
    converted = convert(read_torch_file(path), given, dtype=DTYPES[dtype], accept_infinite=accept_infinite)
    position = converted.position
    _write(converted.captured, position, root, world_size=converted.world_size, storage=storage, nonce=nonce)
    tracked = ", ".join(converted.captured.values["objects"])
    return Imported(
        root=root,
        iteration=position.iteration,
        consumed_samples=position.consumed_samples,
        notes=converted.notes,
        next_step=f"checkpoint.load_path={root} in a job that tracks {tracked}",
    )


def import_seed(path: str, root: str, *, dtype: str, storage: Storage, nonce: Callable[[], str]) -> Imported:
    """Import an iteration of MindSpore Transformers with its moments and position.

    Raises:
        UsageError, CheckpointDamaged, CheckpointError: as `import_minimind`.
    """
    _refuse_used(root, storage)
    directory = locate(path, storage=storage)
    captured, position, notes = convert_iteration(directory, dtype=DTYPES[dtype], storage=storage)
    _write(captured, position, root, world_size=1, storage=storage, nonce=nonce)
    return Imported(
        root=root,
        iteration=position.iteration,
        consumed_samples=position.consumed_samples,
        notes=notes,
        next_step=f"checkpoint.load_path={root} in a job that tracks model, optimizer",
    )


def import_weights(
    path: str, root: str, *, dtype: str, accept_infinite: bool, storage: Storage, nonce: Callable[[], str]
) -> Imported:
    """Import the weights of a torch file alone.

    Raises:
        UsageError, CheckpointDamaged, CheckpointError: as `import_minimind`.
    """
    _refuse_used(root, storage)
    plain = read_torch_file(path)
    captured, notes = weights_of(plain, dtype=DTYPES[dtype], accept_infinite=accept_infinite)
    start = Position(iteration=0, consumed_samples=0, epoch=0, global_batch_size=0, notes=())
    _write(captured, start, root, world_size=1, storage=storage, nonce=nonce)
    return Imported(
        root=root,
        iteration=0,
        consumed_samples=0,
        notes=tuple(notes),
        next_step=f"checkpoint.load_path={root} with checkpoint.no_load_optim=True",
    )


def _refuse_used(root: str, storage: Storage) -> None:
    if storage.names(root):
        raise UsageError(f"{root} is not empty: name a new directory to import into")


def _write(
    captured: Captured, position: Position, root: str, *, world_size: int, storage: Storage, nonce: Callable[[], str]
) -> None:
    draft = Manifest(
        job_id="imported",
        lineage=nonce(),
        generation=0,
        iteration=position.iteration,
        consumed_samples=position.consumed_samples,
        world_size=world_size,
        global_batch_size=position.global_batch_size,
        seed=0,
        order_version=0,
        run_digest=0,
        settings={},
        values=captured.values,
        has_optimizer=bool(captured.values["objects"]),
        torch_version=str(torch.__version__),
        ancestors=(),
        files={},
    )
    common = CommonInfo(
        epoch_num=position.epoch,
        step_num=0,
        global_step=position.consumed_samples // max(1, position.global_batch_size),
        loss_scale=None,
        global_batch_size=position.global_batch_size,
        consumed_samples=position.consumed_samples,
        ckpt_status=None,
    )
    storage.make_dir(os.path.abspath(root))
    shards = own_shards(model=captured.model, opt=captured.opt, own={}, rank=0, world_size=1, prefix="checkpoint")
    saving = Saving(
        draft,
        common,
        lambda: [heap_image(shard) for shard in shards],
        root=root,
        storage=storage,
        group=AloneGroup(),
        committer=_NewRoot(),
        nonce=nonce,
    )
    outcome = finish(saving)
    if not outcome.committed:
        raise CheckpointError(f"{root} could not be written: {outcome.reason}")
