"""`elastic demo`: three nodes, one killed, another joining, every sample accounted for."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

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

    with _ended_in_order():
        result = run_demo(say=tell, directory=args.directory)
    say(f"\n{describe(result)}\n")
    say("The job survived: every sample was used once, and the loss fell.")
    return ExitCode.DONE


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """A signal ends etcd and the nodes too: they have sessions of their own, and hear of nothing by themselves."""
    ending = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in ending}

    def end(number: int, _: object) -> NoReturn:
        for each in ending:
            signal.signal(each, signal.SIG_IGN)  # a second one must not cut the cleaning short
        raise SystemExit(128 + number)

    for number in ending:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
