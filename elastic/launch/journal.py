"""Journal: a node's log as JSON lines in a file that never grows beyond a size; older ones lie beside it."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from elastic.config.agents import LaunchSettings

logger = logging.getLogger(__name__)


class Journal:
    """`NAME.jsonl` is written; at its limit it becomes `NAME.1.jsonl`, and that one `NAME.2.jsonl`, and so on.

    Safe from any thread. A disk that is full or gone is told once and loses lines, no more.
    """

    def __init__(self, directory: Path, *, node: str, most_bytes: int, kept: int) -> None:
        """`kept`: how many older files stay."""
        self._directory, self._node, self._most_bytes, self._kept = directory, node, most_bytes, kept
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size_bytes = 0
        self._failed = False

    @property
    def path(self) -> Path:
        """The file that is written now."""
        return self._place(0)

    def write(self, *, time_s: float, ranks: Sequence[int], generation: int, stream: str, text: str) -> None:
        """Append a line. `ranks` is empty for the agent's own."""
        told = {"time_s": time_s, "node": self._node, "ranks": list(ranks), "generation": generation, "stream": stream}
        data = json.dumps({**told, "text": text}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                if self._fd is None:
                    self._open()
                if self._size_bytes and self._size_bytes + len(data) > self._most_bytes:
                    self._rotate()
                assert self._fd is not None  # opened above
                self._size_bytes += os.write(self._fd, data)
                self._failed = False
            except OSError as error:
                first, self._failed = not self._failed, True
                if first:
                    logger.warning("lines of this node's log are lost: %s", error)

    def close(self) -> None:
        """Close the file; what is written after that opens it again."""
        with self._lock:
            self._close()

    def _place(self, number: int) -> Path:
        return self._directory / (f"{self._node}.{number}.jsonl" if number else f"{self._node}.jsonl")

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size_bytes = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self._close()
        for number in range(self._kept, 0, -1):
            older = self._place(number - 1)
            if older.exists():
                older.replace(self._place(number))
        if not self._kept:
            self.path.unlink(missing_ok=True)
        self._open()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class JournalHandler(logging.Handler):
    """Puts the agent's own log messages into the journal, too."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """One message; the journal's own troubles are not for it."""
        if record.name != __name__:
            text = record.getMessage()
            self._journal.write(time_s=record.created, ranks=(), generation=0, stream="agent", text=text)


def open_journal(wanted: LaunchSettings, directory: Path, *, node: str, stack: ExitStack) -> Journal | None:
    """The journal that a node keeps, its agent's own words in it until `stack` ends; None where none is wanted."""
    if not wanted.log_bytes:
        return None
    journal = Journal(directory, node=node, most_bytes=wanted.log_bytes, kept=wanted.logs_kept)
    handler, ours = JournalHandler(journal), logging.getLogger("elastic")
    ours.addHandler(handler)
    stack.callback(ours.removeHandler, handler)
    return journal
