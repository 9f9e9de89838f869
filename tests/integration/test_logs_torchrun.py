"""`elastic logs` of real runs: from what the agents keep, and from where torchrun's --log-dir says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastic.cli import main
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def test_lines_of_all_nodes_from_what_their_agents_keep(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=20) as run:
        for name in ("a", "b"):
            run.start(name)
        assert [run.wait_exit(name, limit_s=60) for name in ("a", "b")] == [0, 0]
    capsys.readouterr()
    assert main(["logs", str(run.save_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("run finished at step 20, 440 samples") for line in lines) == 1
    assert len(lines) < 40, "quiet: of two nodes and 20 steps"
    assert {re.match(r"\S+ \[(\w+)", line)[1] for line in lines} == {"a", "b"}
    times = [line.split()[0] for line in lines]
    assert times == sorted(times)


def test_lines_of_workers_have_their_nodes_directory_and_rank(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=20) as run:
        for name in ("a", "b"):
            run.start(name, options=("--log-dir", str(tmp_path / "logs" / name), "--redirects", "3"))
        assert [run.wait_exit(name, limit_s=60) for name in ("a", "b")] == [0, 0]
    capsys.readouterr()
    assert main(["logs", str(run.save_path), f"--log-dir={tmp_path / 'logs'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if re.match(r"\[\S+ r0\] .*run finished at step 20", line)]
    assert len(told) == 1, "rank 0 told it, and it is shown once"
