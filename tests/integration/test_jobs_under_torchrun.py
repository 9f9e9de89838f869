"""Jobs as users start them on two nodes: torchrun with the etcd backend, to the end, with an exact account."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.checkpoint.layout import IDENTITY
from elastic.events import AgentStarted, RunFinished, StepCommitted, read_records
from elastic.history import audit_run
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.node import ROOT

pytestmark = pytest.mark.integration

SENTIMENT = {
    "ELASTIC__JOB__TARGET": "jobs.sentiment:job",
    "ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": "100",
    "ELASTIC__TRAINING__MICRO_BATCH_SIZE": "16",
}
SMALL = {
    "ELASTIC__MODEL__LAYERS": "1",
    "ELASTIC__MODEL__WIDTH": "32",
    "ELASTIC__MODEL__HEADS": "2",
    "ELASTIC__MODEL__CONTEXT": "16",
    "ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": "10",
    "ELASTIC__TRAINING__STEPS": "20",
}


def cluster(directory, etcd, *, nnodes="2:2", **spec):
    directory.mkdir(exist_ok=True)
    environ = {"ELASTIC__METRICS__PORT": "19500", **spec.pop("environ", {})}
    return Cluster(
        ClusterSpec(directory=directory, etcd_endpoint=etcd.endpoint, nnodes=nnodes, environ=environ, **spec)
    )


def to_the_end(run, *names):
    assert [run.wait_exit(name, limit_s=90) for name in names] == [0] * len(names), logs(run)
    records = read_records(run.save_path / "events")
    assert {r.rank for r in records if isinstance(r.event, RunFinished)} == set(range(len(names)))
    found = audit_run(run.save_path)
    assert found.problems == ()
    assert found.exact
    return records, found


def logs(run):
    return "\n".join(node.log.read_text()[-3000:] for node in run.nodes.values())


@pytest.mark.exhaustive
def test_own_loop_and_job_on_two_nodes_are_the_same(tmp_path, etcd):
    losses = []
    for script, environ in (("jobs/own_loop.py", {}), ("elastic/worker.py", SENTIMENT)):
        with cluster(tmp_path / Path(script).stem, etcd, script=script, environ=environ) as run:
            for name in ("a", "b"):
                run.start(name)
            records, found = to_the_end(run, "a", "b")
        assert (found.steps, found.samples) == (40, 4000)
        losses.append({r.event.iteration: r.event.loss for r in records if isinstance(r.event, StepCommitted)})
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("directory", marks=pytest.mark.exhaustive)])
def test_the_users_own_text(kind, tmp_path, etcd):
    text = tmp_path / "text.jsonl"
    if kind == "jsonl":  # as MiniMind's pretraining data
        lines = [json.dumps({"text": f"<|im_start|>今天是第{n}天。 Hello, day {n}!<|im_end|>"}) for n in range(200)]
        text.write_text("\n".join(lines) + "\n")
    else:
        text = tmp_path / "texts"
        (text / "deeper").mkdir(parents=True)
        for n in range(20):
            (text / "deeper" / f"{n}.txt").write_text(f"text number {n}, and some more of it. " * 5)
        (text / "picture.png").write_bytes(b"\x89PNG\xff")
    with cluster(tmp_path / "run", etcd, environ=SMALL, arguments=("--data", str(text))) as run:
        for name in ("a", "b"):
            run.start(name)
        _, found = to_the_end(run, "a", "b")
    assert (found.steps, found.samples) == (20, 200)


def test_two_jobs_on_one_etcd_never_meet(tmp_path, etcd):
    with cluster(tmp_path / "1", etcd, environ=SENTIMENT, nnodes="1:4") as one, \
         cluster(tmp_path / "2", etcd, environ=SENTIMENT, nnodes="1:4") as two:  # fmt: skip
        one.start("a")
        two.start("a")
        for run in (one, two):
            records, found = to_the_end(run, "a")
            assert {r.event.world_size for r in records if isinstance(r.event, StepCommitted)} == {1}
            assert found.steps == 40
        ids = {job_id(run) for run in (one, two)}
    assert len(ids) == 2
    # The same save path once more is the same job: it says its id, and that it is finished.
    with cluster(tmp_path / "1", etcd, environ=SENTIMENT, nnodes="1:4") as again:
        again.start("b")
        to_the_end(again, "b")
        stored = json.loads((again.save_path / IDENTITY).read_text())["job_id"]
        assert f"job {stored}, etcd at {etcd.endpoint}" in again.nodes["b"].log.read_text()
        assert {job_id(again)} < ids
        steps = [r.event for r in read_records(again.save_path / "events") if isinstance(r.event, StepCommitted)]
        assert len(steps) == 40, "no step was done again"


def job_id(run):
    """What the run's agents said; it must be one."""
    (found,) = {r.event.job_id for r in read_records(run.save_path / "events") if isinstance(r.event, AgentStarted)}
    return found


@pytest.mark.exhaustive
def test_without_an_endpoint_etcd_is_looked_for_where_it_is_by_default(tmp_path):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ETCD", "ELASTIC"))}
    command = [str(Path(sys.executable).with_name("torchrun")), "--nnodes=1:4", "--rdzv_backend=etcd"]
    done = subprocess.run(
        [*command, "elastic/worker.py", "--save-path", str(tmp_path / "run")],
        cwd=ROOT,
        env={**environ, "ELASTIC__RENDEZVOUS__CONNECT_TIMEOUT_S": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "127.0.0.1:2379" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
