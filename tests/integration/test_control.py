"""Scale, pause and resume of a real job: nothing is lost, nothing is done twice, and all of it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic.cli import main
from elastic.events import Cause, Restored, RoundOpened, StepCommitted, WishHeard, read_records
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, durable, exact_account
from tests.harness.until import until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

STEPS = 400


def ask(run: Cluster, etcd: EtcdServer, *words: str) -> None:
    where = [f"--rdzv-endpoint={etcd.endpoint}", f"--save-path={run.save_path}", "--reason=a test"]
    assert main([*words, *where]) == 0


def test_a_job_is_made_smaller_larger_paused_and_resumed(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, nnodes="1:2") as run:
        nodes = [run.start(name) for name in ("a", "b")]
        run.wait_step(5, world_size=2)
        ask(run, etcd, "scale", "1:1")
        smaller = run.wait_step(10, world_size=1)
        ask(run, etcd, "scale", "1:2")
        larger = run.wait_step(smaller.event.iteration, world_size=2, after=smaller.generation)
        ask(run, etcd, "pause")
        opened = run.wait(is_pause, what="the pause", limit_s=20)
        until(lambda: not any(node.workers() for node in nodes), what="a rest without workers")
        run.follower.read()
        told = [record for record in run.follower.records if record.generation <= opened.generation]
        last = max(record.event.iteration for record in told if isinstance(record.event, StepCommitted))
        assert max(record.event.iteration for record in told if durable(record)) == last, "what was done is durable"
        capsys.readouterr()
        assert main(["status", str(run.save_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "paused"
        ask(run, etcd, "resume")
        on = run.wait(
            lambda r: isinstance(r.event, Restored) and r.generation > opened.generation, what="it", limit_s=30
        )
        assert on.event.iteration == last, "it goes on at the very next sample"
        assert [run.wait_exit(name, limit_s=90) for name in ("a", "b")] == [0, 0]
        assert larger.generation == opened.generation
        history(run)


def test_a_paused_job_stays_so_though_all_its_agents_are_started_anew(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, nnodes="1:2") as run:
        node = run.start("a")
        run.wait_step(5)
        ask(run, etcd, "pause")
        opened = run.wait(is_pause, what="the pause", limit_s=20)
        until(lambda: not node.workers(), what="its rest")
        node.kill()
        other = run.start("b")
        until(lambda: "this job is paused" in other.log.read_text(), what="the word to who comes later")
        run.follower.read()
        stepped = {r.generation for r in run.follower.records if isinstance(r.event, StepCommitted)}
        assert stepped == {opened.generation}
        ask(run, etcd, "resume")
        assert run.wait_exit("b", limit_s=90) == 0
        account = exact_account(run)
        assert (account.steps, account.recomputed_steps) == (STEPS, 0)


def is_pause(record: object) -> bool:
    event = getattr(record, "event", None)
    return isinstance(event, RoundOpened) and event.cause is Cause.PAUSED


def history(run: Cluster) -> None:
    account = exact_account(run)
    assert (account.steps, account.recomputed_steps) == (STEPS, 0)
    heard = [r.event for r in read_records(run.save_path / "events") if isinstance(r.event, WishHeard)]
    assert [event.what for event in heard] == ["scale", "scale", "pause", "resume"]
    assert all(event.reason.endswith(": a test") for event in heard)
