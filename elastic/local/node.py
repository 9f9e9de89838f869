"""One node of a local cluster: a torchrun agent and its workers, started with the literal command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Where `elastic/worker.py` is relative to."""


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """How to start a node. `options` come before the script, `arguments` after it."""

    name: str
    environ: Mapping[str, str]
    log: Path
    options: Sequence[str] = ()
    arguments: Sequence[str] = ()
    script: str = "elastic/worker.py"
    nnodes: str = "1:4"
    cwd: Path = ROOT
    prefix: Sequence[str] = ()
    """A command that runs the node's in its own place, by exec: a network namespace, another clock."""


class Node:
    """A started node. Only pids that descend from it are ever signalled."""

    def __init__(self, spec: NodeSpec) -> None:
        self.name = spec.name
        self.log = spec.log
        torchrun = Path(sys.executable).with_name("torchrun")
        command = [
            *spec.prefix,
            str(torchrun),
            f"--nnodes={spec.nnodes}",
            "--rdzv_backend=etcd",
            *spec.options,
            spec.script,
            *spec.arguments,
        ]
        environ = {**os.environ, **spec.environ, "ELASTIC_NODE": spec.name}
        with spec.log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=spec.cwd, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The agent's."""
        return self.process.pid

    def workers(self) -> list[int]:
        """The pids of the workers that run now."""
        agent = _command(self.pid)
        return [pid for pid in children(self.pid) if _is_worker(_command(pid), agent=agent)]

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent alone."""
        self.process.send_signal(number)

    def kill(self) -> tuple[int, list[int]]:
        """SIGKILL the node as a whole, as a lost machine would: agent first, then its workers. Returns their pids."""
        workers, everything = self.workers(), descendants(self.pid)
        self.process.kill()
        for pid in everything:
            _kill(pid)
        self.process.wait()
        return self.pid, workers

    def wait(self, *, limit_s: float) -> int:
        """The agent's exit code. Raises subprocess.TimeoutExpired."""
        return self.process.wait(limit_s)

    def end(self) -> None:
        """Leave nothing running, whatever state it is in."""
        if self.process.poll() is None:
            self.kill()


def children(pid: int) -> list[int]:
    """Direct children of a process, whichever of its threads started them, from /proc."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


_HELPERS = (b"elastic.rendezvous.lease_keeper", b"elastic/launch/zygote.py")


def _command(pid: int) -> bytes:
    """Its command line; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_worker(command: bytes, *, agent: bytes) -> bool:
    """Whether a child of an agent is one: not its lease keeper or zygote, nor one that bears the agent's own command
    line still, since it has yet to become what it will be."""
    return command not in (b"", agent) and not any(name in command for name in _HELPERS)


def descendants(pid: int) -> list[int]:
    """All processes below one, parents first."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it died of its agent's death already
