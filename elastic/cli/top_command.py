"""`elastic top`: a run on the whole terminal, as it goes: state, progress, nodes, loss and the latest events."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

from elastic.cli.console import columns, complain, say, say_json
from elastic.cli.runs import Unreadable, events_of, goal_samples
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import ExitCode, UsageError
from elastic.local.follow import Follower
from elastic.observe.screen import screen
from elastic.observe.watching import Watched, Watching

_EVENTS_SHOWN = 15


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("top", allow_abbrev=False, help="a run on the whole terminal, as it goes")
    parser.add_argument("save_path", help="the run's checkpoint.save_path")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Show the run until q is pressed; where there is no terminal print it once."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    if not 0.1 <= args.interval <= 3600:
        raise UsageError(f"--interval is {args.interval:g} s; it must be from 0.1 to 3600")
    unreadable = Unreadable()
    with Follower(events_of(args.save_path), on_unreadable=unreadable, few_steps=True) as follower:
        look = looker(args.save_path, follower, clock=SYSTEM_CLOCK)
        if args.json:
            say_json(dataclasses.asdict(look()))
        elif not (sys.stdin.isatty() and sys.stdout.isatty()):
            say(plainly(look()))
        elif importlib.util.find_spec("textual") is None:
            say(plainly(look()))
            complain("the screen needs one more library: pip install 'elastic-training[screen]'")
        else:
            from elastic.observe.top_screen import TopApp

            TopApp(look, interval_s=args.interval).run()
    unreadable.tell()
    return ExitCode.DONE


def looker(save_path: str, follower: Follower, *, clock: Clock) -> Callable[[], Watched]:
    """What tells the run as it is now, each time it is called."""
    watching = Watching()

    def look() -> Watched:
        follower.read()
        for record in sorted(follower.records, key=lambda record: record.time_s):
            watching.apply(record)
        follower.records.clear()
        return watching.watched(now_s=clock.wall_s(), goal_samples=goal_samples(save_path))

    return look


def plainly(seen: Watched) -> str:
    """The same as lines of text."""
    return "\n".join([columns(screen(seen.status)), "", *seen.events[-_EVENTS_SHOWN:]])
