"""`elastic events`: what happened to a run, a line for each event of all its nodes, by time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from elastic.cli.console import say, say_json
from elastic.cli.runs import Unreadable, events_of
from elastic.errors import ExitCode, UsageError
from elastic.events import EVENT_TYPES, Record, encode, merged_records
from elastic.observe.words import head, is_routine, sentence

if TYPE_CHECKING:
    from elastic.local.follow import Follower


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("events", allow_abbrev=False, help="what happened to a run, one line for each event")
    parser.add_argument("save_path", help="the run's checkpoint.save_path")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as events come, until interrupted")
    parser.add_argument("--all", action="store_true", help="steps and copies in memory, too")
    parser.add_argument("--kind", choices=sorted(EVENT_TYPES), action="append", help="only these (repeat for several)")
    parser.add_argument("--node", help="only what this node saw")
    parser.add_argument("--json", action="store_true", help="print the records as they are, a JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the events."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    directory, unreadable = events_of(args.save_path), Unreadable()
    if not args.follow:
        for record in merged_records(directory, on_unreadable=unreadable):
            _tell(args, record)
        unreadable.tell()
        return ExitCode.DONE
    from elastic.local.follow import Follower

    try:
        with Follower(directory, on_unreadable=unreadable) as follower:
            _follow(args, follower)
    finally:
        unreadable.tell()


def _follow(args: argparse.Namespace, follower: Follower) -> NoReturn:
    """Until interrupted: what comes in one reading is told by time."""
    while True:
        follower.read()
        for record in sorted(follower.records, key=lambda record: record.time_s):
            _tell(args, record)
        follower.records.clear()
        follower.wait(limit_s=3600.0)


def _tell(args: argparse.Namespace, record: Record) -> None:
    if args.kind and record.event.kind not in args.kind:
        return
    if not args.kind and not args.all and is_routine(record.event):
        return
    if args.node is not None and record.node != args.node:
        return
    if args.json:
        say_json(json.loads(encode(record)))
    else:
        at = datetime.fromtimestamp(record.time_s, tz=UTC)
        say(f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}Z  {head(record)}  {sentence(record.event)}")
