"""Exactly once with real processes: random kills, joins, leaves, stops with another batch or more loader processes."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from elastic.events import Restored, RunFinished, StepCommitted, read_records
from elastic.history import audit_run
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, lineage_losses, run_alone

pytestmark = pytest.mark.integration

SAMPLES = 13200
BATCHES = (22, 30, 20)
"""SAMPLES divides by each, so that a run ends at the same sample whatever its batch was."""


def settings(kind: str, *, batch: int, workers: int) -> dict[str, str]:
    return {
        "ELASTIC__JOB__TARGET": "tests.harness.data_job:job",
        "ELASTIC__JOB__OPTIONS__KIND": kind,
        "ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": str(batch),
        "ELASTIC__DATA__NUM_WORKERS": str(workers),
        "ELASTIC__DATA__ORDER": "block_shuffle" if kind == "map" else "shuffle",
        "ELASTIC__DATA__BLOCK_ITEMS": "17",
        "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "15",
    }


@dataclass
class Life:
    """One run and what is done to it."""

    directory: Path
    etcd: str
    kind: str
    chance: random.Random
    batch: int = BATCHES[0]
    names: list[str] = field(default_factory=list)
    started: int = 0
    done: list[str] = field(default_factory=list)

    def live(self) -> None:
        """Starts of the run one after the other, until it is finished."""
        while not self._one_start():
            if self.kind != "stream":
                self.batch = self.chance.choice(BATCHES)

    def _one_start(self) -> bool:
        steps = SAMPLES // self.batch
        chosen = settings(self.kind, batch=self.batch, workers=self.chance.randint(0, 2))
        self.names = []
        with cluster(self.directory, self.etcd, steps=steps, **chosen) as run:
            for _ in range(self.chance.randint(1, 3)):
                self._join(run)
            for _ in range(self.chance.randint(1, 3)):
                if not self._reach(run, self.chance.randint(5, 40)):
                    return self._finished(run)
                if not self._do(run):
                    return self._finished(run)
            if len(self.done) < 5 and self._reach(run, 20):
                return self._stop(run)
            return self._finished(run)

    def _reach(self, run: Cluster, more: int) -> bool:
        """Wait for some more steps; False where the run is nearly over."""
        last = max((r.event.stop for r in run.follower.records if isinstance(r.event, StepCommitted)), default=0)
        wanted = last + more * self.batch
        if wanted > SAMPLES - 60 * self.batch:
            return False
        run.wait(
            lambda r: isinstance(r.event, StepCommitted) and r.event.stop >= wanted,
            what=f"sample {wanted} after {self.done}",
            limit_s=120,
            since=run.now(),
        )
        return True

    def _do(self, run: Cluster) -> bool:
        """Do something to the run, and wait until it goes on; False where it was over before that."""
        what = self.chance.choice(["worker", "worker", "node", "join", "leave"])
        if what in ("node", "leave") and len(self.names) == 1:
            what = "worker"
        if what == "join" and len(self.names) == 4:
            what = "node"
        self.done.append(what)
        since = run.now()
        if what == "join":
            self._join(run)
        elif what == "worker":
            for pid in run.nodes[self.chance.choice(self.names)].workers():
                os.kill(pid, signal.SIGKILL)
        else:
            name = self.names.pop(self.chance.randrange(len(self.names)))
            if what == "node":
                run.nodes[name].kill()
            else:
                run.nodes[name].signal(signal.SIGTERM)
                assert run.wait_exit(name) in (75, 0), "0 where the run was over first"
        seen = run.wait(
            lambda r: isinstance(r.event, Restored | RunFinished),
            what=f"a restore after {what}",
            limit_s=90,
            since=since,
        )
        return isinstance(seen.event, Restored)

    def _join(self, run: Cluster) -> None:
        self.started += 1
        self.names.append(f"n{self.started}")
        run.start(self.names[-1])

    def _stop(self, run: Cluster) -> bool:
        self.done.append("stop")
        for name in self.names:
            run.nodes[name].signal(signal.SIGTERM)
        ends = {run.wait_exit(name) for name in self.names}
        assert ends in ({75}, {0}), "0 where the run was over first"
        return ends == {0}

    def _finished(self, run: Cluster) -> bool:
        assert {run.wait_exit(name, limit_s=180) for name in self.names} == {0}
        return True


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["map", "mixed", "stream"])
def test_a_run_of_many_lives(tmp_path: Path, etcd: EtcdServer, kind: str, seed: int) -> None:
    life = Life(directory=tmp_path, etcd=etcd.endpoint, kind=kind, chance=random.Random(f"{kind}/{seed}"))
    life.live()
    found, records = audit_run(tmp_path / "checkpoint"), read_records(tmp_path / "checkpoint" / "events")
    assert found.problems == (), life.done
    assert found.exact
    assert (found.samples, found.used_twice, found.never_used) == (SAMPLES, 0, 0)
    assert len(life.done) >= 3, "each of them was followed by a restore, or by the end of the run"
    assert len({r.generation for r in records if isinstance(r.event, Restored)}) >= 3
    if len({event.stop - event.start for event in _steps(tmp_path)}) == 1:
        # One batch size all along: what was computed is the undisturbed run, step by step.
        steps = SAMPLES // life.batch
        alone = lineage_losses(
            run_alone(tmp_path / "alone", steps=steps, **settings(kind, batch=life.batch, workers=0))
        )
        losses = lineage_losses(records)
        assert losses == pytest.approx(alone, rel=1e-3)


def _steps(directory: Path) -> list[StepCommitted]:
    records = read_records(directory / "checkpoint" / "events")
    return [record.event for record in records if isinstance(record.event, StepCommitted)]
