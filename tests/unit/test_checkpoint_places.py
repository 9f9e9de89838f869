"""Who shares a directory: found out at each start, also where one is a copy of another or is seen late."""

from __future__ import annotations

import os
import shutil

from elastic.checkpoint.places import find_places, number
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import ManualClock
from elastic.config.choices import PathScope
from tests.harness.ranks import run_ranks


def places_of(roots, scope=PathScope.AUTO, storage=None, node=None):
    def find(group):
        return find_places(
            str(roots[group.rank]), scope=scope, node=node or f"node{group.rank}", group=group,
            clock=ManualClock(), storage=storage or PosixStorage(), nonce=lambda: os.urandom(4).hex(),
        )  # fmt: skip

    return run_ranks(len(roots), find)


def make(tmp_path, *names):
    for name in names:
        (tmp_path / name).mkdir(exist_ok=True)
    return [tmp_path / name for name in names]


class _Late(PosixStorage):
    """Names of probes are seen only when asked for often enough, as over a network file system."""

    def __init__(self, times: int) -> None:
        self.left = times

    def names(self, path):
        names = super().names(path)
        if self.left and any(name.startswith(".elastic_probe") for name in names):
            self.left -= 1
            return [name for name in names if not name.startswith(".elastic_probe")]
        return names


def test_one_directory_is_found_to_be_one(tmp_path):
    (root,) = make(tmp_path, "a")
    assert places_of([root] * 3) == [None] * 3
    assert not list(root.glob(".elastic_probe*"))


def test_private_ones_are_told_apart_and_numbered_by_their_lowest_rank(tmp_path):
    a, b = make(tmp_path, "a", "b")
    found = places_of([a, b, a, b, b])
    assert {each.of_rank for each in found} == {(0, 1, 0, 1, 1)}
    assert [each.lead for each in found] == [True, True, False, False, False]
    assert [each.index for each in found] == [0, 0, 1, 1, 2]
    assert (found[0].leads, found[0].writers) == ((0, 1), 2)


def test_a_copy_of_a_directory_is_another_directory(tmp_path):
    (a,) = make(tmp_path, "a")
    places_of([a, a])
    shutil.copytree(a, tmp_path / "b")
    found = places_of([a, tmp_path / "b", tmp_path / "b"])
    assert {each.of_rank for each in found} == {(0, 1, 1)}
    assert {each.of_rank for each in places_of([a, tmp_path / "b", tmp_path / "b"])} == {(0, 1, 1)}


def test_what_is_seen_late_is_still_one_directory(tmp_path):
    (root,) = make(tmp_path, "a")
    storage = _Late(4)
    assert places_of([root] * 2, storage=storage) == [None] * 2
    assert storage.left == 0


def test_it_can_be_said(tmp_path):
    a, b = make(tmp_path, "a", "b")
    assert places_of([a, b], scope=PathScope.SHARED) == [None, None]
    assert [each.count for each in places_of([a, a], scope=PathScope.PRIVATE)] == [2, 2]


def test_private_directories_of_nodes_of_one_name_are_several(tmp_path):
    a, b = make(tmp_path, "a", "b")
    found = places_of([a, a, b], scope=PathScope.PRIVATE, node="localhost")
    assert {each.of_rank for each in found} == {(0, 0, 1)}


def test_a_world_of_one_asks_nobody(tmp_path):
    assert places_of(make(tmp_path, "a")) == [None]


def test_numbering():
    places = number(["x", "y", "x"], rank=2)
    assert (places.mine, places.index, places.count, places.lead) == (0, 1, 2, False)
