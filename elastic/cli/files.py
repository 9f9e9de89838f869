"""Files that commands write: whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from elastic.errors import UsageError


def write_whole(path: Path, text: str) -> None:
    """What was there stays until the new content is complete. What is no regular file (a pipe, a device) is written to.

    Raises:
        UsageError: it cannot be written.
    """
    target = path.resolve()  # a link is no name to be taken over
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another file with -o") from error
