"""A Storage over an object store, where nothing can be renamed: a directory's name is an object of its own.

    <root>/elastic_run.json, latest_checkpointed_iteration.txt    as on disk
    <root>/iteration_00000010.dir                                 the name: an object that holds "10-3-5f2c…"
    <root>/.data/10-3-5f2c…/elastic.json, common.json, …           the content, which never moves

Content lies under a prefix that no other attempt ever uses. Giving it a name is to make one small object where there is
none, which is the rename that refuses to replace; a further name for the same content does no harm. So an old writer
can come at any time: it finds its names taken, and never writes into what another made. Directories that somebody
copied in as plain prefixes are read, too.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable

from elastic.checkpoint.checksums import crc32
from elastic.checkpoint.layout import parse_aside_name, parse_iteration_dir, parse_temp_name, parse_trash_name
from elastic.checkpoint.manifest import FileFacts
from elastic.checkpoint.objects import ObjectStore

NAME = ".dir"
DATA = ".data"
_CHUNK_BYTES = 16 << 20
_MOST_OF_A_NAME = 4096


class ObjectStorage:
    """`elastic.checkpoint.storage.Storage` for URLs."""

    def __init__(self, store: ObjectStore, *, nonce: Callable[[], str] = lambda: secrets.token_hex(8)) -> None:
        self._store, self._nonce = store, nonce
        # What a name stood for stays right to read, since content never moves: only who gives names need know better.
        self._known: dict[str, str] = {}

    def make_dir(self, path: str) -> None:
        name = _split(path)[1]
        if _has_name(name):
            content = f"{name.lstrip('.')}-{self._nonce()}"
            self._known.pop(_name(path), None)
            self._store.put_new(_name(path), content.encode())

    def names(self, path: str) -> list[str]:
        listing = self._store.list(self._content(path) or path.rstrip("/"))
        files = {
            name.removesuffix(NAME) if _has_name(name.removesuffix(NAME)) else name for name in listing.sizes_bytes
        }
        return sorted(files | {name for name in listing.folders if name != DATA})

    def size_bytes(self, path: str) -> int | None:
        return self._store.size_bytes(self._place(path))

    def read(self, path: str) -> bytes:
        return self._store.get(self._place(path))

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        return self._store.get(self._place(path), start, stop)

    def facts(self, path: str) -> FileFacts:
        key = self._place(path)
        size_bytes = self._store.size_bytes(key)
        if size_bytes is None:
            raise _missing(path)
        running = 0
        for start in range(0, size_bytes, _CHUNK_BYTES):
            running = crc32(self._store.get(key, start, min(start + _CHUNK_BYTES, size_bytes)), running)
        return FileFacts(size_bytes=size_bytes, crc32=running)

    def write(self, path: str, data: bytes | memoryview) -> None:
        if not self._store.put_new(self._place(path, to_write=True), data):
            raise FileExistsError(errno.EEXIST, "refusing to replace", path)

    def replace(self, path: str, data: bytes) -> None:
        self._store.put(self._place(path, to_write=True), data)

    def create(self, path: str, data: bytes) -> bool:
        return self._store.put_new(self._place(path, to_write=True), data)

    def publish(self, source: str, target: str) -> None:
        self._forget(source, target)
        content = self._content(source)
        if not _has_name(_split(target)[1]):
            self._copy(content or source, target)
        elif self._store.keys(target):
            raise FileExistsError(errno.EEXIST, "refusing to replace", target)
        else:
            moved = _split(content)[1] if content is not None else self._take_in(source, target)
            if not self._store.put_new(_name(target), moved.encode()):
                raise FileExistsError(errno.EEXIST, "refusing to replace", target)
        if content is None:
            self._store.delete(self._store.keys(source))
        self._store.delete([_name(source)])
        self._forget(source)

    def sync_dir(self, path: str) -> None:
        """What an object store has taken is durable."""

    def remove_tree(self, path: str) -> None:
        self._forget(path)
        content = self._content(path)
        # A writer that died while it gave the content another name may have left it with two.
        if content is not None and not self._is_named_elsewhere(path, content):
            self._store.delete(self._store.keys(content))
        self._store.delete(self._store.keys(path.rstrip("/")))
        if content is not None:
            self._store.delete([_name(path)])  # last: what is still there after a failure is found again by its name
            self._forget(path)

    def _forget(self, *paths: str) -> None:
        for path in paths:
            self._known.pop(_name(path), None)

    def _place(self, path: str, *, to_write: bool = False) -> str:
        """The key of a file."""
        directory, name = _split(path)
        content = self._content(directory)
        if content is None and to_write and _has_name(_split(directory)[1]):
            raise _missing(directory)  # it was removed: nothing may come there again
        return f"{content or directory}/{name}"

    def _content(self, path: str) -> str | None:
        """The prefix of a directory's content; None where it has no name of that kind."""
        head, name = _split(path)
        if not _has_name(name):
            return None
        content = self._known.get(_name(path), "")
        try:
            content = content or self._store.get(_name(path), 0, _MOST_OF_A_NAME).decode()
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        if not content or "/" in content:
            return None  # no name that we gave
        self._known[_name(path)] = content
        return f"{head}/{DATA}/{content}"

    def _is_named_elsewhere(self, path: str, content: str) -> bool:
        root, name = _split(path)
        self._known.clear()
        others = (each for each in self.names(root) if each != name and _has_name(each))
        return any(self._content(f"{root}/{each}") == content for each in others)

    def _take_in(self, source: str, target: str) -> str:
        """Copy a plain prefix to where content lies."""
        content = f"{_split(target)[1].lstrip('.')}-{self._nonce()}"
        self._copy(source, f"{_split(target)[0]}/{DATA}/{content}")
        return content

    def _copy(self, source: str, target: str) -> None:
        keys = self._store.keys(source)
        if not keys:
            raise _missing(source)
        if self._store.keys(target):
            raise FileExistsError(errno.EEXIST, "refusing to replace", target)
        for key in keys:
            self._store.put(target + key.removeprefix(source), self._store.get(key))


def _split(path: str) -> tuple[str, str]:
    head, _, name = path.rstrip("/").rpartition("/")
    return head, name


def _name(path: str) -> str:
    return path.rstrip("/") + NAME


def _has_name(name: str) -> bool:
    """Whether a directory of this name is one of those that come and go."""
    parsers = (parse_iteration_dir, parse_temp_name, parse_aside_name, parse_trash_name)
    return any(parse(name) is not None for parse in parsers)


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
