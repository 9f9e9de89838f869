"""Nodes that share no file system, under real torchrun: a lost disk is made good by the others, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elastic.checkpoint.layout import COMMON, MANIFEST, TRACKER, iteration_dir
from elastic.checkpoint.storage import PosixStorage
from elastic.checkpoint.survey import survey
from elastic.events import Notice, Record, Restored, StepCommitted, WorkerLost, read_records
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, durable, exact_account, lineage_losses, restored_steps, run_alone

pytestmark = pytest.mark.integration

STEPS = 700
"""Enough for a node that comes back to import everything while the others, which stay, train on."""


class Apart:
    """A cluster whose nodes save into directories of their own; only the events lie together, for the test to read."""

    def __init__(self, directory: Path, run: Cluster) -> None:
        self._directory, self.run = directory, run

    def root(self, name: str) -> Path:
        return self._directory / f"disk-{name}"

    def start(self, *names: str) -> None:
        for name in names:
            self.root(name).mkdir(exist_ok=True)
            events = self.root(name) / "events"
            if not events.is_symlink():
                events.symlink_to(self.run.save_path / "events")
            self.run.start(name, ELASTIC__CHECKPOINT__SAVE_PATH=str(self.root(name)))

    def lose_disk(self, name: str) -> None:
        (self.root(name) / "events").unlink()
        shutil.rmtree(self.root(name))

    def wait_saved(self, iteration: int, *, since: int = 0) -> None:
        self.run.wait(
            lambda r: durable(r) and r.event.iteration >= iteration,  # type: ignore[attr-defined]
            what=f"a save of {iteration}",
            limit_s=60,
            since=since,
        )

    def newest_saved(self) -> int:
        """The newest iteration that was committed, as far as the events are read."""
        return max(r.event.iteration for r in self.run.follower.records if durable(r))  # type: ignore[attr-defined]

    def first_step(self, *, since: int) -> int:
        """The first one that is done from there on."""
        again = self.run.wait(lambda r: isinstance(r.event, StepCommitted), what="a step", limit_s=90, since=since)
        return again.event.iteration  # type: ignore[attr-defined,no-any-return]

    def assert_all_go_on_beyond(self, iteration: int, *, since: int) -> None:
        """The three nodes train to the end from this iteration or a newer one, and each holds the last."""
        assert self.first_step(since=since) > iteration
        assert [self.run.wait_exit(name) for name in ("a", "b", "c")] == [0, 0, 0]
        assert exact_account(self.run).steps == STEPS
        self.assert_all_hold(STEPS, "a", "b", "c")

    def assert_all_hold(self, iteration: int, *names: str) -> None:
        """Every node has this iteration whole, and all have the same."""
        manifests = set()
        for name in names:
            seen = survey(str(self.root(name)), storage=PosixStorage())
            (found,) = [each for each in seen.in_place if each.iteration == iteration]
            assert found.problem is None
            directory = self.root(name) / iteration_dir(iteration)
            manifests.add(((directory / MANIFEST).read_bytes(), (directory / COMMON).read_bytes()))
            assert (self.root(name) / TRACKER).read_text() == str(iteration)
        assert len(manifests) == 1


NOTHING_BUT_DISKS = {"ELASTIC__LAUNCH__REJOIN": "false", "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": "0"}


@pytest.fixture
def apart(request: pytest.FixtureRequest, tmp_path: Path, etcd: EtcdServer):
    environ = getattr(request, "param", {})
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, options=(f"--rdzv-id={tmp_path.name}",), **environ) as run:
        yield Apart(tmp_path, run)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return lineage_losses(run_alone(tmp_path_factory.mktemp("alone"), steps=STEPS))


def assert_same_losses(run: Cluster, undisturbed: dict[int, float]) -> None:
    records = read_records(run.save_path / "events")
    losses = lineage_losses(records)
    first = max(restored_steps(records).values()) + 1
    for step in range(first, min(first + 50, STEPS)):
        assert losses[step] == pytest.approx(undisturbed[step], rel=1e-5), f"step {step}"


def travelled(record: Record) -> bool:
    return isinstance(record.event, Notice) and "files travel to the places [2]" in record.event.text


def from_a_peer(record: Record) -> bool:
    return isinstance(record.event, Restored) and (record.node, record.event.tier) == ("c", "peer")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("apart", "brought"), [(NOTHING_BUT_DISKS, travelled), ({}, from_a_peer)], indirect=["apart"], ids=["files", "peer"]
)
def test_a_replacement_with_an_empty_disk_gets_the_state_from_the_others(apart: Apart, brought, undisturbed) -> None:
    run = apart.run
    apart.start("a", "b", "c")
    run.wait_step(60, world_size=3)
    apart.wait_saved(50)
    at = run.now()
    run.nodes["c"].kill()
    run.wait_step(70, world_size=2, since=at)
    apart.lose_disk("c")
    at = run.now()
    apart.start("c")
    run.wait(brought, what="its state", limit_s=60, since=at)
    run.wait_step(80, world_size=3, since=at)
    came = [r.event for r in run.follower.records[at:] if isinstance(r.event, Restored) and r.node == "c"]
    assert [seconds > 0 for each in came for tier, _, seconds in each.arrived if tier == "peer"] == [True]
    assert [run.wait_exit(name) for name in ("a", "b", "c")] == [0, 0, 0]
    assert exact_account(run).steps == STEPS
    apart.assert_all_hold(STEPS, "a", "b", "c")
    assert_same_losses(run, undisturbed)


@pytest.mark.exhaustive
def test_all_nodes_die_and_one_disk_is_lost(apart: Apart) -> None:
    run = apart.run
    apart.start("a", "b", "c")
    formed = run.wait_world(3)
    apart.wait_saved(50)
    at = run.now()
    run.wait_step(60, world_size=3, since=at)
    for name in ("a", "b", "c"):
        run.nodes[name].kill()
    first = formed.event.nodes[0]  # type: ignore[attr-defined]
    apart.lose_disk(first)
    committed = apart.newest_saved()
    at = run.now()
    apart.start("a", "b", "c")
    apart.assert_all_go_on_beyond(committed, since=at)


def lacks(what: str):
    """Whether the record tells of a worker that ended since no node that is there holds what was committed."""

    def found(record: Record) -> bool:
        return isinstance(record.event, WorkerLost) and what in record.event.reason

    return found


@pytest.mark.exhaustive
def test_all_nodes_die_and_the_one_with_the_empty_disk_comes_long_before_the_others(apart: Apart) -> None:
    """It does not end the job, and goes on with the others, once they come."""
    run = apart.run
    apart.start("a", "b", "c")
    run.wait_world(3)
    apart.wait_saved(50)
    for name in ("a", "b", "c"):
        run.nodes[name].kill()
    committed = apart.newest_saved()
    apart.lose_disk("a")
    at = run.now()
    apart.start("a")
    run.wait(lacks("its files are elsewhere or gone"), what="its word", limit_s=60, since=at)
    apart.start("b", "c")
    apart.assert_all_go_on_beyond(committed, since=at)


def all_die_and_the_one_that_was_away_comes_first(apart: Apart) -> tuple[int, int, int]:
    """Its newest iteration, that of the others, and how many records there were before it came."""
    run = apart.run
    apart.start("a", "b", "c")
    run.wait_world(3)
    apart.wait_saved(50)
    at = run.now()
    run.nodes["c"].kill()
    old = apart.newest_saved()
    apart.wait_saved(old + 50, since=at)
    for name in ("a", "b"):
        run.nodes[name].kill()
    new = apart.newest_saved()
    at = run.now()
    apart.start("c")
    run.wait(lacks("is older than what was committed last"), what="its word", limit_s=60, since=at)
    return old, new, at


@pytest.mark.exhaustive
def test_a_node_that_was_away_comes_first_and_does_not_take_the_run_back(apart: Apart) -> None:
    _, new, at = all_die_and_the_one_that_was_away_comes_first(apart)
    apart.start("a", "b")
    apart.assert_all_go_on_beyond(new, since=at)


@pytest.mark.exhaustive
@pytest.mark.parametrize("apart", [{"ELASTIC__RENDEZVOUS__HOLDERS_WAIT_S": "3"}], indirect=True)
def test_a_node_that_was_away_goes_back_where_nobody_else_comes(apart: Apart, undisturbed) -> None:
    old, new, at = all_die_and_the_one_that_was_away_comes_first(apart)
    run = apart.run
    assert old < apart.first_step(since=at) <= new
    assert run.wait_exit("c") == 0
    told = [r.event.text for r in run.follower.records[at:] if isinstance(r.event, Notice)]
    assert any("the run goes back" in text for text in told)
    assert exact_account(run).steps == STEPS
    apart.assert_all_hold(STEPS, "c")
    assert_same_losses(run, undisturbed)
