"""A disk that is really full, and files that may really not grow: the last good iteration stays."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.saving import FileCommitter, in_child

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB; only root may make one."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk; the limit on file sizes is tested for everyone")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small disk here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_costs_nothing_and_training_goes_on(small_disk, tmp_path):
    bench = Bench(small_disk / "root", committer=FileCommitter(tmp_path / "record"))
    manager, run = bench.manager(save_max=5), make_run()
    saved, failed = [], 0
    for iteration in range(1, 20):
        run.step()
        result = manager.save(run.tracked, meta(iteration))
        if result.saved:
            saved.append(iteration)
        else:
            failed += 1
            assert "No space left on device" in result.reason
    assert failed > 10
    assert not list(bench.root.glob(".tmp*"))
    other = make_run(seed=5)
    assert bench.manager().restore(other.tracked).iteration == saved[-1]
    assert same(other, make_run().step(saved[-1]))
    # Room again, and the next save makes up for it.
    shutil.rmtree(bench.directory(saved[0]))
    assert bench.manager(generation=2).save(run.tracked, meta(20)).saved


def test_a_limit_on_the_size_of_files_costs_nothing(tmp_path):
    bench = Bench(tmp_path / "root", committer=FileCommitter(tmp_path / "record"))
    bench.manager().save(make_run().step(10).tracked, meta(10))

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for limit_bytes in range(500, 16_000, 500):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
            result = bench.manager().save(make_run().tracked, meta(20))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert not result.saved
            assert "File too large" in result.reason, result.reason
            assert bench.manager().restore(make_run().tracked).iteration == 10

    assert os.waitpid(in_child(limited), 0)[1] == 0
    assert bench.manager(generation=2).save(make_run().tracked, meta(20)).saved


IN_LITTLE_SHARED_MEMORY = """
import shutil, torch
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.room import Room
from tests.unit.test_arena import at, shard
assert shutil.disk_usage("/dev/shm").total == 64 << 10
tier = MemoryTier(room=lambda: Room(available_bytes=1 << 40, cgroup_bytes=None))
for iteration in (1, 2, 3):
    assert tier.take(at(iteration), [shard(iteration, size=1 << 20)], rank=0, whole=True, keep=False) is not None
print([held.manifest.iteration for held in tier.held()])
"""


@pytest.mark.exhaustive
def test_the_size_of_dev_shm_does_not_matter():
    """Containers give 64 MB there, or less: copies in memory are no files in it."""
    within = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} -c '{IN_LITTLE_SHARED_MEMORY}'"
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root may give a process a /dev/shm of its own")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", within], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"no mount here: {done.stderr.strip()[-100:]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "[3, 2]"
