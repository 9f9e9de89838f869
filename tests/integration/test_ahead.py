"""A node that comes to others at work builds its job before they make room for it: real agents, a slow build."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from elastic.events import Cause, Notice, Record, RoundOpened, StepCommitted, WorkerStarted
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.slow_build import builds
from tests.harness.survival import cluster, durable
from tests.harness.until import until
from tests.integration.test_fsdp_staying import FSDP2
from tests.integration.test_rejoin import end, kinds, pids, recovered, tiers

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

BUILD_S = 5.0
MOST_PAUSE_S = 1.5
"""Of those at work; far from the time that a build takes."""


def slow(directory: Path, etcd: EtcdServer, *, job: str = "job", nnodes: str = "1:4", **more: str) -> Cluster:
    environ = {
        "ELASTIC__JOB__TARGET": f"tests.harness.slow_build:{job}",
        "TESTS_BUILT": str(directory / "built"),
        **more,
    }
    return cluster(directory, etcd.endpoint, steps=100_000, nnodes=nnodes, **environ)


def longest_pause_s(records: list[Record], node: str) -> float:
    """Between two steps of a node."""
    times = [r.time_s for r in records if isinstance(r.event, StepCommitted) and r.node == node]
    return max(after - before for before, after in pairwise(times))


def joins(run: Cluster, *, world_size: int, name: str = "c", **environ: str) -> int:
    """Have another node join; returns from which record on."""
    at = run.now()
    run.start(name, TESTS_BUILD_S=str(BUILD_S), **environ)
    first = run.wait_step(1, world_size=world_size, since=at)
    run.wait_step(first.event.iteration + 20, world_size=world_size, since=at)  # type: ignore[union-attr]
    return at


@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
def test_nobody_waits_for_a_newcomers_build(tmp_path: Path, etcd: EtcdServer, strategy: str) -> None:
    more = FSDP2 if strategy == "fsdp2" else {}
    with slow(tmp_path, etcd, **more) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(1, world_size=2)
        run.wait(durable, what="a save", limit_s=60)
        kept = pids(run, "a", "b")
        at = joins(run, world_size=3)
        after = run.follower.records[at:]
        (built,) = [each for each in builds(tmp_path / "built") if each["node"] == "c"]
        opened = min(r.time_s for r in after if isinstance(r.event, RoundOpened) and r.event.cause is Cause.NODE_JOINED)
        assert built["at_s"] < opened, "before the others heard of it"
        assert pids(run, "a", "b", "c") == [*kept, [built["pid"]]], "one process each, all the time"
        pauses_s = [longest_pause_s(after, node) for node in ("a", "b")]
        assert max(pauses_s) < MOST_PAUSE_S, pauses_s
        assert recovered(run, since=at).lost_steps == 0
        end(run, world_size=3, since=at)


def begun_by(run: Cluster, node: str, *, since: int) -> list[int]:
    """Pids of the workers that a node had in its generations from there on."""
    return [r.event.pid for r in run.follower.records[since:] if isinstance(r.event, WorkerStarted) and r.node == node]


@pytest.mark.parametrize(("limit_s", "built"), [("0", False), ("1", True)])
def test_where_it_is_not_built_before_all_wait(tmp_path: Path, etcd: EtcdServer, limit_s: str, built: bool) -> None:
    """Switched off; and with a limit that this build is longer than."""
    with slow(tmp_path, etcd, ELASTIC__LAUNCH__BUILD_AHEAD_S=limit_s) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        kept = pids(run, "a", "b")
        at = joins(run, world_size=3)
        told = "the job is not built within 1 s; others will wait for it"
        assert (told in run.nodes["c"].log.read_text()) == built
        pause_s = longest_pause_s(run.follower.records[at:], "a")
        assert BUILD_S - 2.5 < pause_s < BUILD_S + 4, "the build was begun before, so that it takes a little less"
        assert [each["pid"] for each in builds(tmp_path / "built") if each["node"] == "c"] == begun_by(
            run, "c", since=at
        )
        assert pids(run, "a", "b") == kept
        end(run, world_size=3, since=at)


@pytest.mark.parametrize(("job", "why"), [("asks_rank", "its world's rank"), ("reads_rank", "KeyError: 'RANK'")])
def test_a_job_that_must_know_its_place_is_built_when_it_has_one(
    tmp_path: Path, etcd: EtcdServer, job: str, why: str
) -> None:
    with slow(tmp_path, etcd, job=job) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        kept = pids(run, "a", "b")
        at = joins(run, world_size=3)
        told = [r.event.text for r in run.follower.records[at:] if isinstance(r.event, Notice) and r.node == "c"]
        assert [text for text in told if "only once there is a place for it" in text and why in text], told
        assert [each["pid"] for each in builds(tmp_path / "built") if each["node"] == "c"] == begun_by(
            run, "c", since=at
        )
        assert pids(run, "a", "b") == kept
        end(run, world_size=3, since=at)


def test_a_spare_is_built_long_before_it_is_needed(tmp_path: Path, etcd: EtcdServer) -> None:
    built = tmp_path / "built"
    with slow(tmp_path, etcd, nnodes="1:2") as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        run.start("c", TESTS_BUILD_S=str(BUILD_S))
        until(lambda: "asking to be let in" in run.nodes["c"].log.read_text(), what="word that it asks", limit_s=60)
        (spare,), at = run.nodes["c"].workers(), run.now()
        run.wait_step(run.wait_step(1).event.iteration + 50, world_size=2, since=at)  # type: ignore[union-attr]
        run.nodes["a"].kill()
        run.wait_step(1, world_size=2, since=at, after=1)
        after = run.follower.records[at:]
        assert begun_by(run, "c", since=at) == [spare]
        assert [each["pid"] for each in builds(built) if each["node"] == "c"] == [spare]
        assert longest_pause_s(after, "b") < BUILD_S - 1
        end(run, world_size=2, since=at)


@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
@pytest.mark.parametrize("saved", [True, False])
def test_all_start_again_beside_a_world_that_looks_at_work(
    tmp_path: Path, etcd: EtcdServer, strategy: str, saved: bool
) -> None:
    """Who built beside others that are gone meanwhile begins with one that comes: from the disk, or nothing."""
    more = FSDP2 if strategy == "fsdp2" else {}
    if not saved:
        more = more | {"ELASTIC__CHECKPOINT__ENABLE_SAVE": "false", "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": "0"}
    with slow(tmp_path, etcd, nnodes="2:4", **more) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(1, world_size=2)
        if saved:
            run.wait(durable, what="a save", limit_s=60)
        run.start("c", TESTS_BUILD_S="10")
        until(
            lambda: "built before others make room" in run.nodes["c"].log.read_text(),
            what="word that it builds",
            limit_s=60,
        )
        for name in ("a", "b"):
            run.nodes[name].kill()
        at = run.now()
        run.start("d")
        run.wait_step(3, world_size=2, since=at)
        after = run.follower.records[at:]
        assert set(tiers(after)) == {"disk" if saved else "none"}
        assert "asking to be let in" in run.nodes["c"].log.read_text()
        assert [each["pid"] for each in builds(tmp_path / "built") if each["node"] == "c"] == begun_by(
            run, "c", since=at
        )
        assert kinds(after, WorkerStarted) == 2
        if saved:
            end(run, world_size=2, since=at)


def test_a_node_that_is_to_leave_while_it_builds_disturbs_nobody(tmp_path: Path, etcd: EtcdServer) -> None:
    with slow(tmp_path, etcd) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        at = run.now()
        node = run.start("c", TESTS_BUILD_S="600")
        until(lambda: bool(node.workers()), what="a worker", limit_s=60)
        os.kill(node.pid, signal.SIGTERM)
        assert run.wait_exit("c", limit_s=30) == 75
        reached = run.wait_step(1, since=at).event.iteration  # type: ignore[union-attr]
        run.wait_step(reached + 20, world_size=2, since=at)
        assert not kinds(run.follower.records[at:], RoundOpened)
        end(run, world_size=2, since=at)


def test_a_node_that_lacks_the_job_goes_and_spares_the_others(tmp_path: Path, etcd: EtcdServer) -> None:
    with slow(tmp_path, etcd) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        at = run.now()
        node = run.start("c", ELASTIC__JOB__TARGET="tests.harness.not_here:job")
        assert run.wait_exit("c", limit_s=60) == 64
        assert "there is no module 'tests.harness.not_here'" in node.log.read_text().rstrip().splitlines()[-1]
        assert not kinds(run.follower.records[at:], RoundOpened)
        end(run, world_size=2, since=at)
