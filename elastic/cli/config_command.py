"""`elastic config`: what a run would be set to and why, and whether a file is right."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from elastic.cli.console import columns, say
from elastic.config.json_schema import json_schema
from elastic.config.load import Resolved, resolve, to_plain
from elastic.config.schema import FIELDS, OPTIONS
from elastic.errors import ExitCode, UsageError


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    actions = commands.add_parser("config", help="show or check settings").add_subparsers(
        metavar="ACTION", required=True
    )
    shown = actions.add_parser(
        "show",
        allow_abbrev=False,
        help="every setting, its value and where it came from",
        usage="elastic config show [--json] [--config FILE] [--section.field VALUE ...]",
    )
    shown.add_argument("--json", action="store_true", help="as JSON")
    shown.set_defaults(run=show)
    checked = actions.add_parser("check", allow_abbrev=False, help="report every problem of a file")
    checked.add_argument("file", metavar="FILE")
    checked.set_defaults(run=check)
    schema = actions.add_parser("schema", allow_abbrev=False, help="a JSON Schema of settings files, for editors")
    schema.set_defaults(run=print_schema)


def show(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the settings that a run with these arguments, in this environment, would have."""
    resolved = resolve(rest, environ=os.environ)
    if args.json:
        say(json.dumps({"settings": to_plain(resolved.settings), "origins": dict(resolved.origins)}, indent=2))
    else:
        say(columns(_rows(resolved)))
    return ExitCode.DONE


def check(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Check one file by itself, without the environment."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    if not args.file:
        raise UsageError("elastic config check needs the path of a YAML file")
    resolved = resolve(["--config", args.file], environ={})
    count = sum(origin != "default" for origin in resolved.origins.values())
    say(f"{args.file}: no problems, {count} {'setting' if count == 1 else 'settings'}")
    return ExitCode.DONE


def print_schema(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the schema."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    say(json.dumps(json_schema(), indent=2))
    return ExitCode.DONE


def _rows(resolved: Resolved) -> Iterator[tuple[str, str, str]]:
    plain = to_plain(resolved.settings)
    for key, origin in sorted(resolved.origins.items(), key=lambda item: _rank(item[0])):
        section, _, name = key.partition(".")
        if key == OPTIONS:
            continue  # Its keys are listed one by one.
        found = plain[section]["options"][name.split(".", 1)[1]] if key.startswith(OPTIONS) else plain[section][name]
        yield key, json.dumps(found), origin


def _rank(key: str) -> tuple[int, str]:
    """Settings in the order of the documentation, options where `job.options` stands."""
    return list(FIELDS).index(OPTIONS if key.startswith(OPTIONS) else key), key
