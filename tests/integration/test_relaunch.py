"""The same save path under another --rdzv-id: goes on where the last launch ended, is refused while that one works."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.checkpoint.launches import SILENT_S, read_mark
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import ExitCode
from elastic.events import AgentStarted, Notice, StepCommitted
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from elastic.local.node import descendants
from tests.harness.survival import cluster, durable, exact_account

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def steps(run: Cluster) -> list[int]:
    run.follower.read()
    return sorted({r.event.iteration for r in run.follower.records if isinstance(r.event, StepCommitted)})


def job(directory: Path, number: int) -> str:
    """An id of this test's own: etcd serves others too."""
    return f"{directory.name}-{number}"


def launch(directory: Path, endpoint: str, number: int, *, nodes: tuple[str, ...] = ("a", "b")) -> Cluster:
    run = cluster(directory, endpoint, steps=100_000, options=(f"--rdzv-id={job(directory, number)}",), nnodes="1:4")
    for node in nodes:
        run.start(node)
    return run


def leave(run: Cluster) -> None:
    for node in run.nodes.values():
        node.process.terminate()
    assert {run.wait_exit(name) for name in run.nodes} == {ExitCode.PREEMPTED}


def test_ended_in_order_then_killed_then_in_another_etcd_it_goes_on_each_time(tmp_path: Path, etcd: EtcdServer) -> None:
    with launch(tmp_path, etcd.endpoint, 1) as first:
        first.wait_step(30, world_size=2)
        leave(first)
        done = steps(first)[-1]
    assert read_mark(str(tmp_path / "checkpoint"), storage=PosixStorage()).over
    with launch(tmp_path, etcd.endpoint, 2) as second:
        since = second.now()
        second.wait_step(done + 1, world_size=2, since=since, limit_s=SILENT_S - 5)  # nobody waits for one that ended
        second.wait_step(done + 30, world_size=2, since=since)
        for node in second.nodes.values():
            node.kill()
    with EtcdServer(tmp_path / "another") as another, launch(tmp_path, another.endpoint, 3) as third:
        since = third.now()
        third.wait_step(done + 60, world_size=2, since=since, limit_s=SILENT_S + 60)
        leave(third)
        assert any(
            isinstance(r.event, Notice) and f"{job(tmp_path, 3)!r} goes on" in r.event.text
            for r in third.follower.records
        )
        runs = {r.event.job_id for r in third.follower.records if isinstance(r.event, AgentStarted)}
        assert runs == {job(tmp_path, 1)}, "a run keeps its name"
        assert steps(third) == list(range(1, steps(third)[-1] + 1))
        exact_account(third)


@pytest.mark.parametrize("where", ["same", "another"])
def test_of_two_at_once_the_second_is_refused_and_the_first_is_not_disturbed(
    where: str, tmp_path: Path, etcd: EtcdServer
) -> None:
    """Also where each has an etcd of its own, so that only the save path can tell them of each other."""
    with EtcdServer(tmp_path / "another") as another, launch(tmp_path, etcd.endpoint, 1) as first:
        first.wait_step(10, world_size=2)
        other = etcd if where == "same" else another
        with launch(tmp_path, other.endpoint, 2, nodes=("c",)) as second:
            assert second.wait_exit("c", limit_s=3 * SILENT_S) == ExitCode.USAGE
            said = second.nodes["c"].log.read_text()
        assert f"in use: launch {job(tmp_path, 1)!r} is at work" in said
        assert f"--rdzv-id={job(tmp_path, 1)}" in said
        first.wait_step(steps(first)[-1] + 10, world_size=2)
        assert {r.generation for r in first.follower.records if isinstance(r.event, StepCommitted)} == {1}
        leave(first)
        exact_account(first)


def test_who_was_asleep_while_another_took_over_commits_nothing_and_ends(tmp_path: Path, etcd: EtcdServer) -> None:
    """Its own etcd would let it: only the save path knows."""
    with EtcdServer(tmp_path / "another") as another, launch(tmp_path, etcd.endpoint, 1, nodes=("a",)) as first:
        first.wait(durable, what="a save", limit_s=60)
        sleepers = [first.nodes["a"].pid, *descendants(first.nodes["a"].pid)]
        for pid in sleepers:
            os.kill(pid, signal.SIGSTOP)
        with launch(tmp_path, another.endpoint, 2, nodes=("b",)) as second:
            since = second.now()
            second.wait(
                lambda r: durable(r) and r.node == "b", what="a save of the other", limit_s=SILENT_S + 60, since=since
            )
            before = second.now()
            for pid in sleepers:
                os.kill(pid, signal.SIGCONT)
            assert first.wait_exit("a", limit_s=30) == ExitCode.FENCED
            assert "in the hands of launch" in first.nodes["a"].log.read_text()
            second.wait(lambda r: durable(r) and r.node == "b", what="one more", limit_s=60, since=before)
            leave(second)
            second.now()
            woken = second.follower.records[before:]
            assert not [r for r in woken if r.node == "a" and durable(r)]
            saved = max(r.event.iteration for r in second.follower.records if r.node == "b" and durable(r))
            tracker = tmp_path / "checkpoint" / "latest_checkpointed_iteration.txt"
            assert int(tracker.read_text()) == saved


def test_two_jobs_of_one_name_with_an_etcd_each_do_not_both_train(tmp_path: Path, etcd: EtcdServer) -> None:
    with EtcdServer(tmp_path / "another") as another, launch(tmp_path, etcd.endpoint, 1) as first:
        first.wait_step(30, world_size=2)
        with launch(tmp_path, another.endpoint, 1, nodes=("c",)) as second:
            assert second.wait_exit("c", limit_s=60) == ExitCode.USAGE
            words = (tmp_path / "c.log").read_text()
            assert "Name the same endpoints on all nodes" in words
        ended = first.now()
        first.wait_step(steps(first)[-1] + 30, world_size=2, since=ended)
        leave(first)
