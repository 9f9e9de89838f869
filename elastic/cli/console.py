"""What commands say to people: the one place of the package that writes to the terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence


def say(text: str) -> None:
    """One line, or several, on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_json(value: object) -> None:
    """One object on one line. JSON has no word for what is no number (a loss may be): it is null."""
    try:
        say(json.dumps(value, allow_nan=False))
    except ValueError:
        say(json.dumps(_finite(value)))


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def complain(text: str) -> None:
    """An error, on stderr."""
    sys.stderr.write(f"elastic: {text}\n")


_WIDEST = 60


def columns(rows: Iterable[Sequence[str]]) -> str:
    """Rows as text with aligned columns; the last column is not padded, nor does one long cell widen a column."""
    table = [tuple(row) for row in rows]
    widths = [
        max((len(cell) for cell in column if len(cell) <= _WIDEST), default=0) for column in zip(*table, strict=True)
    ]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)
