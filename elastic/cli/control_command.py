"""`elastic scale`, `pause` and `resume`: ask something of a whole job, through etcd, while it runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic.cli import job_place
from elastic.cli.console import say
from elastic.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from elastic.rendezvous.control import Asked
    from elastic.rendezvous.wish import Wish

_MOST_NODES = 100_000


def register(commands: Any) -> None:
    """Add the commands to argparse's subparsers (whose class argparse keeps private)."""
    scale = commands.add_parser("scale", allow_abbrev=False, help="change how many nodes a running job has")
    scale.add_argument("nodes", metavar="MIN:MAX", help="in the place of torchrun's --nnodes, until the job ends")
    scale.set_defaults(run=run_scale)
    pause = commands.add_parser("pause", allow_abbrev=False, help="have a job save, end its workers and wait")
    pause.set_defaults(run=run_pause)
    resume = commands.add_parser("resume", allow_abbrev=False, help="have a paused job go on at the next sample")
    resume.set_defaults(run=run_resume)
    for parser in (scale, pause, resume):
        job_place.add_arguments(parser)


def run_scale(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Change the limits; the job saves and comes together anew where they ask for it."""
    from elastic.observe.agreed import scale_answer
    from elastic.rendezvous.wish import scaled

    least, most = nodes_of(args.nodes)
    say(scale_answer(_ask(args, rest, partial(scaled, min_nodes=least, max_nodes=most))))
    return ExitCode.DONE


def run_pause(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Have it rest; its agents stay and wait."""
    from elastic.observe.agreed import pause_answer
    from elastic.rendezvous.wish import paused

    say(pause_answer(_ask(args, rest, paused)))
    return ExitCode.DONE


def run_resume(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Have it go on."""
    from elastic.observe.agreed import resume_answer
    from elastic.rendezvous.wish import resumed

    say(resume_answer(_ask(args, rest, resumed)))
    return ExitCode.DONE


def nodes_of(text: str) -> tuple[int, int]:
    """MIN and MAX, as torchrun's --nnodes has them; one number stands for both.

    Raises:
        UsageError: it is no such thing.
    """
    match = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    least = int(match[1]) if match else 0
    most = int(match[2] or match[1]) if match else 0
    if not 1 <= least <= most <= _MOST_NODES:
        raise UsageError(f"{text!r} is not MIN:MAX, two numbers of nodes with 1 <= MIN <= MAX, or one for both")
    return least, most


def _ask(args: argparse.Namespace, rest: Sequence[str], change: Callable[..., Wish]) -> Asked:
    """Write the wish."""
    from elastic.rendezvous.control import ask

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    with job_place.job_keys(args) as (store, keys):
        return ask(store, keys=keys, change=partial(change, reason=job_place.reason_of(args)))
