"""Results: a pytest plugin that writes what a whole run of all tests gave into a page, file by file.

    pytest -m "" -p tests.harness.results --results=tests/RESULTS.md

A run of a part of the tests writes nothing: its page would say that the rest is not there.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

OUTCOMES = ("passed", "failed", "skipped")
SLOWEST = 10


@dataclass
class Outcomes:
    """One file's: how its tests ended, and how long setting up, running and tearing down took."""

    ended: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """When, where and how a run was made."""

    date: str
    machine: str
    command: str
    seconds: float


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="the page to write; only a run of all tests writes it")


def pytest_configure(config: pytest.Config) -> None:
    if (page := config.getoption("results")) is not None:
        config.pluginmanager.register(Results(page), "results-page")


class Results:
    """Collects reports, and writes the page at the end of a whole run."""

    def __init__(self, page: Path) -> None:
        self._page = page
        self._files: dict[str, Outcomes] = {}
        self._told: list[str] = []
        self._tests: list[tuple[float, str]] = []
        self._selected = False
        self._began = datetime.datetime.now(tz=datetime.UTC)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._selected = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[0]
        outcomes = self._files.setdefault(name, Outcomes())
        outcomes.seconds += report.duration
        if report.when == "call":
            self._tests.append((report.duration, report.nodeid))
        if report.when == "call" or report.outcome != "passed":
            outcomes.ended[report.outcome] += 1
            if report.outcome != "passed":
                self._told.append(f"{report.outcome}: `{report.nodeid}`: {why(report)}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        whole = not self._selected and config.args == config.getini("testpaths")
        if not whole:
            terminalreporter.write_line(f"{self._page} is left as it is: this was a part of the tests")
            return
        seconds = (datetime.datetime.now(tz=datetime.UTC) - self._began).total_seconds()
        date = self._began.date().isoformat()
        run = Run(date=date, machine=machine(), command="make test-all", seconds=seconds)
        self._page.write_text(page(run, files=self._files, told=self._told, slowest=sorted(self._tests)[-SLOWEST:]))
        terminalreporter.write_line(f"{self._page} is written")


def page(run: Run, *, files: dict[str, Outcomes], told: list[str], slowest: list[tuple[float, str]]) -> str:
    """The page as Markdown."""
    total = sum((outcomes.ended for outcomes in files.values()), Counter[str]())
    lines = [
        "# All tests, the long ones too",
        "",
        f"`{run.command}` on {run.date}, on {run.machine}: {run.seconds / 60:.0f} minutes, "
        + ", ".join(f"{total[outcome]} {outcome}" for outcome in OUTCOMES)
        + ". Written by the run itself.",
        "",
        "| file | passed | failed | skipped | seconds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, outcomes in sorted(files.items()):
        counts = " | ".join(str(outcomes.ended[outcome]) for outcome in OUTCOMES)
        lines.append(f"| {name.removeprefix('tests/')} | {counts} | {outcomes.seconds:.0f} |")
    lines += ["", "The slowest:", "", *(f"- {seconds:.0f} s `{name}`" for seconds, name in reversed(slowest))]
    if told:
        lines += ["", "Not passed:", "", *(f"- {line}" for line in told)]
    return "\n".join(lines) + "\n"


def why(report: pytest.TestReport) -> str:
    """The reason of a skip, or the last line of a failure."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    lines = str(report.longrepr or "").strip().splitlines()
    return lines[-1] if lines else "no reason given"


def machine() -> str:
    """This machine in words that tell what a time is worth."""
    return f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
