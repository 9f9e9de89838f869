"""`elastic report`: a run as one HTML page that opens offline."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.cli.console import say
from elastic.cli.files import write_whole
from elastic.cli.runs import Unreadable, events_of, goal_samples, newest_settings
from elastic.clock import SYSTEM_CLOCK
from elastic.errors import ElasticError, ExitCode, UsageError
from elastic.events import merged_records
from elastic.observe.chronicle import chronicle
from elastic.observe.page import Account, page


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("report", allow_abbrev=False, help="a run as one HTML page that opens offline")
    parser.add_argument("save_path", help="the run's checkpoint.save_path")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="where to write it")
    parser.add_argument("--no-audit", action="store_true", help="without the sample account, which needs most time")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Write the page, whole or not at all."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    unreadable = Unreadable()
    records = merged_records(events_of(args.save_path), on_unreadable=unreadable)
    told = chronicle(records, goal_samples=goal_samples(args.save_path))
    account = Account(verdict="left out (--no-audit)", exact=None) if args.no_audit else _account(args.save_path)
    text = page(told, account=account, settings=newest_settings(args.save_path), made_s=SYSTEM_CLOCK.wall_s())
    write_whole(Path(args.output), text)
    unreadable.tell()
    say(f"{args.output}: {len(text.encode()) / 1e6:.2f} MB")
    return ExitCode.DONE


def _account(save_path: str) -> Account:
    from elastic.history import audit_run

    try:
        found = audit_run(save_path, on_unreadable=lambda _problem: None)  # they are told already
    except (ElasticError, OSError) as error:
        return Account(verdict=f"there is none: {error}", exact=None)
    numbers = [pair for pair in dataclasses.asdict(found).items() if pair[0] != "problems"]
    return Account(
        verdict="every sample was used once" if found.exact else "the account does NOT add up",
        exact=found.exact,
        numbers=tuple((name.replace("_", " "), value) for name, value in numbers),
        problems=found.problems,
    )
