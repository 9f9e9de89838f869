"""Who does not know a generation's secret takes part in nothing: real agents, and a worker that was told another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic.events import StepCommitted, encode
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT
from tests.harness.etcd_admin import keys
from tests.harness.survival import SETTINGS, exact_account

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def secret_of_now(endpoint: str) -> str:
    """The present generation's, from the job's keys."""
    (text,) = [text for key, text in keys(endpoint).items() if key.endswith("/world")]
    secret = json.loads(text)["secret"]
    assert isinstance(secret, str)
    return secret


def test_a_stranger_ends_its_generation_and_leaves_no_trace_in_the_next(tmp_path: Path) -> None:
    met = tmp_path / "met"
    environ = {**SETTINGS, "ELASTIC__TRAINING__STEPS": "60", "LATE_S": "0", "PYTHONPATH": str(ROOT), "MET": str(met)}

    def spec(etcd: EtcdServer) -> ClusterSpec:
        script = "tests/harness/stranger.py"
        return ClusterSpec(
            directory=tmp_path, etcd_endpoint=etcd.endpoint, environ=environ, script=script, nnodes="2:4"
        )

    with EtcdServer(tmp_path / "etcd") as etcd, Cluster(spec(etcd)) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(1, world_size=2)
        later = secret_of_now(etcd.endpoint)
        assert [run.wait_exit(name, limit_s=90) for name in ("a", "b")] == [0, 0]
        assert {r.generation for r in run.follower.records if isinstance(r.event, StepCommitted)} == {2}
        assert any("does not know the secret of generation 1" in encode(r) for r in run.follower.records)
        assert exact_account(run).steps == 60
    first = met.read_text()
    assert len(first) == len(later) == 64
    assert first != later, "drawn anew for each generation"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != met and "etcd" not in path.parts]
    assert any(path.suffix == ".jsonl" for path in files)
    assert [path for path in files if any(each.encode() in path.read_bytes() for each in (first, later))] == []
