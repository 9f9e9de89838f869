"""Event files on disks that are at work, that stall, that refuse, and that never come back."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from elastic.events.files import EventFile
from tests.harness.until import until


class Disk:
    """`os.write` that waits while it stalls, and refuses while told to."""

    def __init__(self):
        self.runs = threading.Event()
        self.runs.set()
        self.refuses = False
        self.begun = 0

    def write(self, fd, data):
        self.begun += 1
        assert self.runs.wait(30)
        if self.refuses:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def file(tmp_path, disk):
    file = EventFile(
        tmp_path / "events" / "n.jsonl", patience_s=0.05, most_waiting_bytes=1000, end_s=0.05, write=disk.write
    )
    yield file
    disk.runs.set()
    file.close()
    file._thread.join(10)


def lines(file):
    return file._path.read_text().split("\n")[:-1]


def test_what_was_appended_is_there_when_it_returns(file):
    for number in range(50):
        file.append_encoded(f"line {number}")
        assert lines(file)[-1] == f"line {number}"
    assert len(lines(file)) == 50


def test_lines_of_many_threads_and_files_never_mix(file):
    other = EventFile(file._path)

    def write(name, into):
        for number in range(100):
            into.append_encoded(f"{name} {number} " + "x" * 200)

    threads = [threading.Thread(target=write, args=(name, (file, other)[name % 2])) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    found = [line.split(" ") for line in lines(file)]
    assert {len(each) for each in found} == {3}
    for name in range(8):
        assert [int(number) for who, number, _ in found if who == str(name)] == list(range(100))


def test_a_disk_that_stalls_is_waited_for_once_and_loses_nothing(file, disk, caplog):
    file.append_encoded("before")
    disk.runs.clear()
    for number in range(20):
        file.append_encoded(f"waits {number}")
    assert disk.begun == 2, "one write is under way, all else waits"
    assert lines(file) == ["before"]
    assert caplog.text.count("events wait in memory") == 1
    disk.runs.set()
    until(lambda: "takes events again" in caplog.text, what="word that the disk is back")
    assert lines(file) == ["before", *(f"waits {number}" for number in range(20))]
    file.append_encoded("after")
    assert lines(file)[-1] == "after", "it is waited for again"


def test_what_a_disk_refuses_is_told_to_who_wrote_it_or_later(file, disk, caplog):
    disk.refuses = True
    with pytest.raises(OSError, match="No space left"):
        file.append_encoded("refused")
    disk.runs.clear()
    file.append_encoded("waits, and is refused then")
    disk.runs.set()
    until(lambda: "an event that had waited is lost" in caplog.text, what="word of the loss")
    disk.refuses = False
    file.append_encoded("taken")
    assert lines(file) == ["taken"]


def test_a_line_that_a_full_disk_cut_short_takes_no_other_with_it(tmp_path):
    """As `write` does it: it takes what there is room for, and refuses the rest."""
    room = [8]

    def write(fd, data):
        taken = data[: room[0]]
        room[0] -= len(taken)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, taken)

    file = EventFile(tmp_path / "n.jsonl", write=write)
    with pytest.raises(OSError, match="No space left"):
        file.append_encoded("cut short")
    with pytest.raises(OSError, match="No space left"):
        file.append_encoded("not begun")
    room[0] = 1000
    file.append_encoded("whole")
    file.append_encoded("whole, too")
    file.close()
    assert lines(file) == ["cut shor", "whole", "whole, too"]


def test_a_child_that_the_users_code_forks_writes_for_itself(file):
    file.append_encoded("parent")
    if (child := os.fork()) == 0:
        file.append_encoded("child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert lines(file) == ["parent", "child"]


def test_memory_for_what_waits_has_a_limit(file, disk):
    disk.runs.clear()
    for _ in range(9):
        file.append_encoded("x" * 99)
    file.append_encoded("x" * 99)
    with pytest.raises(OSError, match="no more can wait in memory") as caught:
        file.append_encoded("x")
    assert caught.value.errno == errno.ENOBUFS
    disk.runs.set()
    until(lambda: len(lines(file)) == 10, what="the writing of all that waited")
    file.append_encoded("y" * 5000)
    assert len(lines(file)[-1]) == 5000, "one line that is larger than all that may wait is written all the same"


def test_the_end_does_not_wait_for_a_disk_for_ever(file, disk, caplog):
    disk.runs.clear()
    file.append_encoded("never")
    file.close()
    assert "what was told since is lost" in caplog.text
    with pytest.raises(OSError, match="closed"):
        file.append_encoded("too late")
    file.close()


def test_the_end_waits_for_what_is_still_to_be_written(tmp_path, disk):
    file = EventFile(tmp_path / "n.jsonl", patience_s=0.01, end_s=30, write=disk.write)
    disk.runs.clear()
    for number in range(5):
        file.append_encoded(str(number))
    threading.Timer(0.1, disk.runs.set).start()
    file.close()
    assert lines(file) == ["0", "1", "2", "3", "4"]
