"""A power cut without one: the system calls of a save are recorded, and replayed up to any of them on a model of a disk
that may lose whatever was not synced: the bytes of a file, and each change of a directory, in any combination."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elastic.checkpoint import storage as module


@dataclass(frozen=True, kw_only=True)
class Call:
    """A system call that changes or syncs something.

    `verb`: mkdir create write cut fsync rename link unlink mark. `at`: where it writes to, or the length it cuts to.
    """

    verb: str
    path: str
    target: str = ""
    data: bytes = b""
    at: int = 0


class Recorder:
    """Stands for `os` (and the two other doors to the system) in the storage module, and notes what passes."""

    def __init__(self, monkeypatch) -> None:
        self.calls: list[Call] = []
        self._paths: dict[int, str] = {}
        self._places: dict[int, int] = {}
        self._rename_noreplace = module._rename_noreplace
        monkeypatch.setattr(module, "os", self)
        monkeypatch.setattr(module, "shutil", self)
        monkeypatch.setattr(module, "_rename_noreplace", self.rename_noreplace)

    def __getattr__(self, name):
        return getattr(os, name)

    def mark(self, text: str) -> None:
        self.calls.append(Call(verb="mark", path=text))

    def makedirs(self, path, exist_ok=False):
        if not os.path.isdir(path):
            self.calls.append(Call(verb="mkdir", path=path))
        os.makedirs(path, exist_ok=exist_ok)

    def open(self, path, flags, mode=0o777):
        fd = os.open(path, flags, mode)
        self._paths[fd], self._places[fd] = path, 0
        if flags & os.O_CREAT:
            self.calls.append(Call(verb="create", path=path))
        return fd

    def write(self, fd, data):
        count = os.write(fd, data)
        self.calls.append(Call(verb="write", path=self._paths[fd], data=bytes(data[:count]), at=self._places[fd]))
        self._places[fd] += count
        return count

    def ftruncate(self, fd, length):
        os.ftruncate(fd, length)
        self.calls.append(Call(verb="cut", path=self._paths[fd], at=length))

    def fsync(self, fd):
        os.fsync(fd)
        self.calls.append(Call(verb="fsync", path=self._paths[fd]))

    def replace(self, source, target):
        os.replace(source, target)
        self.calls.append(Call(verb="rename", path=source, target=target))

    def rename_noreplace(self, source, target):
        done = self._rename_noreplace(source, target)
        assert done, "the tests' file system has renameat2"
        self.calls.append(Call(verb="rename", path=source, target=target))
        return done

    def link(self, source, target):
        os.link(source, target)
        self.calls.append(Call(verb="link", path=source, target=target))

    def unlink(self, path):
        os.unlink(path)
        self.calls.append(Call(verb="unlink", path=path))

    def rmtree(self, path):
        for name in sorted(os.listdir(path)):
            self.unlink(os.path.join(path, name))
        os.rmdir(path)
        self.calls.append(Call(verb="unlink", path=path))


@dataclass(eq=False)
class File:
    """What was written, and how much of it surely is on the disk."""

    content: bytes = b""
    synced: bytes | None = None


Change = tuple[tuple[str, "File | Dir | None"], ...]
"""Names that come (or go, with None) together."""


@dataclass(eq=False)
class Dir:
    """Names as they are, as they surely are on the disk, and the changes between."""

    now: dict[str, File | Dir] = field(default_factory=dict)
    durable: dict[str, File | Dir] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def change(self, *names: tuple[str, File | Dir | None]) -> None:
        _apply(self.now, names)
        self.pending.append(names)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.now), []


def _apply(names: dict[str, File | Dir], change: Change) -> None:
    for name, node in change:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """A directory tree of which everything is durable at first."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.tree = _read(root)

    def replay(self, call: Call) -> None:
        """Do what the call did. A rename from one directory to another is a change of each, and either may be lost."""
        if call.verb == "mark":
            return
        head, name = os.path.split(call.path)
        if call.verb == "fsync":
            node = self._find(call.path)
            if isinstance(node, Dir):
                node.sync()
            else:
                node.synced = node.content
            return
        parent = self._find(head)
        match call.verb:
            case "mkdir":
                parent.change((name, Dir()))
            case "create":
                parent.change((name, File()))
            case "write":
                content = parent.now[name].content
                parent.now[name].content = content[: call.at] + call.data + content[call.at + len(call.data) :]
            case "cut":
                parent.now[name].content = parent.now[name].content[: call.at]
            case "unlink":
                parent.change((name, None))
            case "rename" | "link":
                target_head, target = os.path.split(call.target)
                gone = [(name, None)] if call.verb == "rename" else []
                node = parent.now[name]
                if target_head == head:
                    parent.change(*gone, (target, node))
                else:
                    parent.change(*gone)
                    self._find(target_head).change((target, node))
            case other:
                raise AssertionError(other)

    def _find(self, path: str) -> File | Dir:
        node: File | Dir = self.tree
        relative = os.path.relpath(path, self.root)
        for part in [] if relative == "." else relative.split(os.sep):
            node = node.now[part]
        return node

    def survive(self, *, names: Callable[[], bool], data: Callable[[File], bytes]) -> dict[str, bytes | None]:
        """What is left after the power cut, by path below the root; None for a directory. `names`: whether an unsynced
        change is there; `data`: what is in a file that was not synced."""
        return dict(_left(self.tree, "", names, data))


def _read(path: Path) -> Dir:
    tree = Dir()
    for each in path.iterdir():
        if each.is_dir():
            tree.now[each.name] = _read(each)
        else:
            tree.now[each.name] = File(content=each.read_bytes(), synced=each.read_bytes())
    tree.sync()
    return tree


def _left(
    tree: Dir, path: str, names: Callable[[], bool], data: Callable[[File], bytes]
) -> Iterator[tuple[str, bytes | None]]:
    left = dict(tree.durable)
    for change in tree.pending:
        if names():
            _apply(left, change)
    for name, node in left.items():
        place = os.path.join(path, name)
        if isinstance(node, Dir):
            yield place, None
            yield from _left(node, place, names, data)
        else:
            yield place, node.content if node.content == node.synced else data(node)


def lay_out(left: dict[str, bytes | None], to: Path) -> None:
    """Make what is left a directory, in the place of what was there."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for path, content in left.items():
        if content is None:
            (to / path).mkdir()
        else:
            (to / path).write_bytes(content)


def endings(seeds: Iterable[int]) -> dict[str, dict[str, Callable]]:
    """Ways for a power cut to end: nothing unsynced is left, all names but no bytes, and any mixture."""
    ways: dict[str, dict[str, Callable]] = {
        "nothing": {"names": lambda: False, "data": lambda file: file.synced or b""},
        "names": {"names": lambda: True, "data": lambda file: bytes(len(file.content))},
        "all": {"names": lambda: True, "data": lambda file: file.content},
    }
    for seed in seeds:
        dice = random.Random(seed)
        ways[f"mixture {seed}"] = {
            "names": lambda dice=dice: dice.random() < 0.5,
            "data": lambda file, dice=dice: _torn(file, dice.randrange(len(file.content) + 1)),
        }
    return ways


def _torn(file: File, at: int) -> bytes:
    """New up to there; behind it what was there before, if anything was."""
    return file.content[:at] + (file.synced or b"")[at:]
