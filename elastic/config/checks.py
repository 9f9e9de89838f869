"""Checks over several settings at once: combinations that are each legal and together a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elastic.config.choices import Numerics
from elastic.config.model import Settings, TrainingSettings
from elastic.errors import Problem
from elastic.plan.batch_mode import BatchMode

TRACKERS = ("none", "tensorboard", "wandb", "mlflow")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Settings that do not go together. The first key is the one that a user would most likely change."""

    keys: tuple[str, ...]
    what: str


def conflicts(settings: Settings) -> Iterator[Conflict]:
    """Every conflict in these settings."""
    yield from _training(settings)
    yield from _checkpoint(settings)
    yield from _rendezvous(settings)
    tracker = settings.tracking.to
    if tracker not in TRACKERS and not _TARGET.fullmatch(tracker):
        known = ", ".join(TRACKERS)
        yield Conflict(keys=("tracking.to",), what=f"tracking.to needs {known} or module:name, found {tracker!r}")
    target = settings.job.target
    if target and not _TARGET.fullmatch(target):
        yield Conflict(keys=("job.target",), what=f"job.target needs module:name, found {target!r}")


def _training(settings: Settings) -> Iterator[Conflict]:
    training, model = settings.training, settings.model
    if training.micro_batch_size > training.global_batch_size:
        yield Conflict(
            keys=("training.micro_batch_size", "training.global_batch_size"),
            what=f"training.micro_batch_size {training.micro_batch_size} is larger than"
            f" training.global_batch_size {training.global_batch_size}; make it smaller",
        )
    if training.batch is BatchMode.PER_RANK:
        yield from _per_rank(training)
    if model.width % model.heads:
        yield Conflict(
            keys=("model.width", "model.heads"),
            what=f"model.width {model.width} is not a multiple of model.heads {model.heads}",
        )


def _per_rank(training: TrainingSettings) -> Iterator[Conflict]:
    size = training.rank_batch_size or training.global_batch_size
    if size % training.micro_batch_size:
        yield Conflict(
            keys=("training.rank_batch_size", "training.micro_batch_size", "training.global_batch_size"),
            what=f"training.rank_batch_size {size} is not a multiple of training.micro_batch_size"
            f" {training.micro_batch_size}",
        )
    if training.numerics is Numerics.EXACT:
        yield Conflict(
            keys=("training.numerics", "training.batch"),
            what="training.numerics is exact, but with training.batch per_rank the batch itself depends on the world"
            " size; choose one of them",
        )


def _checkpoint(settings: Settings) -> Iterator[Conflict]:
    checkpoint = settings.checkpoint
    if checkpoint.enable_save and not checkpoint.save_path.strip():
        yield Conflict(
            keys=("checkpoint.save_path", "checkpoint.enable_save"),
            what="checkpoint.save_path is empty while checkpoint.enable_save is true; give a directory",
        )
    if checkpoint.load_path and checkpoint.checkpoint_path:
        yield Conflict(
            keys=("checkpoint.checkpoint_path", "checkpoint.load_path"),
            what="checkpoint.checkpoint_path names one iteration and checkpoint.load_path a root; give one of them",
        )
    if checkpoint.enable_save and checkpoint.no_save_optim and not checkpoint.no_load_optim:
        yield Conflict(
            keys=("checkpoint.no_save_optim", "checkpoint.no_load_optim"),
            what="checkpoint.no_save_optim is true, but a restart needs the optimizer"
            " (checkpoint.no_load_optim is false); set both to true to accept restarts from weights only",
        )


def _rendezvous(settings: Settings) -> Iterator[Conflict]:
    rendezvous = settings.rendezvous
    for name in ("first_wait_s", "late_wait_s"):
        wait_s = getattr(rendezvous, name)
        if wait_s >= rendezvous.join_timeout_s:
            yield Conflict(
                keys=(f"rendezvous.{name}", "rendezvous.join_timeout_s"),
                what=f"rendezvous.{name} {wait_s} is not below rendezvous.join_timeout_s {rendezvous.join_timeout_s}",
            )


def conflict_problems(settings: Settings, origins: Mapping[str, str], wrong: frozenset[str]) -> Iterator[Problem]:
    """Conflicts as problems, placed at the first of their keys that the user set.

    Args:
        wrong: keys with a problem of their own. A conflict with the default that stands in for one is no finding.
    """
    for conflict in conflicts(settings):
        if wrong.isdisjoint(conflict.keys):
            places = [origins[key] for key in conflict.keys if origins[key] != "default"]
            yield Problem(places[0] if places else "default", conflict.what)
