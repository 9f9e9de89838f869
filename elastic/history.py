"""History: what a run left behind, read back: its events, the settings of its newest checkpoint, its order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES
from elastic.checkpoint.locating import local_dir, storage_for
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.survey import read_small, survey
from elastic.config.load import from_plain
from elastic.config.model import Settings
from elastic.config.schema import SECTIONS
from elastic.data.audit import Account, SavedState, account
from elastic.errors import UsageError
from elastic.events import OrderChosen, Record, read_records
from elastic.job import load_job
from elastic.plan.batch import BatchPlan
from elastic.plan.data_order import DataOrder
from elastic.plan.order import ORDER_VERSION, Order, OrderKind
from elastic.session.source import order_of


def newest_manifest(save_path: str | Path) -> Manifest:
    """The manifest of the newest whole iteration.

    Raises:
        UsageError: there is none.
    """
    return manifest_of(save_path, iteration=None)


def manifest_of(save_path: str | Path, *, iteration: int | None) -> Manifest:
    """The manifest of an iteration, of the newest whole one by default.

    Raises:
        UsageError: it is not there, or not whole.
    """
    root = str(save_path)
    storage = storage_for(root)
    found = survey(root, storage=storage).in_place
    whole = [each for each in found if each.problem is None and each.lineage is not None]
    if not whole:
        raise UsageError(f"{save_path} holds no whole iteration of a run of ours; name a checkpoint.save_path")
    chosen = [each for each in whole if iteration in (None, each.iteration)]
    if not chosen:
        there = ", ".join(str(number) for number in sorted(each.iteration for each in whole))
        raise UsageError(f"{save_path} holds no whole iteration {iteration}; there are {there}")
    place = os.path.join(root, max(chosen, key=lambda each: each.iteration).place, MANIFEST)
    try:
        return Manifest.from_bytes(read_small(place, storage=storage, limit_bytes=MAX_JSON_BYTES))
    except ValueError as error:  # Whole a moment ago.
        raise UsageError(f"{place} was changed or taken away while it was read ({error}); try again") from error


def told_order(records: Sequence[Record]) -> DataOrder | None:
    """The order that the run itself told last, which says of every earlier sample too what it was; None: not told.

    Raises:
        UsageError: it was computed in a way that this version does not know, or it is none.
    """
    told = [record.event for record in records if isinstance(record.event, OrderChosen)]
    if not told:
        return None
    last = told[-1]
    if last.order_version != ORDER_VERSION:
        raise UsageError(
            f"this run's order is of version {last.order_version}, and {ORDER_VERSION} is computed here; "
            "take the version of elastic that the run used"
        )
    try:
        if last.segments:
            return DataOrder.from_plain(json.loads(last.segments))
        return DataOrder.of(Order(length=last.length, seed=last.seed, kind=OrderKind(last.order)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"what this run tells of its order is none: {error!r}; its event files were changed"
        ) from error


def run_order(settings: Settings) -> DataOrder:
    """The order in which a run with these settings uses its data. Builds the data set to learn its length."""
    training = settings.training
    plan = BatchPlan(
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.micro_batch_size,
        total_samples=training.steps * training.global_batch_size,
    )
    return DataOrder.of(order_of(load_job(settings.job.target, settings).dataset(), settings, plan))


def audit_run(save_path: str | Path, *, on_unreadable: Callable[[str], None] | None = None) -> Account:
    """The sample account of a run, with every step's digest computed anew.

    Events are read on this machine also where the run saves into an object store. What of them is no record is passed
    over and told to `on_unreadable`: the steps that it may have told of are then missing in the account.

    Raises:
        UsageError: no events, or nothing that tells the run's order.
        ValueError: what is no record, without `on_unreadable`.
    """
    events = Path(local_dir(str(save_path))) / "events"
    records = read_records(events, on_unreadable=on_unreadable)
    if not records:
        raise UsageError(f"{events} holds no events; name the checkpoint.save_path of a run")
    manifest = _last_saved(save_path)
    order = told_order(records)
    if order is None:
        order = run_order(settings_of(manifest or newest_manifest(save_path)))
    saved = None
    if manifest is not None:
        saved = SavedState(
            iteration=manifest.iteration,
            consumed_samples=manifest.consumed_samples,
            run_digest=manifest.run_digest,
        )
    return account(records, order=order, saved=saved)


def _last_saved(save_path: str | Path) -> Manifest | None:
    try:
        return newest_manifest(save_path)
    except UsageError:
        return None  # a run that saves nothing has an account all the same


def settings_of(manifest: Manifest) -> Settings:
    """Those of the run; a checkpoint notes other things beside them."""
    return from_plain({name: part for name, part in manifest.settings.items() if name in SECTIONS})
