"""The door to checkpoints: restore at a start, save when due. Every rank calls every method, in the same order."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from elastic import events
from elastic.checkpoint.commit import Outcome, save_iteration
from elastic.checkpoint.keeping import retain, set_aside
from elastic.checkpoint.layout import CommonInfo, Health
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.policy import SaveVerdict, Signs, judge_health, save_due
from elastic.checkpoint.reader import Reader, Restored
from elastic.checkpoint.restoring import newer_than
from elastic.checkpoint.rng import capture_rng
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.seams import Committer, Group, Settings
from elastic.checkpoint.shards import Shard, own_shards
from elastic.checkpoint.state import Captured, capture
from elastic.checkpoint.storage import PosixStorage, Storage
from elastic.checkpoint.survey import survey
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import Fenced, StoreError, UsageError

_ANCESTORS = 64
"""How many committed iterations before it a manifest names, at least."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SaveMeta:
    """What a save says of the run beside its state."""

    iteration: int
    """Optimizer steps really taken."""
    consumed_samples: int
    global_batch_size: int
    generation: int
    run_digest: int
    seed: int
    order_version: int
    settings: Mapping[str, Any]
    """The resolved configuration, JSON types."""
    global_step: int
    """The seed's view of progress: samples over the global batch size."""
    epoch_num: int = 0
    step_num: int = 0
    loss_scale: float | None = None
    """None: that of a tracked grad scaler, where there is one."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data's order, fingerprint and slots, JSON types; for who goes on."""
    signs: Signs = field(default_factory=Signs)
    """What is known of the run's health."""


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """How a save ended, the same on every rank."""

    saved: bool
    iteration: int
    total_bytes: int
    seconds: float
    reason: str


class CheckpointManager:
    """Restores and saves the tracked objects of one worker in one generation. Not for several threads."""

    def __init__(
        self, settings: Settings, *, identity: RootIdentity | None, group: Group, committer: Committer,
        emit: events.Emit, storage: Storage | None = None, clock: Clock = SYSTEM_CLOCK, prefix: str = "checkpoint",
        nonce: Callable[[], str] = lambda: secrets.token_hex(6), generation: int | None = None,
    ) -> None:  # fmt: skip
        """`identity`: what `claim` gave for save_path; None where nothing is saved. `committer`: asked by rank 0.

        `generation`: that of this start; with it, a restore adopts what an earlier generation left complete.

        Raises:
            UsageError: settings that contradict one another or are not there yet.
        """
        _check(settings, identity)
        self._settings = settings
        self._identity = identity
        self._group = group
        self._committer = committer
        self._emit = emit
        self._storage: Storage = storage or PosixStorage()
        self._clock = clock
        self._prefix = prefix
        self._nonce = nonce
        self._generation = generation
        self._committed: int | None = None
        self._failed_at: int | None = None
        self._failures = 0
        self._ancestors: tuple[str, ...] = ()
        self._saved_at_s: float | None = None

    def restore(self, tracked: Mapping[str, Any]) -> Restored:
        """Put the state to start from into the tracked objects, or leave them where the run begins.

        Raises:
            NothingToRestore: state should be there and is not.
            CheckpointError: the state does not fit the tracked objects, or these cannot be saved later.
        """
        begun_s = self._clock.monotonic_s()
        # What cannot be saved must come to light before the first step, not at the first save.
        if self._settings.enable_save:
            capture(tracked, weights_only=self._settings.no_save_optim)
        reader = Reader(
            self._settings,
            self._identity,
            group=self._group,
            storage=self._storage,
            emit=self._tell,
            committer=self._committer,
            nonce=self._nonce,
            clock=self._clock,
            generation=self._generation,
        )
        restored = reader.restore(tracked)
        if restored.own:
            self._committed, self._ancestors = restored.iteration, reader.ancestors
            self._set_aside_newer(restored.iteration)
        self._emit(
            events.Restored(
                tier=restored.tier,
                iteration=restored.iteration,
                consumed_samples=restored.consumed_samples,
                seconds=self._clock.monotonic_s() - begun_s,
                reason=restored.reason,
            )
        )
        return restored

    def due(self, iteration: int, *, counted: range | None = None) -> bool:
        """Whether the step just taken is to be followed by a save. `counted`: see `save_due`."""
        return self.verdict(iteration, counted=counted).due

    def verdict(self, iteration: int, *, counted: range | None = None) -> SaveVerdict:
        """The same with the reason."""
        return save_due(
            iteration,
            enable_save=self._settings.enable_save,
            every_steps=self._settings.save_interleaved_steps,
            last_saved=self._committed,
            failed_at=self._failed_at,
            failures=self._failures,
            counted=counted,
        )

    def save(self, tracked: Mapping[str, Any], meta: SaveMeta) -> SaveResult:
        """Save and commit. A failure is an event and the last good iteration stays; training goes on.

        Raises:
            Fenced: a newer generation exists.
            PeerLost: from the group.
        """
        if not self._settings.enable_save or self._identity is None:
            return SaveResult(saved=False, iteration=meta.iteration, total_bytes=0, seconds=0.0, reason="saving is off")
        if meta.iteration == self._committed:
            reason = "this iteration is the committed one already"
            return SaveResult(saved=True, iteration=meta.iteration, total_bytes=0, seconds=0.0, reason=reason)
        begun_s = self._clock.monotonic_s()
        outcome = self._write(tracked, meta, self._identity)
        seconds = self._clock.monotonic_s() - begun_s
        if outcome.stale:
            self._tell(events.Fencing(what="checkpoint", reason=outcome.reason))
            raise Fenced(f"iteration {meta.iteration} was not committed: {outcome.reason}")
        if outcome.fenced:
            self._tell(events.Fencing(what="checkpoint", reason=f"the tracker was left alone: {outcome.fenced}"))
        if outcome.committed:
            self._failed_at, self._failures = None, 0
            self._after_commit(meta, outcome, seconds)
        else:
            self._failed_at, self._failures = meta.iteration, self._failures + 1
            self._tell(events.CheckpointFailed(iteration=meta.iteration, reason=outcome.reason))
        return SaveResult(
            saved=outcome.committed,
            iteration=meta.iteration,
            total_bytes=outcome.total_bytes,
            seconds=seconds,
            reason=outcome.reason,
        )

    def _write(self, tracked: Mapping[str, Any], meta: SaveMeta, identity: RootIdentity) -> Outcome:
        weights_only = self._settings.no_save_optim
        try:
            captured, fault = capture(tracked, weights_only=weights_only), None
        except Exception as error:  # noqa: BLE001 - because peers wait for the vote; state_dict is the user's
            captured, fault = Captured(model={}, opt={}, values={}), error

        def shards() -> list[Shard]:
            if fault is not None:
                raise fault
            own: dict[str, Tensor] = {} if weights_only else capture_rng(self._group.rank)
            return own_shards(
                model=captured.model,
                opt=captured.opt,
                own=own,
                rank=self._group.rank,
                world_size=self._group.size,
                prefix=self._prefix,
            )

        health = judge_health(meta.signs)
        if health.status is Health.ABNORMAL:
            self._tell(events.Notice(text=f"iteration {meta.iteration} is saved as unhealthy: {health.reason}"))
        return save_iteration(
            self._draft(meta, identity, captured, health.status),
            _common(meta, tracked, health.status),
            shards,
            root=self._settings.save_path,
            storage=self._storage,
            group=self._group,
            committer=self._committer,
            nonce=self._nonce,
            clock=self._clock,
        )

    def _draft(self, meta: SaveMeta, identity: RootIdentity, captured: Captured, health: Health | None) -> Manifest:
        return Manifest(
            job_id=identity.job_id,
            lineage=identity.lineage,
            generation=meta.generation,
            iteration=meta.iteration,
            consumed_samples=meta.consumed_samples,
            world_size=self._group.size,
            global_batch_size=meta.global_batch_size,
            seed=meta.seed,
            order_version=meta.order_version,
            run_digest=meta.run_digest,
            settings=meta.settings,
            data=meta.data,
            values=captured.values,
            has_optimizer=not self._settings.no_save_optim,
            torch_version=str(torch.__version__),
            ancestors=self._ancestors[-max(_ANCESTORS, self._settings.save_max) :],
            files={},
            ckpt_status=health,
        )

    def _after_commit(self, meta: SaveMeta, outcome: Outcome, seconds: float) -> None:
        now_s = self._clock.monotonic_s()
        interval_s = None if self._saved_at_s is None else now_s - self._saved_at_s
        self._saved_at_s, self._committed = now_s, meta.iteration
        self._ancestors += (outcome.manifest_digest,)
        self._tell(
            events.CheckpointSaved(
                iteration=meta.iteration,
                consumed_samples=meta.consumed_samples,
                bytes=outcome.total_bytes,
                seconds=seconds,
                interval_s=interval_s,
            )
        )
        if self._group.rank == 0:
            self._retain(meta.iteration, outcome.manifest_digest)

    def _retain(self, committed: int, manifest_digest: str) -> None:
        assert self._identity is not None
        try:
            kept = retain(
                self._settings.save_path,
                committed=committed,
                manifest_digest=manifest_digest,
                lineage=self._identity.lineage,
                save_max=self._settings.save_max,
                keep_every_steps=self._settings.keep_every_steps,
                storage=self._storage,
                record=self._committer.record,
                nonce=self._nonce,
            )
            if kept.fault:
                self._emit(events.Notice(text=kept.reason))
            _log.debug("deleted %s: %s", kept.deleted, kept.reason)
        except (OSError, StoreError) as error:
            self._emit(events.Notice(text=f"old iterations could not be deleted: {error}"))

    def _set_aside_newer(self, iteration: int) -> None:
        """What is newer than the restored state led nowhere. It must not be found by a later fallback."""
        if self._group.rank != 0 or self._identity is None or not self._settings.enable_save:
            return
        root = self._settings.save_path
        try:
            found = newer_than(survey(root, storage=self._storage), iteration=iteration, lineage=self._identity.lineage)
            for name in set_aside(root, found, storage=self._storage, nonce=self._nonce):
                self._emit(events.Notice(text=f"set aside as {name}: newer than iteration {iteration}, not committed"))
        except OSError as error:
            self._emit(events.Notice(text=f"iterations newer than {iteration} could not be set aside: {error}"))

    def _tell(self, event: events.Event) -> None:
        """What all ranks know is told once."""
        if self._group.rank == 0:
            self._emit(event)


def _common(meta: SaveMeta, tracked: Mapping[str, Any], health: Health | None) -> CommonInfo:
    scales = (each.get_scale() for each in tracked.values() if callable(getattr(each, "get_scale", None)))
    return CommonInfo(
        epoch_num=meta.epoch_num,
        step_num=meta.step_num,
        global_step=meta.global_step,
        loss_scale=meta.loss_scale if meta.loss_scale is not None else next(scales, None),
        global_batch_size=meta.global_batch_size,
        consumed_samples=meta.consumed_samples,
        ckpt_status=health,
    )


def _check(settings: Settings, identity: RootIdentity | None) -> None:
    if settings.save_max < 1:
        raise UsageError(f"checkpoint.save_max is {settings.save_max}: keep at least 1 iteration")
    if settings.save_interleaved_steps < 1:
        raise UsageError(
            f"checkpoint.save_interleaved_steps is {settings.save_interleaved_steps}: it must be 1 or more"
        )
    if settings.enable_save and identity is None:
        raise UsageError("saving is on (checkpoint.enable_save), but checkpoint.save_path was not claimed for this run")
