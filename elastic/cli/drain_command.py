"""`elastic drain`: ask a node to finish its step, save and leave, without logging in to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from elastic.cli import job_place
from elastic.cli.console import say
from elastic.errors import ExitCode, UsageError


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("drain", allow_abbrev=False, help="ask a node to save and leave; the others go on")
    parser.add_argument("node", help="its name, as `nodes` of the events and the agents' lines have it")
    job_place.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Write the wish; the node's agent hears of it at once."""
    from elastic.rendezvous.drain import drain

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    reason = job_place.reason_of(args)
    with job_place.job_keys(args) as (store, keys):
        asked = drain(store, keys=keys, node=args.node, reason=reason)
    several = f" ({len(asked)} agents)" if len(asked) > 1 else ""
    say(f"{args.node}{several} was asked to leave: it finishes its step, saves, and ends with exit code 75")
    return ExitCode.DONE
