"""`elastic ckpt`: look at checkpoints, verify, compare, prune, import and export them. Mostly without torch."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.cli.console import columns, say
from elastic.errors import CheckpointError, ExitCode, UsageError


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    actions = commands.add_parser("ckpt", help="look at, verify and convert checkpoints").add_subparsers(
        metavar="ACTION", required=True
    )

    def action(name: str, run: Any, text: str, *paths: tuple[str, str]) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(name, allow_abbrev=False, help=text)
        for path, told in paths:
            parser.add_argument(path, help=told)
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.set_defaults(run=run)
        return parser

    either = "an iteration_* directory, or a save_path (then: the iteration that a restart would take)"
    root = ("root", "a checkpoint.save_path")
    action("ls", ls, "the iterations of a save_path", root)
    action("show", show, "what an iteration says of itself, and its tensors", ("path", either))
    action(
        "verify", verify, "read every byte; exit code 1 names damaged files", ("path", "an iteration or a save_path")
    )
    differ = action("diff", diff, "what differs; exit code 1 if anything", ("one", either), ("other", either))
    differ.add_argument("--contents", action="store_true", help="compare the bytes of all tensors, too")
    pruned = action("prune", prune, "delete old iterations, never what may be committed or the last good one", root)
    pruned.add_argument("--keep", type=_positive, required=True, metavar="N", help="how many iterations stay")
    pruned.add_argument("--yes", action="store_true", help="delete; without it, only tell")
    advised = action("advise", advise, "how often to save, from what a run's saves and failures cost", root)
    advised.add_argument(
        "--mean-hours", type=_above_zero, metavar="H", help="mean time between failures, if you know it"
    )
    brought = action(
        "import", bring, "a MiniMind or MindSpore Transformers checkpoint", ("file", "*_resume.pth, or a directory")
    )
    brought.add_argument("root", help="a new directory, to be a load_path")
    for name, told in (
        ("--batch-size", "samples of a micro-batch of one rank (--batch_size of the run)"),
        ("--accumulation-steps", "micro-batches of a step (--accumulation_steps of the run)"),
        ("--dataset-length", "samples of the data set"),
    ):
        brought.add_argument(name, type=_positive, metavar="N", help=f"{told}: the file does not say")
    brought.add_argument("--weights-only", action="store_true", help="no optimizer, no position")
    brought.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of the weights"
    )
    brought.add_argument("--accept-infinite", action="store_true", help="although float16 lost values")
    sent = action("export", send, "weights as Hugging Face safetensors", ("path", either), ("directory", "a new one"))
    sent.add_argument("--most-bytes", type=_positive, default=5 * 10**9, metavar="N", help="of one file (5 GB)")


def ls(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the iterations of a root."""
    from elastic.checkpoint.inspection import list_root

    rows = list_root(args.root, storage=_storage(rest, args.root))
    if args.json:
        return _as_json({"root": args.root, "iterations": [dataclasses.asdict(row) for row in rows]})
    table = [
        (
            row.place,
            row.state,
            str(row.consumed_samples),
            str(row.generation),
            _size(row.total_bytes),
            row.problem or "",
        )
        for row in rows
    ]
    say(columns([("PLACE", "STATE", "SAMPLES", "GENERATION", "SIZE", "PROBLEM"), *table]))
    return ExitCode.DONE


def show(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print what an iteration says of itself."""
    from elastic.checkpoint.inspection import locate
    from elastic.checkpoint.inspection import show as look

    storage = _storage(rest, args.path)
    found = look(locate(args.path, storage=storage), storage=storage)
    if args.json:
        return _as_json(dataclasses.asdict(found))
    say(columns([("directory", found.directory), *((name, str(value)) for name, value in found.facts.items())]))
    say(columns((f"object {name}", kind) for name, kind in found.objects.items()))
    say(columns((each.name, each.dtype, str(list(each.shape)), each.file_name) for each in found.tensors))
    for name, known in found.ties.items():
        say(f"{name} = {known}")
    return ExitCode.DONE


def verify(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print every damaged file; exit code 1 where there is one."""
    from elastic.checkpoint.inspection import verify as read_all

    verdicts = read_all(args.path, storage=_storage(rest, args.path))
    damaged = [each for each in verdicts if each.problem is not None]
    code = ExitCode.FAILED if damaged else ExitCode.DONE
    if args.json:
        return _as_json({"path": args.path, "files": [dataclasses.asdict(each) for each in verdicts]}, code)
    for each in damaged:
        say(f"{each.place}/{each.name}: {each.problem}")
    say(f"{len(verdicts)} files read, {len(damaged)} damaged")
    return code


def diff(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print what differs between two iterations; exit code 1 where anything does."""
    from elastic.checkpoint.comparing import compare
    from elastic.checkpoint.inspection import locate

    storage = _storage(rest, args.one, args.other)
    one, other = (locate(path, storage=storage) for path in (args.one, args.other))
    changes = compare(one, other, contents=args.contents, storage=storage)
    code = ExitCode.FAILED if changes else ExitCode.DONE
    if args.json:
        return _as_json({"one": one, "other": other, "changes": [dataclasses.asdict(each) for each in changes]}, code)
    say(columns((each.what, _cell(each.one), _cell(each.other)) for each in changes) if changes else "no difference")
    return code


def prune(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print what may go, and with --yes delete it."""
    from elastic.checkpoint.pruning import plan_pruning
    from elastic.checkpoint.pruning import prune as delete

    storage = _storage(rest, args.root)
    plan = plan_pruning(args.root, keep=args.keep, storage=storage)
    if args.yes:
        try:
            delete(args.root, plan, storage=storage, nonce=_nonce)
        except OSError as error:
            raise CheckpointError(f"{args.root}: could not be deleted: {error}") from error
    if args.json:
        return _as_json(dataclasses.asdict(plan) | {"deleted": args.yes})
    for place in plan.delete:
        say(f"{'deleted' if args.yes else 'would delete'} {place}")
    say(f"{', '.join(plan.keep)} stay: {plan.reason}")
    if plan.delete and not args.yes:
        say("nothing was deleted; add --yes to do it")
    return ExitCode.DONE


def advise(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the interval of saves that loses least."""
    from elastic.checkpoint.interval import advise as reckon
    from elastic.checkpoint.interval import measure, recent_records, usual_distance
    from elastic.checkpoint.locating import local_dir

    _storage(rest, args.root)
    events = Path(local_dir(args.root)) / "events"
    records = recent_records(events)
    if not records:
        raise UsageError(f"{events} holds no events; name the checkpoint.save_path of a run")
    mean_time_s = None if args.mean_hours is None else args.mean_hours * 3600
    costs, so_far = measure(records), usual_distance(records)
    advice = reckon(costs, every_steps=so_far, mean_time_s=mean_time_s)
    if args.json:
        return _as_json({**dataclasses.asdict(advice), "so_far_steps": so_far, "costs": dataclasses.asdict(costs)})
    if advice.every_steps is None:
        say(f"no advice: {advice.reason}")
        return ExitCode.DONE
    say(f"save every {advice.every_steps} steps ({advice.interval_s:.3g} s): {advice.reason}")
    now = "" if advice.lost_share_now is None else f"; so far, every {so_far} steps: {advice.lost_share_now:.2%}"
    say(f"expected to be lost to saving, failures and what follows: {advice.lost_share:.2%} of the time{now}")
    return ExitCode.DONE


def bring(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Import a torch file, or a directory in the seed's layout, and say what was assumed and lost."""
    directory = os.path.isdir(args.file)
    lacking = [name for name in ("batch_size", "accumulation_steps", "dataset_length") if getattr(args, name) is None]
    if lacking and not args.weights_only and not directory:
        wanted = ", ".join(f"--{name.replace('_', '-')}" for name in lacking)
        raise UsageError(f"the file does not say where in the data the run stood: give {wanted}, or --weights-only")
    from elastic.checkpoint.importing import import_minimind, import_seed, import_weights
    from elastic.checkpoint.minimind import Given

    options: dict[str, Any] = {"dtype": args.dtype, "storage": _storage(rest, args.root), "nonce": _nonce}
    if directory and args.weights_only:
        raise UsageError(f"{args.file} needs no import for its weights: load_path to it, no_load_optim: True")
    if directory:
        done = import_seed(args.file, args.root, **options)
    elif args.weights_only:
        done = import_weights(args.file, args.root, accept_infinite=args.accept_infinite, **options)
    else:
        given = Given(
            batch_size=args.batch_size,
            accumulation_steps=args.accumulation_steps,
            dataset_length=args.dataset_length,
        )
        done = import_minimind(args.file, args.root, given, accept_infinite=args.accept_infinite, **options)
    if args.json:
        return _as_json(dataclasses.asdict(done))
    for note in done.notes:
        say(f"note: {note}")
    say(f"imported as iteration {done.iteration} of {done.root}; next: {done.next_step}")
    return ExitCode.DONE


def send(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Export the weights of an iteration."""
    from elastic.checkpoint.exporting import export_weights
    from elastic.checkpoint.inspection import locate

    storage = _storage(rest, args.path)
    iteration = locate(args.path, storage=storage)
    done = export_weights(iteration, args.directory, most_bytes=args.most_bytes, storage=storage, nonce=_nonce)
    if args.json:
        return _as_json(dataclasses.asdict(done))
    say(f"{done.tensors} tensors, {_size(done.total_bytes)}, of {iteration} in {', '.join(done.files)}")
    for tie in done.left_out:
        say(f"held once: {tie}")
    return ExitCode.DONE


def _storage(rest: Sequence[str], *paths: str) -> Any:
    from elastic.checkpoint.locating import storage_for

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    return storage_for(*paths)


def _as_json(plain: Any, code: ExitCode = ExitCode.DONE) -> ExitCode:
    say(json.dumps(plain))
    return code


def _nonce() -> str:
    return secrets.token_hex(6)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
