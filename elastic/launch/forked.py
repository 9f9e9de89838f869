"""Forked: the agent's handle on a worker that its zygote forked, with what torch and we use of subprocess.Popen."""

from __future__ import annotations

import os
import select
import subprocess


class ForkedWorker:
    """A child of this process that it did not start itself. For one thread."""

    def __init__(self, pid: int, *, command: tuple[str, ...]) -> None:
        self.pid, self.args = pid, command
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self._reap(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired after so many seconds."""
        if self.returncode is None and timeout is not None:
            pidfd = os.pidfd_open(self.pid)
            try:
                if not select.select([pidfd], [], [], max(0.0, timeout))[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout)
            finally:
                os.close(pidfd)
        if self.returncode is None:
            self._reap(0)
        assert self.returncode is not None  # waited for
        return self.returncode

    def _reap(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def path_of(process: object) -> str:
    """How a worker was started, as events say it."""
    return "refork" if isinstance(process, ForkedWorker) else "reexec"
