"""Gate: has two trainings that run at once step in turns, some steps each, so that what the machine does hits both.

A worker that calls its gate at a marked step says so and stands still until it is let through. The bench holds the
other end, one for each training, and takes wall and CPU time of whole turns from outside.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.overhead_cost import Cost, tree_cpu_s

LIMIT_S = 300.0
_HERE = b"."


class Gate:
    """In a worker: called after every step."""

    def __init__(self) -> None:
        """$GATE: the socket of the bench; $MARK_STEPS: the steps to stop after, with commas between them."""
        self._steps = {int(step) for step in os.environ["MARK_STEPS"].split(",")}
        self._line: socket.socket | None = None

    def __call__(self, step: int) -> None:
        if step in self._steps:
            if self._line is None:
                self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._line.connect(os.environ["GATE"])
            self._line.sendall(_HERE)
            if self._line.recv(1) != _HERE:
                raise RuntimeError(f"the bench is gone; this worker stood at its gate after step {step}")


class Training:
    """One side: a torchrun whose workers stop at their gates. A context; what still runs at its end is ended."""

    def __init__(
        self, command: Sequence[str], place: Path, *, environ: dict[str, str], cwd: Path, workers: int
    ) -> None:
        place.mkdir(exist_ok=True)
        self._command, self._place, self._cwd, self._workers = command, place, cwd, workers
        self._environ = {**environ, "GATE": str(place / "gate")}
        self._lines: list[socket.socket] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._listener.settimeout(LIMIT_S)
            self._listener.bind(self._environ["GATE"])
            self._listener.listen(self._workers)
            log = opened.enter_context((self._place / "log").open("wb"))
            self._process = subprocess.Popen(
                self._command, cwd=self._cwd, env=self._environ, stdout=log, stderr=log, start_new_session=True
            )
            opened.callback(self._end)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._open.close()

    def arrive(self) -> None:
        """Wait until all workers stand at their gates.

        Raises:
            RuntimeError: one of them ended, or none came in time.
        """
        try:
            while len(self._lines) < self._workers:
                line = self._open.enter_context(self._listener.accept()[0])
                line.settimeout(LIMIT_S)
                self._lines.append(line)
            here = [line.recv(1) for line in self._lines]
        except OSError as error:
            raise RuntimeError(f"no worker came to its gate: {error}; {self._words()}") from error
        if any(word != _HERE for word in here):
            raise RuntimeError(f"a worker ended before its gate; {self._words()}")

    def turn(self) -> Cost:
        """Let all through and wait until they are at their next gates."""
        wall_s, cpu_s = time.perf_counter(), tree_cpu_s(self._process.pid)
        self.go()
        self.arrive()
        return Cost(wall_s=time.perf_counter() - wall_s, cpu_s=tree_cpu_s(self._process.pid) - cpu_s)

    def go(self) -> None:
        """Let all through."""
        for line in self._lines:
            line.sendall(_HERE)

    def finish(self) -> None:
        """Let all through to their end, which is to be a good one."""
        self.go()
        if self._process.wait(LIMIT_S):
            raise RuntimeError(f"it ended with {self._process.returncode}; {self._words()}")

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _words(self) -> str:
        return f"its last words: {(self._place / 'log').read_text()[-3000:]}"
