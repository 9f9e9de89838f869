"""The form that every benchmark prints: a table for people, then one JSON object for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case: ours (median), the peer beside it in the same run, the limit, and whether the target was met."""

    case: str
    ours: float
    peer: float | None
    limit: float | None
    unit: str
    target: str
    met: bool


def show(bench: str, rows: Sequence[Row]) -> None:
    """Print the table and, as the last line, the JSON object."""
    head = ("case", "ours", "peer", "limit", "unit", "target", "met")
    lines = [head, *(tuple(_cell(value) for value in asdict(row).values()) for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print(json.dumps({"bench": bench, "rows": [asdict(row) for row in rows]}))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
