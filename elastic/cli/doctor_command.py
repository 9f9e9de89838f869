"""`elastic doctor`: whether this machine, its etcd and its save_path are fit for a job, each flaw with its remedy."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from elastic.cli.console import columns, say
from elastic.cli.etcd_place import add_arguments, members_of, options_of
from elastic.clock import SYSTEM_CLOCK
from elastic.errors import ExitCode, StoreError, UsageError
from elastic.observe.health import Finding, Level, judge_likeness


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("doctor", allow_abbrev=False, help="check this machine, etcd and a save_path")
    parser.add_argument("save_path", nargs="?", help="a checkpoint.save_path to try; without, none is tried")
    add_arguments(parser)
    parser.add_argument("--no-etcd", action="store_true", help="leave etcd out")
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help="metrics.host of the run")
    parser.add_argument("--metrics-port", type=int, default=9400, metavar="PORT", help="metrics.port of the run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print all findings; exit code 1 where one is a failure."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    if not 0 < args.metrics_port < 65536:
        raise UsageError(f"--metrics-port is {args.metrics_port}; it must be from 1 to 65535")
    findings = list(_all(args))
    failed = sum(each.level is Level.FAILURE for each in findings)
    warned = sum(each.level is Level.WARNING for each in findings)
    if args.json:
        say(json.dumps({"findings": [dataclasses.asdict(each) for each in findings], "fit": not failed}))
    else:
        say(columns(_rows(findings)))
        say(f"{failed} failures, {warned} warnings of {len(findings)} checks")
    return ExitCode.FAILED if failed else ExitCode.DONE


def _all(args: argparse.Namespace) -> Iterator[Finding]:
    from elastic.observe import measuring

    yield from measuring.machine(host=args.metrics_host, port=args.metrics_port)
    if not args.no_etcd:
        found = list(measuring.etcd(options_of(args), clock=SYSTEM_CLOCK))
        yield from found
        if found[0].level is not Level.FAILURE:
            yield _likeness(args, here=measuring.fingerprint())
    if args.save_path is not None:
        yield from measuring.save_path(args.save_path, clock=SYSTEM_CLOCK)


def _likeness(args: argparse.Namespace, *, here: str) -> Finding:
    from elastic.rendezvous.etcd import EtcdStore

    options = options_of(args)
    store = EtcdStore(options)
    try:
        members = members_of(store, options=options)
    except StoreError as error:
        return Finding(check="versions", level=Level.SKIPPED, found=str(error), remedy="name one job with --job")
    finally:
        store.close()
    return judge_likeness({member.node: member.fingerprint for _, member in members}, here=here)


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    for each in findings:
        yield each.level, each.check, each.found
        if each.remedy:
            yield "", "", f"-> {each.remedy}"
