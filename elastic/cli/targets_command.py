"""`elastic targets`: Prometheus' file discovery of the agents that live, from etcd."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic.cli.console import complain, say
from elastic.cli.etcd_place import add_arguments, members_of, options_of
from elastic.cli.files import write_whole
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import ExitCode, StoreUnavailable, UsageError
from elastic.observe.targets import Agent, targets

if TYPE_CHECKING:
    from elastic.rendezvous.kv import KeyValueStore
    from elastic.rendezvous.options import RendezvousOptions


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser(
        "targets", allow_abbrev=False, help="Prometheus file discovery of the agents that live"
    )
    add_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there, whole; on stdout by default")
    parser.add_argument("--interval", type=float, metavar="S", help="write it anew so often, until interrupted")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print or write the targets, once or for as long as it runs."""
    from elastic.rendezvous.etcd import EtcdStore

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    if args.interval is not None and (args.output is None or not 1 <= args.interval <= 3600):
        raise UsageError("--interval needs -o FILE, and a number of seconds from 1 to 3600")
    options = options_of(args)
    store = EtcdStore(options)
    try:
        if args.interval is None:
            _tell(_found(store, options), args.output)
        else:
            _keep(args, store, options, SYSTEM_CLOCK)
    finally:
        store.close()
    return ExitCode.DONE


def _keep(args: argparse.Namespace, store: KeyValueStore, options: RendezvousOptions, clock: Clock) -> None:
    while True:
        try:
            _tell(_found(store, options), args.output)
        except StoreUnavailable as error:
            complain(f"{error}; {args.output} stays as it is")
        clock.sleep(args.interval)


def _found(store: KeyValueStore, options: RendezvousOptions) -> list[Agent]:
    return [
        Agent(job_id=job, node=member.node, address=member.address, exporter=member.exporter)
        for job, member in members_of(store, options=options)
    ]


def _tell(agents: Sequence[Agent], output: str | None) -> None:
    found = targets(agents)
    text = json.dumps([each.to_plain() for each in found if not each.problem], indent=1)
    if output is None:
        say(text)
    else:
        write_whole(Path(output), text + "\n")
    for each in found:
        if each.problem:
            complain(each.problem)
