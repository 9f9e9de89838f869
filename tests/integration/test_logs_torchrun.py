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


def test_a_lost_node_of_four_can_be_read_in_one_place(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """All four nodes' lines in order of time; who was lost, and how the others went on, once each."""
    names = ("a", "b", "c", "d")
    with cluster(tmp_path, etcd.endpoint, steps=100_000) as run:
        for name in names:
            run.start(name)
        run.wait_step(30, world_size=4)
        since = run.now()
        run.nodes["c"].kill()
        run.wait_step(40, world_size=3, since=since)
        for name in ("a", "b", "d"):
            run.nodes[name].process.terminate()
        assert {run.wait_exit(name) for name in ("a", "b", "d")} == {75}
    capsys.readouterr()
    assert main(["logs", str(run.save_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"[0-9:.T+-]+ \[[abcd]( r[\d,-]+)?\] ", line) for line in lines), lines
    assert {re.search(r"\[(\w)", line)[1] for line in lines} == set(names)
    times = [line.split()[0] for line in lines]
    assert times == sorted(times)
    whole = "\n".join(lines)
    agreed = [line for line in lines if re.search(r"world 3 on a, b, d \(.*\bc\b", line)]  # with the reason
    assert sorted(re.search(r"\[(\w)", line)[1] for line in agreed) == ["a", "b", "d"]
    after = whole.partition("world 3 on a, b, d")[2]
    assert not re.search(r"\[c", after), "the dead say nothing"
    assert len(set(re.findall(r"step (\d+) .*world 3", after))) > 0
    assert "Traceback" not in whole


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
