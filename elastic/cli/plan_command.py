"""`elastic plan`: where a saved run would go on at another world and batch size, and what other rules would do."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from elastic.cli.console import columns, say
from elastic.errors import ExitCode, UsageError
from elastic.plan.outlook import Outlook, Row, Stand, outlook

if TYPE_CHECKING:
    from elastic.checkpoint.manifest import Manifest


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("plan", allow_abbrev=False, help="where a saved run would go on at another size")
    parser.add_argument("save_path", help="the run's checkpoint.save_path")
    parser.add_argument("--from", dest="iteration", type=int, default=None, help="iteration; the newest by default")
    parser.add_argument("--nodes", type=int, default=None, help="nodes to go on with; as saved by default")
    parser.add_argument("--nproc", type=int, default=1, help="workers of each node")
    parser.add_argument("--gbs", type=int, default=None, help="global batch size; as saved by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print what every rule would do."""
    from elastic.history import manifest_of

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    stand = _stand(manifest_of(args.save_path, iteration=args.iteration))
    world_size = stand.world_size if args.nodes is None else args.nodes * args.nproc
    batch = stand.global_batch_size if args.gbs is None else args.gbs
    if min(world_size, batch, args.nproc, 1 if args.nodes is None else args.nodes) < 1:
        raise UsageError(f"a world of {world_size} with a global batch of {batch} cannot be: both start at 1")
    found = outlook(stand, world_size=world_size, global_batch_size=batch)
    if args.json:
        plain = {"stand": dataclasses.asdict(stand), **dataclasses.asdict(found), "idle_share": found.idle_share}
        say(json.dumps(plain))
    else:
        _tell(stand, found, world_size=world_size, batch=batch)
    return ExitCode.DONE


def _stand(manifest: Manifest) -> Stand:
    from elastic.history import settings_of
    from elastic.plan.data_order import DataOrder

    position = manifest.consumed_samples
    if "order" in manifest.data:
        position = DataOrder.from_plain(manifest.data["order"]).epoch_of(manifest.consumed_samples)[1]
    return Stand(
        iteration=manifest.iteration,
        consumed_samples=manifest.consumed_samples,
        epoch_position=position,
        world_size=manifest.world_size,
        global_batch_size=manifest.global_batch_size,
        micro_batch_size=settings_of(manifest).training.micro_batch_size,
    )


def _tell(stand: Stand, found: Outlook, *, world_size: int, batch: int) -> None:
    say(
        f"iteration {stand.iteration}: {stand.consumed_samples} samples used, saved at world size {stand.world_size} "
        f"with a global batch of {stand.global_batch_size}; going on at world size {world_size} with {batch}:"
    )
    say(columns((row.rule, f"{row.goes_on_at}: {_verdict(row)}") for row in found.rows))
    slots = ", ".join(str(count) for count in found.slots_by_rank)
    say(f"micro-batches of each rank in a step: {slots} ({found.idle_share:.0%} of the ranks' time is waiting)")


def _verdict(row: Row) -> str:
    if row.exact:
        verdict = "exact"
    elif row.repeated_samples:
        verdict = f"repeats {row.repeated_samples} samples"
    else:
        verdict = f"skips {row.skipped_samples} samples"
    return f"{verdict}; {row.note}" if row.note else verdict
