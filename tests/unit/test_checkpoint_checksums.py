"""Checksums by chunk: every flipped bit is found, and told by file, tensor and place."""

from __future__ import annotations

import itertools
import json
import re
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from elastic.checkpoint.checksums import CHUNK_BYTES, facts_of, fault_of
from elastic.checkpoint.manifest import FORMAT, FileFacts, Manifest
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import NothingToRestore
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.golden import GOLDEN, ITERATIONS, known_run

NAME = "model-0000000-0000001.safetensors"
TENSORS = {
    "b": torch.arange(40.0),
    "a.weight": torch.ones(3, 3),
    "none": torch.zeros(0, 3),
    "scalar": torch.tensor(1.0),
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def places(data):
    """By hand: where each tensor of a file lies."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return {name: [8 + length + at for at in each["data_offsets"]] for name, each in header.items() if "dtype" in each}


@pytest.mark.parametrize("chunk_bytes", [16, 100, CHUNK_BYTES])
def test_every_bit_of_a_file_is_found_in_its_tensor(chunk_bytes):
    data = save(TENSORS)
    facts = facts_of(data, chunk_bytes=chunk_bytes)
    assert fault_of(data, facts, name=NAME) is None
    for byte in range(len(data)):
        fault = fault_of(flipped(data, byte * 8 + byte % 8), facts, name=NAME)
        assert fault is not None
        start, end = (int(each) for each in re.search(r"in bytes (\d+) to (\d+)", fault).groups())
        assert start <= byte <= end
        assert end - start < chunk_bytes
        for name, (first, last) in places(data).items():
            if first <= byte < last:
                assert f"({name})" in fault, fault


def test_several_damaged_tensors_are_all_told():
    data = save(TENSORS)
    facts = facts_of(data)
    first, scalar = places(data)["b"][0], places(data)["scalar"][0]
    fault = fault_of(flipped(flipped(data, first * 8), scalar * 8), facts, name=NAME)
    assert "(b) and in bytes" in fault
    assert "(scalar)" in fault


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_chunks_add_up(data, chunk_bytes):
    facts = facts_of(data, chunk_bytes=chunk_bytes)
    ends = [0, *(end for end, _ in facts.chunks)]
    assert (facts.size_bytes, facts.crc32) == (len(data), zlib.crc32(data))
    assert ends[-1] == len(data)
    assert all(0 < after - before <= chunk_bytes for before, after in itertools.pairwise(ends))
    assert [crc32 for _, crc32 in facts.chunks] == [zlib.crc32(data[:end]) for end in ends[1:]]
    assert fault_of(data, facts, name="x") is None


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=1, max_size=300), st.data())
def test_damage_of_any_kind_is_found_and_never_raises(data, draw):
    facts = facts_of(data, chunk_bytes=7)
    other = draw.draw(st.binary(max_size=300).filter(lambda each: each != data))
    assert fault_of(other, facts, name="x") is not None


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=60))
def test_a_hostile_header_only_costs_names(rest):
    for length in (0, len(rest), 1 << 62):
        data = length.to_bytes(8, "little") + rest
        assert facts_of(data).chunks[-1] == (len(data), zlib.crc32(data))


def manifest_text(chunks):
    facts = {"x.bin": FileFacts(size_bytes=9, crc32=5, chunks=chunks)}
    empty = {"settings": {}, "values": {}, "files": facts, "ancestors": ()}
    return Manifest(
        job_id="j", lineage="l", generation=1, iteration=1, consumed_samples=8, world_size=1, global_batch_size=8,
        seed=0, order_version=1, run_digest=0, has_optimizer=True, torch_version="2", chunk_bytes=CHUNK_BYTES, **empty
    ).to_bytes()  # fmt: skip


@pytest.mark.parametrize("chunks", [((9, 4),), ((4, 1), (4, 2), (9, 5)), ((4, 1), (8, 5)), ((-1, 3), (9, 5)), ((1,),)])
def test_chunks_that_do_not_add_up_are_refused(chunks):
    with pytest.raises(ValueError, match=r"facts of 'x\.bin'"):
        Manifest.from_bytes(manifest_text(chunks))


def test_chunks_come_back():
    back = Manifest.from_bytes(manifest_text(((4, 1), (9, 5))))
    assert (back.files["x.bin"].chunks, back.chunk_bytes) == (((4, 1), (9, 5)), CHUNK_BYTES)


def test_a_restore_tells_file_tensor_and_place(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager().save(make_run().tracked, meta(10))
    path = next(bench.directory(10).glob("*-model-*"))
    data = path.read_bytes()
    at = places(data)["embed.weight"][0]
    path.write_bytes(flipped(data, at * 8))
    with pytest.raises(NothingToRestore, match=rf"{path.name} is not .* in bytes {at} to \d+ \(embed\.weight\)"):
        bench.manager().restore(make_run().tracked)


@pytest.mark.parametrize("version", [path.name for path in sorted(GOLDEN.iterdir())])
def test_directories_of_every_version_stay_readable(tmp_path, version):
    bench = Bench(tmp_path / "root")
    for iteration in ITERATIONS:
        other = make_run(seed=3)
        path = GOLDEN / version / f"iteration_{iteration:08d}"
        restored = bench.manager(load_path=str(path)).restore(other.tracked)
        assert (restored.iteration, restored.consumed_samples) == (iteration, iteration * 8)
        assert same(other, known_run(iteration))
    assert bench.manager(load_path=str(GOLDEN / version)).restore(make_run().tracked).iteration == ITERATIONS[-1]


def test_there_is_a_golden_directory_of_every_version():
    storage = PosixStorage()
    for version in range(1, FORMAT + 1):
        data = storage.read(str(GOLDEN / f"format-{version}" / "iteration_00000004" / "elastic.json"))
        assert f'"format":{version},' in data.decode()
        assert Manifest.from_bytes(data).chunk_bytes == (CHUNK_BYTES if version > 1 else 0)
