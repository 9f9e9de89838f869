"""Files that commands write: whole or not at all, through links, and never in the place of a device."""

import os
import stat
import threading

import pytest

from elastic.cli.files import write_whole
from elastic.errors import UsageError


def test_a_link_stays_one_and_its_file_is_written(tmp_path):
    kept, link = tmp_path / "kept", tmp_path / "link"
    kept.write_text("before")
    link.symlink_to(kept)
    write_whole(link, "after")
    assert link.is_symlink()
    assert kept.read_text() == "after"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "link"]


def test_what_is_no_regular_file_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join()
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["file/inside", "missing/inside", ""])
def test_where_nothing_can_be_written_it_is_said(tmp_path, name):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(tmp_path / name, "text")
    assert (tmp_path / "file").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
