"""Runs a program as a fork of a zygote and as a new Python, with all that can be seen of it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic.clock import SYSTEM_CLOCK
from elastic.launch.forked import ForkedWorker
from elastic.launch.processes import WakePipe
from elastic.launch.ready import ReadyWorkers

LIMIT_S = 60.0


@dataclass(frozen=True)
class Seen:
    """What somebody saw who started it."""

    exit_code: int
    out: str
    err: str


class BothWays:
    """Programs in one directory, with the same arguments, variables and input either way."""

    def __init__(self, ready: ReadyWorkers, directory: Path) -> None:
        self.ready, self.directory = ready, directory
        self.environ: dict[str, str] = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.started: list[ForkedWorker] = []

    def script(self, text: str, name: str = "program.py") -> list[str]:
        """The command of a script."""
        path = self.directory / name
        path.write_text(text)
        return [sys.executable, "-u", str(path)]

    def forked(self, command: list[str], **variables: str) -> Seen:
        """As a fork."""

        def start(files: list[int], environ: Mapping[str, str]) -> int:
            worker = self.fork(command, environ, files)
            return worker.wait(LIMIT_S)

        return self._seen(start, variables)

    def cold(self, command: list[str], **variables: str) -> Seen:
        """As torchrun starts it."""

        def start(files: list[int], environ: Mapping[str, str]) -> int:
            stdin, stdout, stderr = files
            process = subprocess.Popen(
                command, env=environ, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
            return process.wait(LIMIT_S)

        return self._seen(start, variables)

    def fork(self, command: list[str], environ: Mapping[str, str] | None = None, files: list[int] = [0, 1, 2]):  # noqa: B006
        """A worker that runs."""
        worker = self.ready.fork(command, self.environ if environ is None else environ, files)
        assert worker is not None, "it was not forked"
        self.started.append(worker)
        return worker

    def _seen(self, start: Callable[[list[int], Mapping[str, str]], int], variables: Mapping[str, str]) -> Seen:
        (self.directory / "input").write_text("one line\nanother\n")
        out, err = self.directory / "out", self.directory / "err"
        with (self.directory / "input").open() as source, out.open("w") as stdout, err.open("w") as stderr:
            files = [source.fileno(), stdout.fileno(), stderr.fileno()]
            exit_code = start(files, {**self.environ, **variables})
        return Seen(exit_code, out.read_bytes().decode("latin-1"), err.read_text())


class Ready(ReadyWorkers):
    """With what it says kept."""

    def __init__(self, name="", **more):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **more}
        super().__init__(module=name, command_bytes=300, environ=environ, clock=SYSTEM_CLOCK)
        self.notices: list[str] = []
        self.wake = WakePipe()
        self.attach(emit=lambda event: self.notices.append(event.text), wake=self.wake, interrupted=lambda: False)

    @property
    def zygote(self):
        return self._zygote.process.pid

    def stop(self):
        super().stop()
        self.wake.close()


class Pipes:
    """Standard files of a worker that the test talks to."""

    def __init__(self):
        self.child_in, self.write = os.pipe()
        self.read, self.child_out = os.pipe()
        self.files = [self.child_in, self.child_out, 2]
        self.out = os.fdopen(self.read, "r")

    def started(self):
        """The worker has its own by now."""
        os.close(self.child_in)
        os.close(self.child_out)

    def close(self):
        os.close(self.write)
        self.out.close()
