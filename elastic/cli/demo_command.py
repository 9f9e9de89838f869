"""`elastic demo`: three nodes, one killed, another joining, every sample accounted for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.cli.console import say
from elastic.clock import SYSTEM_CLOCK
from elastic.errors import ExitCode, UsageError


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("demo", allow_abbrev=False, help="train on this machine, kill a node, watch it go on")
    parser.add_argument("--directory", type=Path, help="where everything goes (default: a new temporary directory)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Run the demo; exit code 0 only if all that it promises really happened."""
    from elastic.local.demo import describe, run_demo

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    began_s = SYSTEM_CLOCK.monotonic_s()

    def tell(text: str) -> None:
        say(f"{SYSTEM_CLOCK.monotonic_s() - began_s:6.1f} s  {text}")

    say(f"\n{describe(run_demo(say=tell, directory=args.directory))}\n")
    say("The job survived: every sample was used once, and the loss fell.")
    return ExitCode.DONE
