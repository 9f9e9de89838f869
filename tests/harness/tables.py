"""Puts the generated tables into the documentation: `python -m tests.harness.tables` (what `make tables` runs)."""

from __future__ import annotations

from pathlib import Path

from elastic.config.reference import settings_table
from elastic.metrics.reference import metrics_table

DOCS = Path(__file__).parents[2] / "docs"


def put(page: Path, table: str) -> None:
    """Replace the page's table that begins with the same head."""
    lines = page.read_text().split("\n")
    start = lines.index(table.split("\n", 1)[0])
    stop = start
    while lines[stop].startswith("|"):
        stop += 1
    page.write_text("\n".join([*lines[:start], table.rstrip("\n"), *lines[stop:]]))


if __name__ == "__main__":
    put(DOCS / "configuration.md", settings_table())
    put(DOCS / "metrics.md", metrics_table())
