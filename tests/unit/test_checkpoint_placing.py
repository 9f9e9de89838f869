"""Reading into the tensors that are there: the same bytes, verified, and nothing touched before all ranks agree."""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint import placing
from elastic.checkpoint.checksums import crc32, facts_of
from elastic.checkpoint.image import heap_image
from elastic.checkpoint.layout import ShardKind
from elastic.checkpoint.partial import VerifiedFile
from elastic.checkpoint.placing import apart, read_placed
from elastic.checkpoint.shards import Shard
from elastic.checkpoint.state import overwritable
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import CheckpointDamaged, CheckpointError
from tests.harness.checkpoints import Bench, make_run, meta, same

NAME = "model-0000000-0000001.safetensors"


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def places(run):
    """Of all but one: `Tied` has a weight that lies column by column, which a file's bytes do not fit."""
    live = overwritable(run.tracked)
    return {
        name: each.data_ptr() for name, each in live.items() if not name.startswith("exp_avg") or "body" not in name
    }


def tensors():
    made = {f"t{at}": torch.randn(at, 3) for at in range(6)}
    return made | {"half": torch.randn(65).bfloat16(), "flag": torch.tensor(True), "wave": torch.randn(5) + 1j}


def written(tmp_path, state, *, chunk_bytes=64):
    data = heap_image(Shard(name=NAME, kind=ShardKind.MODEL, tensors=state)).data
    (tmp_path / NAME).write_bytes(data)
    return facts_of(data, chunk_bytes=chunk_bytes)


def read(tmp_path, facts, live, *, threads=1):
    storage = PosixStorage()
    entries = VerifiedFile(str(tmp_path), NAME, facts, storage=storage).entries()
    path = str(tmp_path / NAME)
    return read_placed(path, facts, entries, live=live, storage=storage, name=NAME, threads=threads)


def test_what_is_there_stays_where_it_is(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager().save(make_run().step(3).tracked, meta(3))
    other = make_run(seed=5).step(2)
    before = places(other)
    assert any(name.startswith("exp_avg_sq.") for name in before)
    assert bench.manager().restore(other.tracked).iteration == 3
    assert places(other) == before
    assert same(other, make_run().step(3))
    other.steps = 3
    assert same(other.step(2), make_run().step(5))


def test_a_new_process_gets_its_moments_in_memory_of_their_own(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager().save(make_run().step(3).tracked, meta(3))
    fresh = make_run(seed=5)
    before = places(fresh)
    bench.manager().restore(fresh.tracked)
    assert before.items() <= places(fresh).items()
    fresh.steps = 3
    assert same(fresh.step(2), make_run().step(5))


def test_what_does_not_fit_is_told_before_anything_is_touched(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager().save(make_run().step(3).tracked, meta(3))
    other = make_run(seed=5, make=lambda model: torch.optim.AdamW([model.body.weight, *model.norm.parameters()]))
    before = other.bits()
    with pytest.raises(CheckpointError, match="optimizer: embed"):
        bench.manager().restore(other.tracked)
    after = other.bits()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_damage_found_halfway_is_overwritten_by_the_next_candidate(tmp_path):
    bench = Bench(tmp_path / "root")
    run = make_run()
    manager = bench.going_on()
    for iteration in (1, 2):
        assert manager.save(run.step().tracked, meta(iteration)).saved
    (path,) = bench.directory(2).glob("*-opt-*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    other = make_run(seed=5).step(4)
    assert bench.manager().restore(other.tracked).iteration == 1
    assert "its checksum does not match in bytes" in bench.reasons("checkpoint_rejected")
    assert same(other, make_run().step(1))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunk_bytes", [7, 64, 1 << 20])
def test_every_flipped_byte_is_found(tmp_path, monkeypatch, threads, chunk_bytes):
    monkeypatch.setattr(placing, "_SPAN_BYTES", 200)
    monkeypatch.setattr(placing, "_BATCH_BYTES", 100)
    state = tensors()
    facts = written(tmp_path, state, chunk_bytes=chunk_bytes)
    live = {name: torch.zeros_like(each) for name, each in state.items() if name != "t3"}
    found = read(tmp_path, facts, live, threads=threads)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], each) for name, each in state.items())
    assert all(found[name] is live[name] for name in live)
    sound = (tmp_path / NAME).read_bytes()
    for at in range(0, len(sound), 13):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8
        (tmp_path / NAME).write_bytes(damaged)
        with pytest.raises(CheckpointDamaged, match="does not match"):
            read(tmp_path, facts, live, threads=threads)


def test_a_file_that_is_cut_or_gone_is_told(tmp_path):
    facts = written(tmp_path, tensors())
    storage = PosixStorage()
    entries = VerifiedFile(str(tmp_path), NAME, facts, storage=storage).entries()
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointDamaged, match=f"has {facts.size_bytes - 5} bytes, expected {facts.size_bytes}"):
        read_placed(str(path), facts, entries, live={}, storage=storage, name=NAME)
    path.unlink()
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        read_placed(str(path), facts, entries, live={}, storage=storage, name=NAME)


def test_only_what_the_bytes_fit_is_read_into(tmp_path):
    state = {"plain": torch.randn(4, 4), "turned": torch.randn(4, 4), "wide": torch.randn(4, 4)}
    facts = written(tmp_path, state)
    live = {"plain": torch.zeros(4, 4), "turned": torch.zeros(4, 4).t(), "wide": torch.zeros(4, 4).double()}
    live["turned"] = torch.zeros(8, 4)[::2]
    found = read(tmp_path, facts, live)
    assert [found[name] is live[name] for name in ("plain", "turned", "wide")] == [True, False, False]
    assert all(torch.equal(found[name], each) for name, each in state.items())


def test_tensors_that_share_memory_are_left_alone():
    whole = torch.zeros(8)
    live = {"a": whole[:4], "b": whole[4:], "c": whole[2:5], "own": torch.zeros(3), "none": torch.zeros(0)}
    assert apart(live).keys() == {"own", "none"}
    assert apart({"a": whole[:4], "b": whole[4:]}).keys() == {"a", "b"}


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=20_000), st.integers(0, 2**32 - 1))
def test_the_checksum_is_the_one_that_zlib_computes(data, before):
    assert crc32(data, before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)) == zlib.crc32(data)
