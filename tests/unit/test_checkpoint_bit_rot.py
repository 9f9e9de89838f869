"""One flipped bit in every region of every file of a root: found, named, answered with the newest good iteration."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from elastic.checkpoint.root import claim
from elastic.errors import UsageError
from tests.harness.checkpoints import Bench, NoRecord, RecordCommitter, make_run, meta, same

TRACKER = "latest_checkpointed_iteration.txt"
IDENTITY = "elastic_run.json"


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A root with three iterations, and what each of them holds."""
    bench, runs = Bench(tmp_path_factory.mktemp("rot") / "root"), {}
    manager = bench.manager(generation=1)
    for iteration in (10, 20, 30):
        runs[iteration] = make_run().step(iteration)
        assert manager.save(runs[iteration].tracked, meta(iteration)).saved
    return bench, runs


def regions(path):
    """A byte of each region: of a shard the length, the header, both ends of each tensor; else bytes all over."""
    data = path.read_bytes()
    if path.suffix != ".safetensors":
        return sorted({0, len(data) // 3, len(data) // 2, len(data) - 1})
    length = int.from_bytes(data[:8], "little")
    at = [0, 7, 8, 8 + length // 2, 8 + length - 1]
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and entry["data_offsets"][0] < entry["data_offsets"][1]:
            at += [8 + length + entry["data_offsets"][0], 7 + length + entry["data_offsets"][1]]
    return sorted(set(at))


def flip(path, byte, bit):
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def check_all(original, tmp_path, committer, places):
    """Flip each of (file, byte, bit) in turn in a copy; what is told and restored is compared."""
    bench, runs = original
    copy = tmp_path / "root"
    count = 0
    for path, byte, bit in places:
        shutil.copytree(bench.root, copy)
        relative = path.relative_to(bench.root)
        flip(copy / relative, byte, bit)
        after = Bench(copy, committer=committer(bench.committer.kept))
        other, what = make_run(seed=5), f"{relative} byte {byte} bit {bit}"
        iteration = after.manager(generation=1).restore(other.tracked).iteration
        damaged = relative.parts[0] == "iteration_00000030"
        assert iteration == (20 if damaged else 30), what
        assert same(other, runs[iteration]), what
        if damaged:
            assert after.kinds().count("checkpoint_rejected") == 1, what
            assert path.name in after.reasons("checkpoint_rejected"), what
        shutil.rmtree(copy)
        count += 1
    return count


def every_place(bench, step):
    for path in sorted(each for each in bench.root.rglob("*") if each.is_file() and each.name != IDENTITY):
        for index, byte in enumerate(regions(path)):
            if index % step == 0 or index == 0:
                yield path, byte, (byte + index) % 8


@pytest.mark.parametrize("committer", [RecordCommitter, NoRecord])
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_bit_in_every_region_of_every_file(original, tmp_path, committer, step):
    assert check_all(original, tmp_path, committer, every_place(original[0], step)) > 200 // step


@pytest.mark.parametrize("committer", [RecordCommitter, NoRecord])
def test_every_bit_of_the_tracker(original, tmp_path, committer):
    bench, _ = original
    places = [(bench.root / TRACKER, byte, bit) for byte in range(2) for bit in range(8)]
    assert check_all(original, tmp_path, committer, places) == 16


@pytest.mark.exhaustive
def test_every_byte_of_the_newest_manifest(original, tmp_path):
    bench, _ = original
    path = bench.directory(30) / "elastic.json"
    places = [(path, byte, byte % 8) for byte in range(path.stat().st_size)]
    assert check_all(original, tmp_path, RecordCommitter, places) > 2000


def test_every_bit_of_the_identity_is_found_and_named(original, tmp_path):
    bench, _ = original
    path = tmp_path / IDENTITY
    for byte in range((bench.root / IDENTITY).stat().st_size):
        for bit in range(8):
            shutil.copy(bench.root / IDENTITY, path)
            flip(path, byte, bit)
            with pytest.raises(UsageError, match=f"{IDENTITY} cannot be read"):
                claim(str(tmp_path), job_id=None)
