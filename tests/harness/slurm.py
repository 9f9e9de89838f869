"""A Slurm cluster on this machine: munged, slurmctld and four slurmd under one name, each with a port. Root only."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.local.etcd import free_port

NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=20
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
{nodes}
PartitionName=low Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=high Nodes=n[1-4] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def require() -> None:
    """Skip where Slurm is not installed."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None and not Path("/usr/sbin", name).exists()]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)")


class Slurm:
    """A context manager that leaves nothing running. `directory` must be short: it holds a socket."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environ = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self._cancel_all()
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()

    def say(self, *command: str) -> str:
        """A command of Slurm's, and what it says."""
        done = subprocess.run(command, capture_output=True, text=True, env=self.environ, timeout=60, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{self.logs()}"
        return done.stdout.strip()

    def submit(self, script: str | Path, *arguments: str, options: Sequence[str] = (), **environ: str) -> str:
        """The new job's number."""
        exported = ",".join(["ALL", *environ])
        command = ["sbatch", "--parsable", f"--export={exported}", *options, str(script), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**self.environ, **environ}, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> tuple[str, int]:
        """RUNNING, PENDING, COMPLETED, ..., and how often it was started again."""
        told = self.say("scontrol", "-o", "show", "job", job)
        values = dict(item.partition("=")[::2] for item in told.split())
        return values["JobState"], int(values["Restarts"])

    def wait_state(self, job: str, wanted: str, *, limit_s: float, restarts: int = 0) -> None:
        """Until the job is in this state, after at least so many restarts."""
        deadline_s = SYSTEM_CLOCK.monotonic_s() + limit_s
        while (found := self.state(job))[0] != wanted or found[1] < restarts:
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s, (
                f"job {job} is {found}, not {wanted}/{restarts}: {self.logs()}"
            )
            SYSTEM_CLOCK.sleep(0.2)

    def logs(self) -> str:
        """The ends of all that was logged."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in self._directory.glob("*.log"))

    def _start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self._directory / name).mkdir()
        key = self._directory / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        host = socket.gethostname()
        nodes = "\n".join(
            f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname={host} Port={free_port()} CPUs=1 RealMemory=1000"
            for node in NODES
        )
        text = _CONF.format(host=host, port=free_port(), directory=self._directory, nodes=nodes)
        Path(self.environ["SLURM_CONF"]).write_text(text)
        munge = ("--foreground", "--force", f"--key-file={key}", f"--socket={self._directory}/munge.socket")
        places = (f"--pid-file={self._directory}/munge.pid", f"--log-file={self._directory}/munge.log")
        self._daemon("munged", *munge, *places, f"--seed-file={self._directory}/munge.seed")
        self._daemon("slurmctld", "-D", "-c")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        deadline_s = SYSTEM_CLOCK.monotonic_s() + 40
        while (idle := self._idle()) != len(NODES):
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s, f"{idle} nodes are idle: {self.logs()}"
            SYSTEM_CLOCK.sleep(0.3)

    def _cancel_all(self) -> None:
        """Steps outlive their daemons: all jobs must end first."""
        deadline_s = SYSTEM_CLOCK.monotonic_s() + 40
        while (jobs := self.say("squeue", "-h", "-o", "%i").split()) and SYSTEM_CLOCK.monotonic_s() < deadline_s:
            self.say("scancel", "-f", *jobs)
            SYSTEM_CLOCK.sleep(0.5)

    def _idle(self) -> int:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "low", "-t", "idle", "-o", "%N"],
            capture_output=True,
            text=True,
            env=self.environ,
            check=False,
        )
        return len(done.stdout.split()) if done.returncode == 0 else 0

    def _daemon(self, name: str, *options: str) -> None:
        program = shutil.which(name) or f"/usr/sbin/{name}"
        with (self._directory / f"{name}.out.log").open("ab") as out:
            self._daemons.append(
                subprocess.Popen([program, *options], env=self.environ, stdout=out, stderr=out, start_new_session=True)
            )


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Slurm]:
    """The whole cluster, ready for jobs."""
    require()
    with Slurm(directory) as slurm:
        yield slurm
