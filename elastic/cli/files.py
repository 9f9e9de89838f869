"""Files that commands write: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from elastic.errors import UsageError


def write_whole(path: Path, text: str) -> None:
    """What was there stays until the new content is complete.

    Raises:
        UsageError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another file with -o") from error
