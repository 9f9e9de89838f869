"""Pages that name, case by case, the tests that show what happens: what on such a page is not true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROW = re.compile(r"\| *(\d+) *\|(.*)\|")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def faults(page: Path, *, root: Path) -> list[str]:
    """Rows that name no test and no reason, tests that are not there, numbers that are out of order."""
    found = []
    rows = [match for line in page.read_text().splitlines() if (match := _ROW.fullmatch(line.strip()))]
    if [int(row[1]) for row in rows] != list(range(1, len(rows) + 1)):
        found.append(f"{page.name}: rows are not numbered 1 to {len(rows)}")
    for row in rows:
        here = row[2].rpartition("|")[2].strip()
        tests = _TEST.findall(here)
        if not tests and not here.startswith("none: "):
            found.append(f"{page.name} row {row[1]}: neither a test nor `none: ` and the reason")
        for path, name in tests:
            if name not in set(_tests(root / path)):
                found.append(f"{page.name} row {row[1]}: there is no {path}::{name}")
    return found if rows else [f"{page.name} has no rows"]


def _tests(path: Path) -> Iterator[str]:
    """Names as pytest writes them, with their class in front where they have one."""
    if not path.exists():
        return
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef))
