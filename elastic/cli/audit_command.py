"""`elastic audit`: was every sample used once? The account of a run, from its events."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from elastic.cli.console import columns, say
from elastic.cli.runs import Unreadable
from elastic.errors import ExitCode, UsageError


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("audit", allow_abbrev=False, help="check that a run used every sample once")
    parser.add_argument("save_path", help="the run's checkpoint.save_path")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the account; exit code 1 when it does not add up."""
    from elastic.history import audit_run

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    unreadable = Unreadable()
    found = audit_run(args.save_path, on_unreadable=unreadable)
    unreadable.tell()
    if args.json:
        say(json.dumps(dataclasses.asdict(found) | {"exact": found.exact}))
    else:
        numbers = {name: value for name, value in dataclasses.asdict(found).items() if name != "problems"}
        say(columns((name.replace("_", " "), str(value)) for name, value in numbers.items()))
        for problem in found.problems:
            say(f"problem: {problem}")
        if not found.steps:
            say("problem: no step counts: none was taken, or none was saved and all are to be done again")
        skipped = f", but for {found.skipped_samples} that a policy skipped" if found.skipped_samples else ""
        say(f"every sample was used once{skipped}" if found.exact else "the account does NOT add up")
    return ExitCode.DONE if found.exact else ExitCode.FAILED
