"""Whose root it is: claimed once, refused to others, told when it cannot be written."""

from __future__ import annotations

import json
import os
import threading

import pytest

from elastic.checkpoint.layout import LAUNCH
from elastic.checkpoint.root import claim, write_problem
from elastic.checkpoint.seams import LockCommitter
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import RunMismatch, UsageError


def test_a_root_is_claimed_once(tmp_path):
    root = str(tmp_path / "a" / "b")
    first = claim(root, job_id="mine")
    assert first.job_id == "mine"
    assert claim(root, job_id="mine") == claim(root, job_id=None) == claim(root, job_id="none") == first
    assert sorted(os.listdir(root)) == ["elastic_run.json"]


def test_no_job_id_makes_one(tmp_path):
    one, other = claim(str(tmp_path / "a"), job_id="none"), claim(str(tmp_path / "b"), job_id=None)
    assert one.job_id not in ("none", other.job_id)
    assert one.lineage != other.lineage


def test_another_job_is_refused_with_both_remedies(tmp_path):
    claim(str(tmp_path), job_id="mine")
    with pytest.raises(RunMismatch, match=r"--rdzv-id=mine.*another checkpoint\.save_path") as caught:
        claim(str(tmp_path), job_id="yours")
    assert caught.value.exit_code == 64


def test_another_launch_goes_on_where_launches_leave_marks_or_nothing_was_saved(tmp_path):
    mine = claim(str(tmp_path), job_id="mine")
    assert claim(str(tmp_path), job_id="yours", any_launch=True) == mine
    (tmp_path / "iteration_00000010").mkdir()
    with pytest.raises(RunMismatch):
        claim(str(tmp_path), job_id="yours", any_launch=True)
    (tmp_path / LAUNCH).write_text("{}")
    assert claim(str(tmp_path), job_id="yours", any_launch=True) == mine
    with pytest.raises(RunMismatch):
        claim(str(tmp_path), job_id="yours")


def test_iterations_without_identity_are_another_runs(tmp_path):
    (tmp_path / "iteration_00000010").mkdir()
    with pytest.raises(RunMismatch, match=r"load_path.*move them away"):
        claim(str(tmp_path), job_id="mine")
    assert os.listdir(tmp_path) == ["iteration_00000010"]


def test_all_who_ask_at_once_agree(tmp_path):
    barrier = threading.Barrier(8)
    answers = []

    def ask():
        barrier.wait(10)
        answers.append(claim(str(tmp_path / "root"), job_id=None))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert os.listdir(tmp_path / "root") == ["elastic_run.json"]


def test_a_path_under_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=rf"{tmp_path}/file/root cannot be created: Not a directory.*Name a directory"):
        claim(str(tmp_path / "file" / "root"), job_id=None)
    with pytest.raises(UsageError, match="save_path is empty"):
        claim("", job_id=None)


def test_a_root_that_is_read_only_is_told(tmp_path):
    assert write_problem(str(tmp_path)) is None
    assert "not writable" in str(write_problem(str(tmp_path), access=lambda path, mode: False))
    assert "not a directory" in str(write_problem(str(tmp_path / "gone")))

    class ReadOnly(PosixStorage):
        def create(self, path: str, data: bytes) -> bool:
            raise OSError(30, "Read-only file system", path)

    with pytest.raises(UsageError, match=r"cannot be written.*Read-only.*write permission"):
        claim(str(tmp_path), job_id=None, storage=ReadOnly())


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"job_id": 3, "lineage": "x"}'])
def test_a_damaged_identity_is_told(tmp_path, text):
    (tmp_path / "elastic_run.json").write_text(text)
    with pytest.raises(UsageError, match=r"cannot be read.*write these two back"):
        claim(str(tmp_path), job_id=None)


def test_the_identity_file_is_plain_and_may_be_written_by_hand(tmp_path):
    claimed = claim(str(tmp_path), job_id="mine")
    path = tmp_path / "elastic_run.json"
    stored = json.loads(path.read_text())
    assert stored.pop("crc32") >= 0
    assert stored == {"job_id": "mine", "lineage": claimed.lineage}
    path.write_text(json.dumps(stored))
    assert claim(str(tmp_path), job_id="mine") == claimed


def test_a_lock_is_held_by_one(tmp_path):
    first = LockCommitter(str(tmp_path))
    assert first.record() is None
    with pytest.raises(UsageError, match="in use"):
        LockCommitter(str(tmp_path))
    first.close()
    LockCommitter(str(tmp_path)).close()


def test_publish_and_write_refuse_to_replace(tmp_path):
    storage = PosixStorage()
    for name in ("a", "b"):
        storage.make_dir(str(tmp_path / name))
        storage.write(str(tmp_path / name / "x"), name.encode())
    with pytest.raises(FileExistsError):
        storage.publish(str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(FileExistsError):
        storage.write(str(tmp_path / "a" / "x"), b"")
    storage.publish(str(tmp_path / "a"), str(tmp_path / "c"))
    assert (tmp_path / "c" / "x").read_bytes() == b"a"
    assert (tmp_path / "b" / "x").read_bytes() == b"b"


def test_publish_refuses_also_without_the_system_call(tmp_path, monkeypatch):
    monkeypatch.setattr("elastic.checkpoint.storage._rename_noreplace", lambda source, target: False)
    test_publish_and_write_refuse_to_replace(tmp_path)


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        PosixStorage().write(str(tmp_path / "x"), b"1")
        PosixStorage().replace(str(tmp_path / "y"), b"1")
        PosixStorage().create(str(tmp_path / "z"), b"1")
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in "xyz"} == {0o640}
