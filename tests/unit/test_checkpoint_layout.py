"""Names and small texts of a checkpoint: built, parsed, and refused where they are not what they should be."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint import layout
from elastic.checkpoint.layout import CommitRecord, CommonInfo, ShardKind
from elastic.checkpoint.manifest import FileFacts, Manifest, digest, record_of
from elastic.checkpoint.metadata import StoredTensor, TensorFacts, build_metadata, parse_metadata

quick = settings(deadline=None, max_examples=50)
numbers = st.integers(0, 10**9)


@quick
@given(numbers)
def test_iteration_names_come_back(iteration):
    assert layout.parse_iteration_dir(layout.iteration_dir(iteration)) == iteration
    aside = layout.aside_name(layout.iteration_dir(iteration), nonce="ab12")
    assert layout.parse_aside_name(aside) == iteration
    assert layout.parse_iteration_dir(aside) is None
    assert layout.parse_tracker(layout.build_tracker(iteration)).iteration == iteration


@pytest.mark.parametrize(
    "name", ["iteration_1", "iteration_000000001", "iteration_-0000001", "iteration_0000000a", "Iteration_00000001", ""]
)
def test_other_names_are_no_iterations(name):
    assert layout.parse_iteration_dir(name) is None


@quick
@given(st.sampled_from(ShardKind), st.integers(0, 9_999_999), st.integers(0, 9_999_999), st.sampled_from(["", "a-b"]))
def test_shard_names_come_back(kind, index, total, prefix):
    name = layout.shard_name(kind, index=index, total=total, prefix=prefix)
    for text in (name, name.removesuffix("s")):
        parsed = layout.parse_shard_name(text)
        assert parsed is not None
        assert (parsed.kind, parsed.index, parsed.total, parsed.prefix) == (kind, index, total, prefix)


def test_temporary_names_tell_their_generation():
    assert layout.parse_temp_name(layout.temp_name(iteration=7, generation=12, nonce="0af")) == 12
    assert layout.parse_temp_name(".tmp-7-x-0af") is None


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", ".hidden", "", "a\0b", None, 3, "x" * 300, ".."])
def test_paths_in_files_are_refused(name):
    assert not layout.is_safe_name(name)
    data = _manifest().to_bytes()
    body = json.loads(data)["manifest"]
    body["files"] = {str(name): [1, 2]}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    altered = f'{{"crc32":{zlib.crc32(text.encode())},"manifest":{text}}}\n'.encode()
    if name not in (None, 3):
        with pytest.raises(ValueError, match="not a plain file name"):
            Manifest.from_bytes(altered)


def _manifest(**changes):
    values = {
        "job_id": "job",
        "lineage": "abc",
        "generation": 3,
        "iteration": 20,
        "consumed_samples": 160,
        "world_size": 2,
        "global_batch_size": 8,
        "seed": 1,
        "order_version": 1,
        "run_digest": 2**63,
        "settings": {"a": [1, 2.5, None, "ü"]},
        "values": {"objects": {}},
        "has_optimizer": True,
        "torch_version": "2",
        "ancestors": ("aa", "bb"),
        "files": {"common.json": FileFacts(size_bytes=3, crc32=5)},
    }
    return Manifest(**(values | changes))


def test_a_manifest_comes_back_and_makes_its_record():
    manifest = _manifest()
    data = manifest.to_bytes()
    assert Manifest.from_bytes(data) == manifest
    record = record_of(manifest, data)
    assert record.manifest_digest == digest(data)
    assert CommitRecord.from_plain(json.loads(json.dumps(record.to_plain()))) == record


@quick
@given(st.data())
def test_no_flipped_bit_of_a_manifest_passes(data):
    raw = bytearray(_manifest().to_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"elastic\.json"):
        Manifest.from_bytes(bytes(raw))


def test_what_is_not_json_cannot_be_settings():
    for odd in (float("nan"), object(), {1, 2}):
        with pytest.raises(ValueError, match=r"JSON|cannot be written"):
            _manifest(settings={"x": odd}).to_bytes()


@pytest.mark.parametrize("plain", [None, [], {}, {"iteration": True}, {"iteration": 1, "lineage": 2}])
def test_what_is_no_commit_record(plain):
    with pytest.raises(ValueError, match="commit record"):
        CommitRecord.from_plain(plain)


def test_json_is_bounded_and_an_object():
    for data in (b"[1]", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(ValueError, match="thing"):
            layout.load_json(data, what="thing")
    with pytest.raises(ValueError, match="has 9 bytes"):
        layout.load_json(b'{"a": 11}', what="thing", limit_bytes=8)


def test_common_info_of_other_versions_is_read():
    data = b'{"epoch_num": null, "global_step": 1000, "global_batch_size": 64, "later": 1}'
    common = CommonInfo.from_bytes(data)
    assert (common.global_step, common.global_batch_size, common.consumed_samples) == (1000, 64, 0)
    with pytest.raises(ValueError, match="global_step"):
        CommonInfo.from_bytes(b'{"global_step": "many"}')


def test_metadata_comes_back():
    facts = [
        TensorFacts(name="w, odd", dtype="F32", shape=(2, 3), whole=(2, 3), offset=(0, 0)),
        TensorFacts(name="step", dtype="F32", shape=(), whole=(), offset=()),
        TensorFacts(name="b", dtype="BF16", shape=(3,), whole=(7,), offset=(4,)),
        TensorFacts(name="b", dtype="BF16", shape=(4,), whole=(7,), offset=(0,)),
    ]
    assert [TensorFacts.from_plain(json.loads(json.dumps(each.to_plain()))) for each in facts] == facts
    data = build_metadata(StoredTensor(facts=each, file_name="f.safetensors", rank=1) for each in facts)
    pieces = {piece.name: piece for piece in parse_metadata(data)}
    assert pieces["w, odd"].global_shape == (2, 3)
    assert pieces["w, odd"].offset == (0, 0)
    assert pieces["step"].offset == ()
    plain = json.loads(data)
    assert plain["state_dict_metadata"]["b"]["properties"]["dtype"] == "BFloat16"
    assert set(plain["storage_data"]) == {"('w, odd', (0, 0))", "('step', ())", "('b', (0,))", "('b', (4,))"}
    assert plain["state_dict_metadata"]["b"]["axis_fragmentations"] == [2]
    assert [each["global_offset"] for each in plain["state_dict_metadata"]["b"]["chunk"]] == [[0], [4]]


@pytest.mark.parametrize(
    ("key", "entries"),
    [
        ("('w', (0, 0))", [{"file_name": "../w.safetensors"}]),
        ("('w', (0, 0))", []),
        ("('w', (0,))", [{"file_name": "w.safetensors"}]),
        ("__import__('os')", [{"file_name": "w.safetensors"}]),
        ("('v', (0, 0))", [{"file_name": "w.safetensors"}]),
    ],
)
def test_metadata_that_is_not_what_it_claims(key, entries):
    state = {"w": {"global_shape": [2, 3]}}
    data = json.dumps({"state_dict_metadata": state, "storage_data": {key: entries}}).encode()
    with pytest.raises(ValueError, match=r"metadata\.json"):
        parse_metadata(data)


def test_agents_need_no_torch_for_this():
    names = ["layout", "manifest", "metadata", "policy", "root", "seams", "storage", "survey", "restoring", "keeping"]
    code = (
        f"import sys; {'; '.join(f'import elastic.checkpoint.{name}' for name in names)}; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
