"""Another wall clock for single processes, by libfaketime. The machine's clock is never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

_MENDED = Path(__file__).parent / "another_time"


def another_time(offset: str = "", *, file: Path | None = None) -> dict[str, str]:
    """The environment of a process whose wall clock is off, as FAKETIME says it; skips where that cannot be.

    `file` holds the offset instead, and is read anew each second: writing it is a jump of the clock.
    """
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("needs libfaketime (Debian: apt-get install libfaketime)")
    said = {"FAKETIME": offset} if file is None else {"FAKETIME_TIMESTAMP_FILE": str(file)}
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": str(_MENDED),
        **said,
    }
