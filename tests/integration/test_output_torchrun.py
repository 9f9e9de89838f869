"""What workers print under torchrun: told by node and rank, once where all say it, clean, and kept for later."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from elastic.events import Recovered
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, leave_all
from tests.harness.until import of, until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

JOB = """
import dataclasses, os, sys
from tests.harness import small_job

def job(settings):
    rank = os.environ["RANK"]
    print("all say this")
    print(f"\\x1b[31mworker {rank} speaks\\x1b[0m", file=sys.stderr)
    seen = []

    def loss(model, batch):
        generation = os.environ["ELASTIC_GENERATION"]
        if generation not in seen:
            seen.append(generation)
            print("a new generation for me")
        return small_job.loss(model, batch)

    return dataclasses.replace(small_job.job(settings), loss=loss)
"""


def logged(directory: Path, node: str) -> list[dict]:
    lines = (directory / "checkpoint" / "logs" / f"{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("ready", ["true", "false"])
def test_who_said_what(tmp_path: Path, etcd: EtcdServer, ready: str) -> None:
    (tmp_path / "speaking.py").write_text(JOB)
    more = {
        "ELASTIC__JOB__TARGET": "speaking:job",
        "PYTHONPATH": str(tmp_path),
        "ELASTIC__LAUNCH__READY_WORKERS": ready,
    }
    with cluster(tmp_path, etcd.endpoint, steps=100_000, options=("--nproc-per-node=2",), **more) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(10, world_size=4)
        logs = [node.log for node in run.nodes.values()]
        for rank, log in enumerate((logs[0], logs[0], logs[1], logs[1])):
            words = f"r{rank}] worker {rank} speaks\n"  # what they print goes its own way, beside their events
            until(lambda log=log, words=words: words in log.read_text(), what=words, news=of(run.follower))  # type: ignore[misc]
        for log in logs:
            until(lambda log=log: "all say this" in log.read_text(), what="the common line", news=of(run.follower))  # type: ignore[misc]
        first = {name: run.nodes[name].log.read_text() for name in ("a", "b")}
        at = run.now()
        run.nodes["a"].kill()  # rank 0 and 1: b's workers stay, and are 0 and 1 from now on
        run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at)
        run.wait_step(10, world_size=2, since=at)
        os.kill(run.nodes["b"].workers()[1], signal.SIGKILL)
        run.wait_step(10, world_size=2, since=at, after=2)
        leave_all(run)
    together = "".join(first.values())
    assert "[a r0-1] all say this\n" in together
    assert "[b r2-3] all say this\n" in together
    assert together.count("all say this") == 2
    for rank in range(4):
        assert f"r{rank}] worker {rank} speaks\n" in together
    assert "\x1b" not in together
    after = run.nodes["b"].log.read_text()[len(first["b"]) :]
    assert "[b r0-1] a new generation for me\n" in after
    kept = logged(tmp_path, "b")
    assert {line["node"] for line in kept} == {"b"}
    assert {tuple(line["ranks"]) for line in kept if line["text"] == "all say this"} >= {(2, 3)}
    assert [line["generation"] for line in kept if line["text"] == "a new generation for me"][:2] == [1, 2]
    assert any(line["stream"] == "agent" and line["text"].startswith("generation 2: world 2") for line in kept)


def test_workers_that_print_for_themselves(tmp_path: Path, etcd: EtcdServer) -> None:
    (tmp_path / "speaking.py").write_text(JOB)
    more = {
        "ELASTIC__JOB__TARGET": "speaking:job",
        "PYTHONPATH": str(tmp_path),
        "ELASTIC__LAUNCH__COLLECT_OUTPUT": "false",
        "ELASTIC__RENDEZVOUS__FIRST_WAIT_S": "0",
    }
    with cluster(tmp_path, etcd.endpoint, steps=5, **more) as run:
        run.start("a")
        assert run.wait_exit("a", limit_s=60) == 0
        text = run.nodes["a"].log.read_text()
    assert "\nall say this\n" in text
    assert not (tmp_path / "checkpoint" / "logs").exists()
