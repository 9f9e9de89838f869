"""`elastic demo` that is told to end leaves nothing running: neither etcd nor a node nor a worker."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.local.node import ROOT, descendants

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def command_of(pid: int) -> bytes:
    """Its command line; of one that has ended nothing, whether or not its parent has noticed."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT], ids=lambda each: each.name
)
def test_a_signal_ends_all_that_it_started(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "elastic", "demo", "--directory", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if " step " in line:
                break
        started = descendants(demo.pid)
        commands = [command_of(pid) for pid in started]
        assert sum(b"torchrun" in command for command in commands) >= 3
        assert any(b"etcd" in command.split(b"\0")[0] for command in commands)
        demo.send_signal(number)
        demo.send_signal(number)  # who is impatient must not do harm
        demo.stdout.read()
        demo.wait(60)
    assert demo.returncode == (130 if number is signal.SIGINT else 128 + number)
    deadline_s = SYSTEM_CLOCK.monotonic_s() + 10
    while left := [pid for pid in started if command_of(pid)]:
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, f"still there: {left}"
        SYSTEM_CLOCK.sleep(0.1)
