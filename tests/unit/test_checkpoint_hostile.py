"""Hostile input: whatever a file says, the answer is an error of ours, at once, and no memory for mere claims."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
import subprocess
import sys
import zlib

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from elastic.checkpoint.foreign import read_foreign
from elastic.checkpoint.header import header_bytes, parse_header
from elastic.checkpoint.huggingface import INDEX, parse_index
from elastic.checkpoint.layout import CommonInfo, parse_tracker
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.metadata import parse_metadata
from elastic.checkpoint.shards import decode_shard, encode_shard, original_form
from elastic.checkpoint.state import capture, prepare
from elastic.checkpoint.storage import PosixStorage
from elastic.checkpoint.survey import survey
from elastic.errors import CheckpointDamaged, CheckpointError
from tests.harness.checkpoints import Bench, NoRecord, make_run, meta

many = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


MORE_BYTES = 64 << 20
"""What a parser may take beyond what the process has. The largest text here is one of 0.6 MB."""


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@contextlib.contextmanager
def little_memory():
    """Whatever takes memory for a mere claim meets an error that no test here takes for an answer."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MORE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def test_the_limit_is_there():
    with pytest.raises(MemoryError), little_memory():
        bytearray(2 * MORE_BYTES)
    with pytest.raises(RuntimeError, match="allocate memory"), little_memory():
        torch.empty(2 * MORE_BYTES, dtype=torch.uint8)


numbers = st.one_of(
    st.integers(),
    st.sampled_from([-1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 1e308, float("inf"), float("nan"), True]),
)
names = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["..", "../x", "/etc/passwd", "a/b", "", ".", "x" * 300, "\0", "file-0000000-0000001.safetensors"]),
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, names),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=10,
)


def spoilt(plain):
    """One place of a JSON value replaced, taken away or doubled."""
    if isinstance(plain, dict) and plain:
        key = st.sampled_from(sorted(plain))
        return st.one_of(
            anything,
            key.map(lambda each: {name: value for name, value in plain.items() if name != each}),
            st.tuples(key, names).map(lambda two: {two[1] if n == two[0] else n: v for n, v in plain.items()}),
            key.flatmap(lambda each: spoilt(plain[each]).map(lambda value: plain | {each: value})),
        )
    if isinstance(plain, list) and plain:
        at = st.integers(0, len(plain) - 1)
        return st.one_of(
            anything,
            at.map(lambda each: plain[:each] + plain[each + 1 :]),
            at.map(lambda each: [*plain, plain[each]]),
            at.flatmap(lambda each: spoilt(plain[each]).map(lambda value: [*plain[:each], value, *plain[each + 1 :]])),
        )
    return anything


def outcome(function, *args, kind=ValueError, **named):
    """What it gives, or None and the message of its error; any other error is the test's failure."""
    try:
        with little_memory():
            return function(*args, **named), ""
    except kind as error:
        told = str(error)
    assert "allocate memory" not in told, "torch says so where it met the limit"
    return None, told


def text_of(plain):
    return json.dumps(plain).encode()


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
TEXTS = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":1,"a":2}', DEEP, b"[" * 200_000, b'{"a":' + b"9" * 9_000 + b"}"]
texts = st.integers(0, len(TEXTS) - 1).map(TEXTS.__getitem__)  # by number: hypothesis prints what it draws from
COMMON = {"epoch_num": 1, "step_num": 2, "global_step": 2, "loss_scale": 1.0, "global_batch_size": 8}
METADATA = {
    "state_dict_metadata": {"w": {"properties": {"dtype": "Float32"}, "global_shape": [4, 3], "layout": None}},
    "storage_data": {
        "('w', (0, 0))": [{"file_name": "p-model-0000000-0000002.safetensors", "storage_rank": 0, "rank_group": [0]}],
        "('w', (2, 0))": [{"file_name": "p-model-0000001-0000002.safetensors", "storage_rank": 1, "rank_group": [1]}],
    },
}
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
}


def signed(body):
    """A manifest whose checksum is right, whatever it says."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f'{{"crc32":{zlib.crc32(text.encode())},"manifest":{text}}}\n'.encode()


def manifest(**changes):
    body = {
        "job_id": "j",
        "lineage": "l",
        "files": {"common.json": [2, 3]},
        "ancestors": [],
        "values": {},
        "settings": {},
        "torch_version": "2",
        "has_optimizer": True,
    }
    ints = ("generation", "iteration", "consumed_samples", "world_size", "global_batch_size", "seed")
    return {"format": 1, **dict.fromkeys((*ints, "order_version", "run_digest"), 1), **body, **changes}


@many
@given(st.one_of(spoilt(COMMON).map(text_of), st.binary(max_size=40), texts))
@example(text_of(COMMON | {"global_step": float("inf")}))
def test_common(data):
    common, told = outcome(CommonInfo.from_bytes, data)
    assert common is not None or "common.json" in told
    assert common is None or common.consumed_samples in range(2**63)


@many
@given(st.one_of(spoilt(METADATA).map(text_of), st.binary(max_size=40), texts))
def test_metadata(data):
    pieces, told = outcome(parse_metadata, data)
    assert pieces is not None or "metadata.json" in told
    for each in pieces or ():
        assert "/" not in each.file_name
        assert not each.file_name.startswith(".")
        assert len(each.offset) == len(each.global_shape)


@many
@given(st.text(max_size=20), st.lists(st.integers(0, 10**6), max_size=4))
def test_every_name_and_offset_survives_the_key_of_metadata(name, offset):
    plain = json.loads(text_of(METADATA))
    plain["state_dict_metadata"] = {name: {"global_shape": [10**7] * len(offset)}}
    plain["storage_data"] = {str((name, tuple(offset))): plain["storage_data"]["('w', (0, 0))"]}
    (piece,) = parse_metadata(text_of(plain))
    assert (piece.name, list(piece.offset)) == (name, offset)


@many
@given(st.one_of(spoilt(manifest()).map(signed), spoilt(manifest()).map(text_of), texts))
def test_manifest(data):
    read, told = outcome(Manifest.from_bytes, data)
    assert read is not None or "elastic.json" in told
    assert read is None or min(read.iteration, read.consumed_samples, read.generation) >= 0
    assert all("/" not in name and not name.startswith(".") for name in (read.files if read else ()))


@many
@given(st.one_of(st.binary(max_size=30), st.text(max_size=30).map(str.encode), texts))
def test_tracker(data):
    found = parse_tracker(data)
    assert (found.iteration is None) or 0 <= found.iteration < 10**18
    assert found.reason


@many
@given(st.one_of(spoilt({"metadata": {}, "weight_map": {"w": "a.safetensors"}}).map(text_of), texts))
def test_index(data):
    weights, told = outcome(parse_index, data)
    assert weights is not None or INDEX in told
    assert all("/" not in each for each in (weights or {}).values())


@many
@given(spoilt(HEADER).map(text_of), st.integers(0, 60))
@example(text_of(HEADER), 26)
@example(text_of(HEADER | {"c": {"dtype": "F32", "shape": [2**62, 2**62, 0], "data_offsets": [26, 26]}}), 26)
@example(DEEP, 0)
def test_a_header_is_read_strictly_and_never_beyond_the_library(head, length):
    data = struct.pack("<Q", len(head)) + head + b"\0" * length
    entries, told = outcome(parse_header, head, size_bytes=len(data), what="file")
    assert "file" in told if entries is None else sum(each.end - each.begin for each in entries) == length
    tensors, told = outcome(decode_shard, data, file_name="file", kind=CheckpointDamaged)
    assert tensors is not None or "file" in told
    assert sum(each.numel() * each.element_size() for each in (tensors or {}).values()) in (0, length)


@many
@given(st.binary(max_size=8), st.integers(0, 2**40))
def test_the_length_of_a_header_is_believed_only_if_it_fits(first, size_bytes):
    length, told = outcome(header_bytes, first, size_bytes=size_bytes, what="file")
    assert "file" in told if length is None else length <= size_bytes - 8


@many
@given(st.one_of(anything, spoilt({"dtype": "complex128", "strides": [1, 2]})))
@example({"strides": [10**15, 1]})
@example({"strides": [10**400, 1]})
def test_notes_on_a_tensor(note):
    for shape in ((2, 2), (0, 2), ()):
        back, told = outcome(original_form, torch.zeros(shape, dtype=torch.float64), note, kind=CheckpointDamaged)
        assert told if back is None else back.untyped_storage().nbytes() <= 32


def _state():
    return capture(make_run().step().tracked)


STATE = json.loads(json.dumps(_state().values))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A root with one iteration, whose manifest a test may write anew."""
    bench = Bench(tmp_path_factory.mktemp("hostile") / "root", committer=NoRecord())
    bench.manager().save(make_run().step().tracked, meta(10))
    return bench, json.loads((bench.directory(10) / "elastic.json").read_text())["manifest"]


@settings(deadline=None, max_examples=100)
@given(spoilt(STATE))
@example(STATE | {"objects": {"model": {"$": "tensor", "name": "x", "again": [{"$": "tensor", "name": "x"}]}}})
def test_values_of_a_manifest_whose_checksum_is_right(saved, values):
    bench, body = saved
    (bench.directory(10) / "elastic.json").write_bytes(signed(body | {"values": values}))
    restored, told = outcome(bench.manager().restore, make_run(seed=3).tracked, kind=CheckpointError)
    assert restored is not None or told


def test_a_tensor_used_many_times_is_refused():
    captured = _state()
    name = next(iter(captured.opt))
    objects = captured.values["objects"] | {"more": [{"$": "tensor", "name": name}] * 1000}
    with pytest.raises(CheckpointDamaged, match="in several places"):
        prepare(type(captured)(model={}, opt=captured.opt, values={"objects": objects}), make_run().tracked)


def foreign(directory, *, shape=(4, 3), offsets=((0, 0), (2, 0)), files=(0, 1), parts=((2, 3), (2, 3))):
    os.makedirs(directory, exist_ok=True)
    for at, part in enumerate(parts):
        data, _ = encode_shard({"w": torch.full(part, float(at))})
        (directory / f"p-model-{at:07d}-0000002.safetensors").write_bytes(data)
    plain = {"state_dict_metadata": {"w": {"global_shape": list(shape)}}, "storage_data": {}}
    for offset, file in zip(offsets, files, strict=True):
        entry = {"file_name": f"p-model-{file:07d}-0000002.safetensors", "storage_rank": file, "rank_group": [file]}
        plain["storage_data"][str(("w", offset))] = [entry]
    (directory / "metadata.json").write_text(json.dumps(plain))
    return str(directory)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"shape": (10**9, 10**9)}, "hold 12 elements, expected 1000000000000000000"),
        ({"offsets": ((0, 0), (1, 0))}, "lies over another one"),
        ({"offsets": ((0, 0), (3, 0))}, "does not fit"),
        ({"files": (0, 0)}, "uses one piece in several places"),
        ({"parts": ((2, 3), (2, 3, 1))}, "does not fit"),
        ({"shape": (4, 4)}, "expected 16"),
    ],
)
def test_pieces_that_do_not_make_a_tensor(tmp_path, change, told):
    assert read_foreign(foreign(tmp_path / "good"), storage=PosixStorage()).model["w"].sum() == 6
    with pytest.raises(CheckpointDamaged, match=told):
        read_foreign(foreign(tmp_path / "bad", **change), storage=PosixStorage())


LIMITED = """
import resource, sys
from elastic.checkpoint.foreign import read_foreign
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import CheckpointDamaged
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
for path in sys.argv[1:]:
    try:
        read_foreign(path, storage=PosixStorage())
    except CheckpointDamaged as error:
        print(error)
    else:
        sys.exit(path)
"""


def test_no_memory_is_taken_for_what_is_only_claimed(tmp_path):
    """In a process that may have 64 MiB more: shapes, strides and sizes that claim terabytes end in a message."""
    paths = [foreign(tmp_path / "shape", shape=(10**6, 10**6))]
    paths.append(foreign(tmp_path / "sparse"))
    head = text_of({"w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}})
    with open(tmp_path / "sparse" / "p-model-0000000-0000002.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + 2**40)
    command = [sys.executable, "-c", LIMITED, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "expected 1000000000000" in done.stdout
    assert "more than can be read into memory" in done.stdout


@pytest.mark.parametrize("name", ["common.json", "metadata.json", "elastic.json"])
@pytest.mark.parametrize("data", TEXTS, ids=range(len(TEXTS)))
def test_a_root_with_a_rotten_text_falls_back_or_says_so(tmp_path, name, data):
    bench = Bench(tmp_path / "root")
    run = make_run().step()
    bench.manager().save(run.tracked, meta(10))
    (bench.directory(10) / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        bench.manager().restore(make_run().tracked)
    assert survey(str(bench.root), storage=PosixStorage()).found[0].problem
