"""Workers that hang: found by what they do and for how long, told with everybody's stacks, ended, and made up for."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.events import Cause, WorkerHung, WorkerLost, read_records
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, exact_account

pytestmark = pytest.mark.integration

STEPS = 150
LEAST_S = 2.0


@pytest.mark.parametrize(
    ("target", "doing", "frame"),
    [
        pytest.param("holds_the_lock", "step", "in loss", marks=pytest.mark.exhaustive),
        pytest.param("stuck_data", "data", "in __getitem__", marks=pytest.mark.exhaustive),
    ],
)
def test_a_worker_that_hangs_is_named_and_replaced(
    tmp_path: Path, etcd: EtcdServer, target: str, doing: str, frame: str
) -> None:
    environ = {
        "ELASTIC__JOB__TARGET": f"tests.harness.hanging_job:{target}",
        "HANG_FILE": str(tmp_path / "hung"),
        "HANG_NODE": "b",
        "ELASTIC__NODE__HANG_LEAST_S": str(LEAST_S),
        "ELASTIC__NODE__HANG_UNKNOWN_S": "60",
    }
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, nnodes="2:4", **environ) as run:
        for name in ("a", "b"):
            run.start(name)
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b")] == [0, 0]
        assert (tmp_path / "hung").exists()
        found = [record for record in read_records(run.save_path / "events") if isinstance(record.event, WorkerHung)]
        assert [(record.node, record.event.doing) for record in found] == [("b", doing)]
        hung = found[0].event
        assert isinstance(hung, WorkerHung)
        assert LEAST_S <= hung.seconds < 15
        assert frame in Path(hung.stacks).read_text()
        lost = [r for r in read_records(run.save_path / "events") if isinstance(r.event, WorkerLost)]
        assert [(r.node, r.event.cause) for r in lost if r.event.cause is not Cause.PEER_LOST] == [("b", "worker_hung")]
        assert exact_account(run).steps == STEPS


@pytest.mark.exhaustive
def test_long_moments_that_were_never_seen_are_no_hangs(tmp_path: Path, etcd: EtcdServer) -> None:
    for target in ("evaluating", "slow_first_step"):
        environ = {
            "ELASTIC__JOB__TARGET": f"tests.harness.leaving_job:{target}",
            "MOMENT_FILE": str(tmp_path / target),
            "ELASTIC__NODE__HANG_LEAST_S": "0.3",
            "ELASTIC__NODE__HANG_UNKNOWN_S": "60",
        }
        with cluster(tmp_path / f"run {target}", etcd.endpoint, steps=40, **environ) as run:
            run.start("a")
            assert run.wait_exit("a", limit_s=60) == 0
            assert (tmp_path / target).exists()
            told = read_records(run.save_path / "events")
            assert not [record for record in told if isinstance(record.event, WorkerHung)]
