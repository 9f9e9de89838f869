"""Saves whose generation ends while they are at work: what was committed counts for those who stay, and only that."""

from __future__ import annotations

import threading

import pytest
import torch

from elastic.checkpoint.layout import TRACKER
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup, CommitVerdict
from elastic.clock import SYSTEM_CLOCK
from elastic.errors import Fenced
from tests.harness.apart import Apart
from tests.harness.checkpoints import Bench, RecordCommitter, make_run, meta
from tests.harness.gate import LIMIT_S, Gate, until


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path / "root")


def commits_unknown(manager, run, iteration) -> None:
    """Up to where it is committed, and no boundary has come since at which ranks would learn of it."""
    manager.save(run.tracked, meta(iteration), wait=False)
    until(lambda: manager.ready)
    assert manager.advance(all_ready=True) is None
    until(lambda: manager.ready)


def goes_on(manager, bench) -> None:
    """In the next generation."""
    identity = claim(str(bench.root), job_id="job")
    manager.serve(identity, group=AloneGroup(), committer=bench.committer, generation=2)


def lost_after_commit(bench):
    """A manager and a run at step 11 of generation 2, whose iteration 10 was committed as generation 1 ended."""
    manager, run = bench.manager(save_mode="async", generation=1), make_run()
    assert manager.save(run.step(5).tracked, meta(5)).saved
    commits_unknown(manager, run.step(5), 10)
    assert bench.committer.kept.iteration == 10
    run.step(1)
    goes_on(manager, bench)
    assert manager.rejoin(run.tracked, meta(11)).iteration == 11
    return manager, run


def test_survivors_know_of_a_commit_that_their_generation_did_not_live_to_hear_of(bench):
    manager, _ = lost_after_commit(bench)
    assert manager.schedule.committed == 10


def test_a_restart_falls_back_to_it(bench):
    manager, run = lost_after_commit(bench)
    assert manager.save(run.step(1).tracked, meta(12, generation=2)).saved
    for path in bench.directory(12).glob("*.safetensors"):
        path.write_bytes(b"x" * path.stat().st_size)
    assert bench.manager(generation=3).restore(make_run(seed=3).tracked).iteration == 10


def test_what_follows_on_it_is_adopted(bench):
    manager, run = lost_after_commit(bench)
    granted, bench.committer.answer = bench.committer.answer, CommitVerdict(granted=False, reason="etcd is away")
    manager.save(run.step(4).tracked, meta(15, generation=2))
    bench.committer.answer = granted
    assert bench.manager(generation=3).restore(make_run(seed=3).tracked).iteration == 15


def test_room_is_made_though_each_commit_is_known_only_after_the_reading_back(tmp_path, bench):
    gate = Gate()
    gate.stalls = "facts model-0000000-0000001.safetensors"
    manager = bench.manager(storage=gate, save_mode="async", save_max=1, clock=SYSTEM_CLOCK)
    run = make_run()
    for iteration in range(1, 9):
        commits_unknown(manager, run.step(1), iteration)
        if iteration > 2:
            assert gate.asked.wait(LIMIT_S)
            gate.pause()  # the reading back of an earlier one ends now
            until(lambda: manager._saver._caretaker._working.done())
        assert manager.advance(all_ready=True).saved
    assert len(list(bench.root.glob("iteration_*"))) <= 3
    gate.stalls = "nothing"
    gate.open.set()


def test_who_saves_alone_in_the_same_generation_waits_for_what_may_still_count(bench):
    gate = Gate()
    gate.stalls = "publish 10"
    manager = bench.manager(storage=gate, save_mode="async", generation=1, clock=SYSTEM_CLOCK)
    run = make_run().step(10)
    manager.save(run.tracked, meta(10), wait=False)
    until(lambda: manager.ready)
    manager.advance(all_ready=True)
    assert gate.asked.wait(LIMIT_S)
    identity = claim(str(bench.root), job_id="job")
    manager.serve(identity, group=AloneGroup(), committer=bench.committer, generation=1)
    results = []
    alone = threading.Thread(target=lambda: results.append(manager.save(run.step(2).tracked, meta(12))))
    alone.start()
    alone.join(0.2)
    assert alone.is_alive()
    gate.open.set()
    alone.join(LIMIT_S)
    assert results[0].saved
    assert bench.committer.kept.iteration == 12
    assert (bench.root / TRACKER).read_text() == "12"


class Gone(RecordCommitter):
    """Asks an agent that is gone."""

    def commit(self, record):
        raise Fenced("the agent is gone")


def test_an_agent_that_is_gone_fences_private_directories_too(tmp_path):
    apart = Apart(tmp_path, committer=Gone())

    def work(manager, run, rank):
        with pytest.raises(Fenced, match="the agent is gone"):
            manager.save(run.step(5).tracked, meta(5))
        return True

    assert apart.session([0, 1], work, generation=1) == [True, True]
