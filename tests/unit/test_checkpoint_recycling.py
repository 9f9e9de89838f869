"""Large shards: past the page cache, and over files that were given up; whatever cannot be done so is done plainly."""

from __future__ import annotations

import errno
import mmap
import os

import pytest
import torch
from torch import nn

from elastic.checkpoint import storage as module
from elastic.checkpoint.layout import is_spare
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.storage import LARGE_BYTES, PosixStorage
from elastic.errors import NothingToRestore
from tests.harness.arenas import PLENTY, two_arenas
from tests.harness.checkpoints import Bench, meta

PAGE_BYTES = 4096


def aligned(size_bytes: int) -> memoryview:
    data = mmap.mmap(-1, size_bytes)
    data[:] = os.urandom(size_bytes)
    return memoryview(data)


@pytest.mark.parametrize("more", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES + 5])
@pytest.mark.parametrize("shift", [0, 8])
def test_any_length_and_place(tmp_path, more, shift):
    data = aligned(LARGE_BYTES + more + shift)[shift:]
    PosixStorage().write(str(tmp_path / "file"), data)
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("at", ["open", "write"])
def test_a_file_system_that_knows_no_direct_writes(tmp_path, monkeypatch, at):
    class Plain:
        def __getattr__(self, name):
            return getattr(os if at == "write" else module_fcntl, name)

        def write(self, fd, data):
            if module_fcntl.fcntl(fd, module_fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no")
            return os.write(fd, data)

        def fcntl(self, fd, command, *rest):
            if command == module_fcntl.F_SETFL and rest[0] & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no")
            return module_fcntl.fcntl(fd, command, *rest)

    module_fcntl = module.fcntl
    monkeypatch.setattr(module, "os" if at == "write" else "fcntl", Plain())
    data = aligned(LARGE_BYTES + 5)
    PosixStorage().write(str(tmp_path / "file"), data)
    assert (tmp_path / "file").read_bytes() == data


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    class Full:
        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, fd, data):
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(module, "os", Full())
    with pytest.raises(OSError, match="full"):
        PosixStorage().write(str(tmp_path / "file"), aligned(LARGE_BYTES))


@pytest.mark.parametrize("old", [0, 100, LARGE_BYTES, 3 * LARGE_BYTES])
def test_over_another_file(tmp_path, old):
    (tmp_path / "spare").write_bytes(b"x" * old)
    data = aligned(LARGE_BYTES + 77)
    assert PosixStorage().rewrite(str(tmp_path / "spare"), str(tmp_path / "file"), data)
    assert (tmp_path / "file").read_bytes() == data
    assert not (tmp_path / "spare").exists()


def test_never_over_one_that_somebody_keeps(tmp_path):
    data = aligned(LARGE_BYTES)
    assert not PosixStorage().rewrite(str(tmp_path / "none"), str(tmp_path / "file"), data)
    (tmp_path / "spare").write_bytes(b"x")
    os.link(tmp_path / "spare", tmp_path / "kept")
    assert not PosixStorage().rewrite(str(tmp_path / "spare"), str(tmp_path / "file"), data)
    (tmp_path / "kept").unlink()
    (tmp_path / "file").write_bytes(b"there")
    assert not PosixStorage().rewrite(str(tmp_path / "spare"), str(tmp_path / "file"), data)
    assert (tmp_path / "file").read_bytes() == b"there"


class Noting(PosixStorage):
    def __init__(self) -> None:
        self.reused: list[str] = []

    def rewrite(self, spare: str, path: str, data: memoryview) -> bool:
        done = super().rewrite(spare, path, data)
        self.reused += [os.path.basename(path)] * done
        return done


def test_a_large_file_is_read_as_it_is_and_checked_like_any_other(tmp_path):
    bench = Bench(tmp_path / "root")
    model = nn.Linear(1024, 1100)
    assert bench.manager(no_save_optim=True, no_load_optim=True).save({"model": model}, meta(1)).saved
    other = nn.Linear(1024, 1100)
    weights = {"load_path": str(bench.root), "no_load_optim": True}
    Bench(tmp_path / "other").manager(**weights).restore({"model": other})
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(other.bias, model.bias)
    path = bench.directory(1) / "checkpoint-model-0000000-0000001.safetensors"
    assert path.stat().st_size > LARGE_BYTES
    data = bytearray(path.read_bytes())
    for place, what in ((len(data) // 2, "weight"), (12, "the header")):
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(NothingToRestore, match=what):
            Bench(tmp_path / "other").manager(**weights).restore({"model": other})
        data[place] ^= 1


def test_saves_take_the_place_of_those_given_up(tmp_path):
    torch.set_num_threads(1)
    tier = MemoryTier(two_arenas(tmp_path), room=lambda: PLENTY)
    bench, storage = Bench(tmp_path / "root"), Noting()
    model = nn.Linear(1024, 1100, bias=False)
    manager = bench.manager(storage=storage, tier=tier, save_max=1, no_save_optim=True, no_load_optim=True)
    for iteration in range(1, 7):
        with torch.no_grad():
            model.weight.fill_(iteration)
        assert manager.save({"model": model}, meta(iteration)).saved
        spares = [name for name in os.listdir(bench.root) if is_spare(name)]
        assert len(spares) <= 1
    # 1 went at the commit of 2 and was given up at that of 3: from 4 on each save has a file to write over.
    assert storage.reused == ["checkpoint-model-0000000-0000001.safetensors"] * 3
    other = nn.Linear(1024, 1100, bias=False)
    reader = Bench(tmp_path / "other").manager(load_path=str(bench.root), no_load_optim=True)
    reader.restore({"model": other})
    assert (other.weight == 6).all()
    tier.close()
