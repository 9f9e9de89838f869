"""`elastic docs`: the tables of the documentation, made from the code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic.cli.console import say
from elastic.config.reference import settings_table
from elastic.errors import ExitCode, UsageError
from elastic.metrics.reference import metrics_table

TABLES: Mapping[str, Callable[[], str]] = {"config": settings_table, "metrics": metrics_table}


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("docs", allow_abbrev=False, help="print a table of the documentation (Markdown)")
    parser.add_argument("table", choices=sorted(TABLES))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print one table."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    say(TABLES[args.table]().rstrip("\n"))
    return ExitCode.DONE
