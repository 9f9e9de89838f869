"""The command line: `elastic COMMAND`, one module for each command.

A command module has `register(commands)`, which adds its parser and sets `run` to a function of the parsed and the
left-over arguments that returns an exit code. Heavy imports belong inside that function: `elastic config` must not
wait for torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import elastic
from elastic.cli import (
    audit_command,
    ckpt_command,
    config_command,
    control_command,
    demo_command,
    docs_command,
    doctor_command,
    drain_command,
    events_command,
    logs_command,
    plan_command,
    report_command,
    status_command,
    targets_command,
    top_command,
)
from elastic.cli.console import complain
from elastic.errors import ElasticError, ExitCode, UsageError

COMMANDS = (
    config_command,
    status_command,
    top_command,
    events_command,
    logs_command,
    report_command,
    ckpt_command,
    audit_command,
    plan_command,
    doctor_command,
    targets_command,
    drain_command,
    control_command,
    demo_command,
    docs_command,
)


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong argument is a UsageError with our exit code and not exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(prog="elastic", description="Elastic training that survives.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"elastic {elastic.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Errors of ours are one message on stderr, without a traceback."""
    try:
        args, rest = build_parser().parse_known_args(argv)
        run: Callable[[argparse.Namespace, Sequence[str]], ExitCode] = args.run
        code = run(args, rest)
        sys.stdout.flush()
    except ElasticError as error:
        complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain once more while flushing at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except OSError as error:
        # What is looked at lies on disks and in stores that may be away: the system's own words say which.
        complain(str(error))
        return ExitCode.INTERNAL
    except KeyboardInterrupt:
        return 130
    return code
