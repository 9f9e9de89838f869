"""`elastic status`: what a run is doing now and why, from its records; with --job from etcd."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from elastic.cli.console import columns, say, say_json
from elastic.cli.etcd_place import add_arguments
from elastic.cli.runs import Unreadable, events_of, goal_samples
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import ExitCode, UsageError
from elastic.events import merged_records
from elastic.observe.screen import screen
from elastic.observe.status import Status, StatusFold

_CLEAR = "\x1b[H\x1b[2J"


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("status", allow_abbrev=False, help="what a run is doing now, and why")
    parser.add_argument("save_path", nargs="?", help="the run's checkpoint.save_path; without it etcd is asked (--job)")
    parser.add_argument("--watch", action="store_true", help="tell it again as it changes, until the run ends")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between two tellings")
    parser.add_argument("--json", action="store_true", help="print one JSON object, one a line with --watch")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the status, once or until the run ends; exit code 1 where the job failed."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    if not 0.1 <= args.interval <= 3600:
        raise UsageError(f"--interval is {args.interval:g} s; it must be from 0.1 to 3600")
    if args.save_path is None:
        if not args.job:
            raise UsageError("name the save_path of a run, or a job in etcd with --job")
        from elastic.cli.job_status import tell

        return tell(args, clock=SYSTEM_CLOCK)
    events_of(args.save_path)
    last = watch(args, clock=SYSTEM_CLOCK) if args.watch else once(args, clock=SYSTEM_CLOCK)
    return ExitCode.FAILED if last.state.value == "failed" else ExitCode.DONE


def once(args: argparse.Namespace, *, clock: Clock) -> Status:
    """Read the records and print the status that they make."""
    fold = StatusFold()
    unreadable = Unreadable()
    for record in merged_records(events_of(args.save_path), on_unreadable=unreadable, few_steps=True):
        fold.apply(record)
    status = _tell(args, fold, clock, clear=False)
    unreadable.tell()
    return status


def watch(args: argparse.Namespace, *, clock: Clock) -> Status:
    """Follow the records and print the status at each interval until it is an end."""
    from elastic.local.follow import Follower

    fold = StatusFold()
    unreadable = Unreadable()
    with Follower(events_of(args.save_path), on_unreadable=unreadable, few_steps=True) as follower:
        while True:
            follower.read()
            for record in sorted(follower.records, key=lambda record: record.time_s):
                fold.apply(record)
            follower.records.clear()
            status = _tell(args, fold, clock, clear=sys.stdout.isatty())
            if status.state.is_end:
                unreadable.tell()
                return status
            clock.sleep(args.interval)


def _tell(args: argparse.Namespace, fold: StatusFold, clock: Clock, *, clear: bool) -> Status:
    status = fold.status(now_s=clock.wall_s(), goal_samples=goal_samples(args.save_path))
    if args.json:
        say_json(dataclasses.asdict(status))
    else:
        say((_CLEAR if clear else "") + columns(screen(status)) + ("\n" if args.watch else ""))
    return status
