"""`elastic drain`: ask a node to finish its step, save and leave, without logging in to it."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic.cli.console import say
from elastic.errors import ExitCode, UsageError


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("drain", allow_abbrev=False, help="ask a node to save and leave; the others go on")
    parser.add_argument("node", help="its name, as `nodes` of the events and the agents' lines have it")
    parser.add_argument("--rdzv-endpoint", "--rdzv_endpoint", default="", help="etcd, as torchrun was told")
    parser.add_argument("--rdzv-conf", "--rdzv_conf", default="", help="credentials and so on, as torchrun was told")
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--rdzv-id", "--rdzv_id", default="", help="the job, as torchrun was told")
    job.add_argument("--save-path", default="", help="instead of the job: the run's checkpoint.save_path")
    parser.add_argument("--reason", default="", help="why; it goes into the events")
    parser.set_defaults(run=run)


@dataclass(kw_only=True)
class _Parameters:
    """As much of torchrun's rendezvous parameters as leads to a job's keys."""

    endpoint: str
    run_id: str
    config: dict[str, Any] = field(default_factory=dict)
    min_nodes: int = 1
    max_nodes: int = 1
    local_addr: str | None = None


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Write the wish; the node's agent hears of it at once."""
    from elastic.rendezvous.drain import drain
    from elastic.rendezvous.etcd import EtcdStore
    from elastic.rendezvous.keys import Keys
    from elastic.rendezvous.parameters import options_from

    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    parameters = _Parameters(
        endpoint=args.rdzv_endpoint, run_id=args.rdzv_id or _job_of(args.save_path), config=_config(args.rdzv_conf)
    )
    options = options_from(parameters, environ=os.environ)
    store = EtcdStore(options)
    try:
        asked = drain(
            store,
            keys=Keys.of(prefix=options.prefix, job_id=options.job_id),
            node=args.node,
            reason=args.reason or f"asked by {getpass.getuser()} at {socket.gethostname()}",
        )
    finally:
        store.close()
    several = f" ({len(asked)} agents)" if len(asked) > 1 else ""
    say(f"{args.node}{several} was asked to leave: it finishes its step, saves, and ends with exit code 75")
    return ExitCode.DONE


def _job_of(save_path: str) -> str:
    from elastic.checkpoint.root import identity_of

    return identity_of(save_path).job_id


def _config(text: str) -> dict[str, Any]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    for key, equals, _ in pairs:
        if not (key and equals):
            raise UsageError(f"--rdzv-conf {text!r} is not of the form key=value,key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}
