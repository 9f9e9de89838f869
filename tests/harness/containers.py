"""Containers for tests: the compose file of deploy/compose under a project of its own, and what can befall a node."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE, STAND_INS = "localhost/elastic:dev", "localhost/stand-ins:dev"
_ENGINE = str(ROOT / "docker" / "engine.sh")


def engine(*words: str, check: bool = True, **environ: str) -> str:
    """What a container tool says: engine("podman", "ps")."""
    done = subprocess.run(
        [_ENGINE, *words], capture_output=True, text=True, env={**os.environ, **environ}, timeout=300, check=False
    )
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def require(*images: str) -> None:
    """Skip where there is no podman, or an image has not been made."""
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("needs root and podman (Debian: apt-get install podman buildah runc netavark aardvark-dns)")
    for image in images:
        found = subprocess.run([_ENGINE, "podman", "image", "exists", image], capture_output=True, check=False)
        if found.returncode != 0:
            pytest.skip(f"there is no image {image}: make image stand-ins")


def compose_tool() -> str:
    """podman-compose: the one beside this Python, or on PATH."""
    import sys

    beside = Path(sys.executable).with_name("podman-compose")
    found = str(beside) if beside.exists() else shutil.which("podman-compose")
    if found is None:
        pytest.skip("needs podman-compose: pip install podman-compose")
    return found


def events_in(volume: Path) -> Path:
    """The run's events in a volume that nodes write to: there before anybody follows them, and the nodes' own."""
    path = volume / "events"
    path.mkdir(exist_ok=True)
    os.chown(path, 10001, 0)
    return path


class Composed:
    """A project of the compose file, without Grafana, which only its own image brings."""

    def __init__(self, project: str, **environ: str) -> None:
        self._project = project
        self._environ = {
            "ELASTIC_IMAGE": IMAGE,
            "ETCD_IMAGE": STAND_INS,
            "PROMETHEUS_IMAGE": STAND_INS,
            "ALERTMANAGER_IMAGE": STAND_INS,
            **environ,
        }
        self._tool = compose_tool()

    def compose(self, *words: str, check: bool = True) -> str:
        file = str(ROOT / "deploy" / "compose" / "compose.yaml")
        return engine(self._tool, "-p", self._project, "-f", file, *words, check=check, **self._environ)

    def up(self, *services: str) -> None:
        self.compose("up", "-d", "--no-build", *services)

    def down(self) -> None:
        self.compose("down", "-v", "-t", "5", check=False)

    def podman(self, *words: str) -> str:
        return engine("podman", *words)

    def name(self, service: str) -> str:
        return f"{self._project}_{service}_1"

    def volume(self, name: str) -> Path:
        """Where a named volume lies on this machine."""
        return Path(self.podman("volume", "inspect", "-f", "{{.Mountpoint}}", f"{self._project}_{name}").strip())

    def inspect(self, service: str) -> Mapping[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.podman("container", "inspect", self.name(service)))
        return found[0]

    @contextlib.contextmanager
    def cut(self, service: str) -> Iterator[None]:
        """Nothing comes in or goes out, silently, until the end of the block."""
        self._rules(service, "-A")
        try:
            yield
        finally:
            self._rules(service, "-D")

    def dropped(self, service: str) -> int:
        """Packets that a cut has swallowed so far: how a test shows that it was one."""
        said = self._inside(service, "iptables", "-nvxL")
        return sum(int(line.split()[0]) for line in said.splitlines() if " DROP " in line)

    @contextlib.contextmanager
    def frozen(self, service: str) -> Iterator[None]:
        """All processes of the container stand still until the end of the block."""
        self.podman("pause", self.name(service))
        try:
            yield
        finally:
            self.podman("unpause", self.name(service))

    def _rules(self, service: str, verb: str) -> None:
        for chain in ("INPUT", "OUTPUT"):
            self._inside(service, "iptables", verb, chain, "!", "-i" if chain == "INPUT" else "-o", "lo", "-j", "DROP")

    def _inside(self, service: str, *command: str) -> str:
        pid = str(self.inspect(service)["State"]["Pid"])
        done = subprocess.run(["nsenter", "-t", pid, "-n", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout
