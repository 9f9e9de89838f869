"""Bad input: one clear message, the documented exit code, and nothing lost or overwritten."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import LockCommitter
from elastic.events import JobEnded, read_records
from elastic.local.etcd import EtcdServer, free_port
from elastic.local.node import ROOT
from tests.harness.etcd_admin import enable_users
from tests.harness.survival import SETTINGS, cluster

pytestmark = pytest.mark.integration

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **SETTINGS, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def agent(*arguments: str, options: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    """The literal command, with arguments after the script."""
    return run([TORCHRUN, "--nnodes=1:4", "--rdzv_backend=etcd", *options, "elastic/worker.py", *arguments], **environ)


def alone(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "elastic/worker.py", *arguments], **environ)


def assert_clear(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize("start", [alone, agent])
def test_missing_config(start, tmp_path: Path) -> None:
    done = start("--config", str(tmp_path / "none.yaml"), "--save-path", str(tmp_path / "out"))
    assert_clear(done, 64, str(tmp_path / "none.yaml"))
    assert not (tmp_path / "out").exists()


def test_all_problems_of_a_config_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("training:\n  stepz: 5\n  seed: -1\ncheckpoint:\n  save_max: zero\n")
    assert_clear(agent("--config", str(file)), 64, "bad.yaml:2", "bad.yaml:3", "bad.yaml:5", "steps")


def test_unreachable_etcd_is_named_and_given_up(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    began_s = time.monotonic()
    done = agent("--save-path", str(tmp_path), ETCD_ENDPOINTS=endpoint, ELASTIC__RENDEZVOUS__CONNECT_TIMEOUT_S="2")
    assert_clear(done, 75, endpoint, "--rdzv-endpoint")
    assert time.monotonic() - began_s < 40


def test_wrong_credentials(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong")
    with EtcdServer(tmp_path / "etcd") as server:
        enable_users(server.endpoint, root_password="right")
        conf = f"--rdzv-conf=user=root,password_file={password}"
        done = agent("--save-path", str(tmp_path / "out"), options=(conf,), ETCD_ENDPOINTS=server.endpoint)
    assert_clear(done, 64, server.endpoint)
    assert "wrong" not in done.stderr.replace("wrong user", "").replace("wrong password", ""), "a secret was printed"


def test_unknown_rendezvous_option(tmp_path: Path) -> None:
    done = agent("--save-path", str(tmp_path), options=("--rdzv-conf=last_cal_timeout=3",))
    assert_clear(done, 64, "last_cal_timeout", "last_call_timeout")


@pytest.mark.parametrize("start", [alone, agent])
def test_save_path_that_cannot_be_written(start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_clear(start("--save-path", str(tmp_path / "file" / "out")), 64, str(tmp_path / "file" / "out"))


def test_save_path_in_use(tmp_path: Path, etcd: EtcdServer) -> None:
    claim(str(tmp_path), job_id="mine")
    with contextlib.closing(LockCommitter(str(tmp_path))):
        before = sorted(path.name for path in tmp_path.iterdir())
        done = agent("--save-path", str(tmp_path), options=("--rdzv-id=other",), ETCD_ENDPOINTS=etcd.endpoint)
    assert_clear(done, 64, "in use", "save_path")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_private_save_path_of_another_run(tmp_path: Path, etcd: EtcdServer) -> None:
    claim(str(tmp_path), job_id="mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    private = ("--save-path", str(tmp_path), "--checkpoint.save_path_scope", "private")
    done = agent(*private, options=("--rdzv-id=other",), ETCD_ENDPOINTS=etcd.endpoint)
    assert_clear(done, 64, "other", "--rdzv-id=mine", "save_path")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_load_path_that_does_not_exist(tmp_path: Path, etcd: EtcdServer) -> None:
    missing = str(tmp_path / "nothing")
    with_agent = agent(
        "--save-path", str(tmp_path / "a"), "--checkpoint.load_path", missing, ETCD_ENDPOINTS=etcd.endpoint
    )
    assert_clear(with_agent, 64, missing)
    assert_clear(alone("--save-path", str(tmp_path / "b"), "--checkpoint.load_path", missing), 64, missing)
    assert not list(tmp_path.glob("*/iteration_*")), "nothing may be trained from random weights"


def test_batch_that_no_world_size_can_split(tmp_path: Path, etcd: EtcdServer) -> None:
    arguments = ("--save-path", str(tmp_path), "--global-batch", "1", "--training.micro_batch_size", "1")
    done = agent(*arguments, options=("--nproc-per-node=2",), ETCD_ENDPOINTS=etcd.endpoint)
    assert_clear(done, 64, "global batch of 1", "2 workers")


def test_empty_corpus(tmp_path: Path, etcd: EtcdServer) -> None:
    (tmp_path / "empty.txt").write_text("")
    arguments = ("--data", str(tmp_path / "empty.txt"), "--job", "jobs.pretrain_lm:job")
    assert_clear(alone("--save-path", str(tmp_path / "a"), *arguments), 64, "empty.txt")
    done = agent("--save-path", str(tmp_path / "b"), *arguments, ETCD_ENDPOINTS=etcd.endpoint)
    assert_clear(done, 64, "empty.txt")


@pytest.mark.exhaustive
def test_the_same_exception_twice_ends_the_job(tmp_path: Path, etcd: EtcdServer) -> None:
    broken = {"ELASTIC__JOB__TARGET": "tests.harness.small_job:always_fails"}
    with cluster(tmp_path, etcd.endpoint, steps=5, **broken) as run:
        for name in ("a", "b"):
            run.start(name)
        assert [run.wait_exit(name) for name in ("a", "b")] == [1, 1]
        for name in ("a", "b"):
            log = run.nodes[name].log.read_text().rstrip().splitlines()
            assert log[-1] == "ZeroDivisionError: this job is broken on purpose", "the root traceback comes last"
        ends = [r for r in read_records(run.save_path / "events") if isinstance(r.event, JobEnded)]
        assert {r.generation for r in ends} == {2}, "two attempts, not a loop"


def test_the_same_step_failing_again_and_again_ends_the_job(tmp_path: Path, etcd: EtcdServer) -> None:
    broken = {
        "ELASTIC__JOB__TARGET": "tests.harness.small_job:fails_at_step_8",
        "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "5",
    }
    with cluster(tmp_path, etcd.endpoint, steps=20, **broken) as run:
        run.start("a")
        assert run.wait_exit("a") == 77
        log = run.nodes["a"].log.read_text()
        assert "step 7 was not passed in generations 1, 2, 3" in log
        assert log.rstrip().endswith("ZeroDivisionError: step 8 is broken on purpose")
        saved = [path.name for path in run.save_path.glob("iteration_*")]
        assert saved == ["iteration_00000005"], "what was saved stays"
