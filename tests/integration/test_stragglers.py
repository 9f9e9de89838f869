"""A worker that is really slower than the others is named: by an event, and by its node's exporter alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.events import Straggles, WorldFormed
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, leave_all
from tests.harness.until import until
from tests.integration.test_job_wide_agents import scraped

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

METRIC = ("elastic_worker_straggles", ("local_rank", "0"))


def shown(run: Cluster) -> dict[str, float]:
    """By node. Not there before the first word about it."""
    return {node: samples.get(METRIC, 0.0) for node, samples in scraped(run).items()}


def told(run: Cluster, *, slow: bool, since: int) -> tuple[str, Straggles]:
    found = run.wait(
        lambda r: isinstance(r.event, Straggles) and r.event.slow is slow, what="a word", limit_s=60, since=since
    )
    assert isinstance(found.event, Straggles)
    return found.node, found.event


def test_the_slow_one_of_three_is_named_while_it_is_slow(tmp_path: Path, etcd: EtcdServer) -> None:
    lag = tmp_path / "lag"
    with cluster(
        tmp_path, etcd.endpoint, steps=100_000, ELASTIC__JOB__TARGET="tests.harness.small_job:lags", TESTS_LAG=str(lag)
    ) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(30, world_size=3)
        world = [r for r in run.follower.records if isinstance(r.event, WorldFormed)]
        (leader,) = {r.node for r in world if r.event.leader and r.generation == world[-1].generation}  # type: ignore[union-attr]
        assert shown(run) == {"a": 0, "b": 0, "c": 0}
        for slow in (leader, min({"a", "b", "c"} - {leader})):
            at, file = run.now(), tmp_path / f"lag-{slow}"
            file.touch()
            node, event = told(run, slow=True, since=at)
            assert node == slow
            assert event.own_s > 0.1 > event.others_s
            expected = {name: float(name == slow) for name in run.nodes}
            until(lambda expected=expected: shown(run) == expected, what="the gauge of a slow worker", limit_s=10)  # type: ignore[misc]
            at = run.now()
            file.unlink()
            assert told(run, slow=False, since=at)[0] == slow
            until(lambda: not any(shown(run).values()), what="the gauge of none", limit_s=10)
        leave_all(run)
