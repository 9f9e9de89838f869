"""Cuts between nodes that live in network namespaces: one side trains on, the other never publishes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.events import (
    CheckpointFailed,
    Fencing,
    NodesAwaited,
    Record,
    RoundOpened,
    StepCommitted,
    WorldFormed,
    read_records,
)
from elastic.local.cluster import Cluster
from tests.harness.netns import Net, etcd_in, require_netns
from tests.harness.survival import cluster, exact_account

pytestmark = pytest.mark.integration

STEPS = 100_000


@pytest.fixture
def net() -> Iterator[Net]:
    require_netns()
    with Net("a", "b", "c", "d", "etcd") as net:
        yield net


@pytest.fixture
def endpoint(net: Net, tmp_path: Path) -> Iterator[str]:
    with etcd_in(net, "etcd", tmp_path / "etcd") as endpoint:
        yield endpoint


def start(run: Cluster, net: Net, names: str) -> None:
    for name in names:
        run.start(name, prefix=net.prefix(name))
    run.wait_step(40, world_size=len(names), limit_s=180)


def generations(run: Cluster) -> set[int]:
    return {r.generation for r in read_records(run.save_path / "events") if isinstance(r.event, StepCommitted)}


def formed_since(run: Cluster, since: int) -> dict[int, tuple[str, ...]]:
    run.now()
    records = run.follower.records[since:]
    return {r.generation: r.event.nodes for r in records if isinstance(r.event, WorldFormed)}


def assert_one_side_goes_on(run: Cluster, *, since: int, sides: list[set[str]], size: int) -> Record:
    """A round within 10 s, a world of one side only, at most 3 generations until it trains."""
    opened = run.wait(lambda r: isinstance(r.event, RoundOpened), what="a round", limit_s=10, since=since)
    step = run.wait_step(1, world_size=size, limit_s=120, since=since)
    worlds = formed_since(run, since)
    assert opened.generation < step.generation
    assert len(worlds) <= 3, worlds
    assert set(worlds[step.generation]) in sides
    return step


@pytest.mark.exhaustive
def test_half_cut_with_etcd_in_reach_of_all(tmp_path: Path, net: Net, endpoint: str) -> None:
    with cluster(tmp_path, endpoint, steps=STEPS) as run:
        start(run, net, "abcd")
        before, cut_s = run.now(), time.time()
        net.cut("ab", "cd")
        assert net.dropped("a", "d")
        assert not net.dropped("a", "etcd")
        step = assert_one_side_goes_on(run, since=before, sides=[{"a", "b"}, {"c", "d"}], size=2)
        assert step.time_s - cut_s <= 10, "one side trains within 10 s"
        run.wait_step(200, world_size=2, since=before)
        assert len(formed_since(run, before)) <= 3, "who cannot reach the others does not disturb them"


@pytest.mark.exhaustive
@pytest.mark.parametrize("two_ways", [False, True])
def test_a_cut_between_two_of_three(tmp_path: Path, net: Net, endpoint: str, two_ways: bool) -> None:
    with cluster(tmp_path, endpoint, steps=STEPS) as run:
        start(run, net, "abc")
        before = run.now()
        net.cut_one_way("a", "c")
        if two_ways:
            net.cut_one_way("c", "a")
        assert net.dropped("a", "c")
        assert net.dropped("c", "a") == two_ways
        assert_one_side_goes_on(run, since=before, sides=[{"a", "b"}, {"b", "c"}], size=2)


@pytest.mark.exhaustive
def test_a_node_cut_off_from_all_stops_its_workers_and_comes_back(tmp_path: Path, net: Net, endpoint: str) -> None:
    with cluster(tmp_path, endpoint, steps=STEPS, ELASTIC__RENDEZVOUS__TTL_S="3") as run:
        start(run, net, "abc")
        before = run.now()
        net.isolate("c")
        assert_one_side_goes_on(run, since=before, sides=[{"a", "b"}], size=2)
        fenced = run.wait(
            lambda r: isinstance(r.event, Fencing) and r.node == "c", what="c stops", limit_s=30, since=before
        )
        assert fenced.event.what == "worker"  # type: ignore[attr-defined]
        net.heal()
        after = run.now()
        run.wait_step(1, world_size=3, limit_s=120, since=after)


@pytest.mark.exhaustive
def test_a_cut_that_leaves_too_few_holds_the_job_until_it_heals(tmp_path: Path, net: Net, endpoint: str) -> None:
    with cluster(tmp_path, endpoint, steps=STEPS, nnodes="3:3") as run:
        start(run, net, "abc")
        before = run.now()
        net.cut("a", "c")
        assert net.dropped("a", "c")
        waits = run.wait(
            lambda r: isinstance(r.event, NodesAwaited) and "of at least 3 that reach each other" in r.event.reason,
            what="a round that cannot be closed",
            limit_s=20,
            since=before,
        )
        net.heal()
        after = run.now()
        assert run.wait_world(3, limit_s=30, since=after).generation > waits.generation
        run.wait_step(1, world_size=3, since=after)


@pytest.mark.exhaustive
def test_a_node_cut_off_from_etcd_only_trains_on(tmp_path: Path, net: Net, endpoint: str) -> None:
    with cluster(tmp_path, endpoint, steps=1000, ELASTIC__RENDEZVOUS__TTL_S="2") as run:
        start(run, net, "ab")
        before = run.now()
        net.cut("a", ["etcd"])
        assert net.dropped("a", "etcd")
        assert not net.dropped("a", "b")
        step = run.wait_step(40, world_size=2, since=before)
        # Far longer than its lease: both still train in their generation.
        refused = run.wait(
            lambda r: isinstance(r.event, CheckpointFailed), what="a save that does not count", limit_s=60, since=before
        )
        assert "etcd" in refused.event.reason  # type: ignore[attr-defined]
        reached = step.event.iteration + 60  # type: ignore[attr-defined]
        run.wait_step(reached, world_size=2, since=before)
        net.heal()
        assert [run.wait_exit(name, limit_s=180) for name in "ab"] == [0, 0]
        assert exact_account(run).steps == 1000
        assert generations(run) == {step.generation}
