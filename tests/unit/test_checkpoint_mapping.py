"""Shared memory mapped for huge pages: what is in it never depends on whether they are to be had."""

from __future__ import annotations

import gc
import itertools
import os

import pytest
import torch

from elastic.checkpoint.mapping import HUGE_BYTES, Mapping
from elastic.checkpoint.storage import large_memory

SIZE_BYTES = 20 * HUGE_BYTES + 12_345
POPULATE, COLLAPSE = 23, 25


@pytest.fixture
def fd():
    made = os.memfd_create("elastic-test", os.MFD_CLOEXEC)
    os.ftruncate(made, SIZE_BYTES)
    yield made
    os.close(made)


def mapped_bytes() -> int:
    with open("/proc/self/maps") as file:
        spans = [line.split()[0].split("-") for line in file if "elastic-test" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


def address(mapping: Mapping) -> int:
    return torch.frombuffer(mapping.data, dtype=torch.uint8).data_ptr()


@pytest.mark.parametrize("size_bytes", [1, 4096, HUGE_BYTES - 1, HUGE_BYTES, SIZE_BYTES])
def test_it_begins_where_a_huge_page_can_and_all_see_the_same(fd, size_bytes):
    one, other = Mapping(fd, size_bytes), Mapping(fd, size_bytes)
    assert (len(one.data), one.data.readonly, address(one) % HUGE_BYTES) == (size_bytes, False, 0)
    one.populate(fresh=True)
    one.data[size_bytes - 1] = 7
    other.populate()
    assert other.data[size_bytes - 1] == 7
    assert os.pread(fd, 1, size_bytes - 1) == b"\7"


def test_it_lasts_as_long_as_what_points_into_it(fd):
    mapping = Mapping(fd, SIZE_BYTES)
    kept = torch.frombuffer(mapping.data, dtype=torch.uint8, offset=100, count=50)
    kept.fill_(3)
    del mapping
    gc.collect()
    assert mapped_bytes() >= SIZE_BYTES
    assert kept.tolist() == [3] * 50
    del kept
    gc.collect()
    assert mapped_bytes() == 0


def test_what_was_there_stays(fd):
    data = os.urandom(SIZE_BYTES)
    os.pwrite(fd, data, 0)
    mapping = Mapping(fd, SIZE_BYTES)
    mapping.populate(fresh=True)
    assert mapping.data == data


def asked(fd, *, granted: bool = True, slow_at: range = range(0), fresh: bool = True) -> list[int]:
    """The advice that is given where getting huge pages is slow, or refused."""
    advice, now_s, tries = [], [0.0], itertools.count()

    def advise(address: int, size_bytes: int, what: int) -> bool:
        assert address % HUGE_BYTES == 0
        advice.append(what)
        if what == COLLAPSE:
            now_s[0] += 1.0 if next(tries) in slow_at else 0.0001
        return granted

    mapping = Mapping(fd, SIZE_BYTES)
    mapping.populate(fresh=fresh, advise=advise, cpu_s=lambda: now_s[0])
    mapping.populate(fresh=fresh, advise=advise)  # once is enough
    return advice


def test_whoever_asks_for_huge_pages_gives_up_soon(fd):
    assert asked(fd) == [COLLAPSE] * 12 + [POPULATE]  # 4 times one, 8 times two
    assert asked(fd, fresh=False) == [POPULATE]
    assert asked(fd, granted=False) == [COLLAPSE, POPULATE]
    assert asked(fd, slow_at=range(1, 2)) == [COLLAPSE] * 20 + [POPULATE]
    assert asked(fd, slow_at=range(20)) == [COLLAPSE] * 2 + [POPULATE]
    assert asked(fd, slow_at=range(5, 20)) == [COLLAPSE] * 7 + [POPULATE]


def test_memory_of_this_process_alone_is_empty_and_its_own():
    before = large_memory(SIZE_BYTES)
    assert (len(before), before.readonly) == (SIZE_BYTES, False)
    assert not torch.frombuffer(before, dtype=torch.uint8).any()
    before[:3] = b"abc"
    assert bytes(large_memory(3)) == b"\0\0\0"
    with pytest.raises(MemoryError, match="are not to be had"):
        large_memory(1 << 60)


def test_what_cannot_be_mapped_is_an_error_and_leaves_no_reservation(tmp_path):
    path = tmp_path / "read-only"
    path.write_bytes(b"x" * 4096)
    with open(path, "rb") as file, open("/proc/self/maps") as maps:
        before = len(maps.read().splitlines())
        with pytest.raises(PermissionError):
            Mapping(file.fileno(), 4096)
        with open("/proc/self/maps") as again:
            assert len(again.read().splitlines()) <= before + 1
