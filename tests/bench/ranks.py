"""Ranks of one gloo group as processes on this machine, for benchmarks: start them all, wait for all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from elastic.local.etcd import free_port
from elastic.local.node import ROOT

LIMIT_S = 300.0


def run_ranks(command: Sequence[str], *, size: int, store_file: Path | None = None) -> list[str]:
    """The output of each rank of a world. Raises where one of them fails or takes longer than LIMIT_S."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        **({} if store_file is None else {"STORE_FILE": str(store_file)}),
    }
    processes = [
        subprocess.Popen(command, cwd=ROOT, env={**environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    try:
        outs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [process.returncode for process in processes if process.returncode]
    if failed:
        raise RuntimeError(f"{' '.join(command)} ended with exit codes {failed}")
    return outs
