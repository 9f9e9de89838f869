"""Event files: lines appended by a thread of its own, so that a disk that stalls holds up no step and no agent.

Who appends waits for its line, so that the line survives its writer's death; but no longer than a disk at work takes.
After that lines wait in memory, in their order, until the disk is back.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from elastic.events.records import Record, encode

PATIENCE_S = 0.25
MOST_WAITING_BYTES = 64 << 20
"""About an hour of steps of 10 ms."""
END_S = 10.0
_STOPPED = "what was told since is lost: the disk has not taken it within {:.0f} s of the end"

logger = logging.getLogger(__name__)


@dataclass
class _Line:
    data: bytes
    written: threading.Lock = field(default_factory=threading.Lock)
    """Held until it is written, or refused."""
    refused: OSError | None = None
    late: bool = False
    """Nobody waits for it any more."""


class EventFile:
    """Appends records to one file. Each record is one `write`, so that lines of several processes never mix."""

    def __init__(
        self,
        path: Path,
        *,
        patience_s: float = PATIENCE_S,
        most_waiting_bytes: int = MOST_WAITING_BYTES,
        end_s: float = END_S,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        """Args:
        patience_s: how long an append waits for a disk that has kept up so far.
        most_waiting_bytes: how much may wait in memory for one that does not.
        end_s: how long `close` waits for it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._path, self._write = path, write
        self._patience_s, self._most_waiting_bytes, self._end_s = patience_s, most_waiting_bytes, end_s
        self._lines: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._behind = False
        self._closed = self._torn = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="elastic-events", daemon=True)
        self._thread.start()

    def append(self, record: Record) -> None:
        """Write one record. It outlives this process; it is not forced to disk. Raises as `append_encoded`."""
        self.append_encoded(encode(record))

    def append_encoded(self, line: str) -> None:
        """The same of what `encode` gave.

        Raises:
            OSError: the disk refused it, or has not taken anything for so long that no more can wait.
        """
        if os.getpid() != self._owner:  # in a child that the user's code forked there is no thread
            os.write(self._fd, (line + "\n").encode())
            return
        entry = _Line(data=(line + "\n").encode())
        entry.written.acquire()
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the event file is closed", str(self._path))
            if self._waiting_bytes and self._waiting_bytes + len(entry.data) > self._most_waiting_bytes:
                raise OSError(errno.ENOBUFS, "the disk takes nothing, and no more can wait in memory", str(self._path))
            self._waiting_bytes += len(entry.data)
            behind = self._behind
            self._lines.put(entry)
        if behind or not entry.written.acquire(timeout=self._patience_s):
            self._leave(entry)
        elif entry.refused is not None:
            raise entry.refused

    def close(self) -> None:
        """Close the file once all is written, if that is soon; further appends fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._lines.put(None)
        self._thread.join(self._end_s)
        if self._thread.is_alive():
            logger.error("%s: %s", self._path, _STOPPED.format(self._end_s))

    def _leave(self, entry: _Line) -> None:
        with self._lock:
            entry.late = entry.written.locked()
            told, self._behind = self._behind, self._behind or entry.late
        if entry.late and not told:
            logger.warning(
                "%s: the disk has not taken an event within %g s; events wait in memory", self._path, self._patience_s
            )
        if not entry.late and entry.refused is not None:
            raise entry.refused

    def _run(self) -> None:
        while (entry := self._lines.get()) is not None:
            try:
                self._put(entry.data)
            except OSError as error:
                entry.refused = error
            with self._lock:
                entry.written.release()
                self._waiting_bytes -= len(entry.data)
                back = self._behind and not self._waiting_bytes
                self._behind = self._behind and not back
            if entry.late and entry.refused is not None:
                logger.error("%s: an event that had waited is lost: %s", self._path, entry.refused)
            if back:
                logger.warning("%s: the disk takes events again; none that waited is left", self._path)
        os.close(self._fd)

    def _put(self, data: bytes) -> None:
        """Write a line. What a full disk took of one becomes a line of its own, for readers to pass over."""
        if self._torn:
            data = b"\n" + data
        done = 0
        while done < len(data):
            taken = self._write(self._fd, data[done:])
            if not taken:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            done += taken
            self._torn = done < len(data)
