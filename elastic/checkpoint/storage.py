"""Where bytes go: the Storage protocol, as few verbs as the commit needs, and the one for a POSIX file system.

Paths are str, so that a URI stays what it is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from elastic.checkpoint.checksums import crc32
from elastic.checkpoint.manifest import FileFacts
from elastic.checkpoint.mapping import Mapping

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_CHUNK_BYTES = 4 << 20
_PAGE_BYTES = 4096
LARGE_BYTES = 1 << 22
"""Less is written faster through the page cache, to a new file, by one thread."""
_DIRECT_CHUNK_BYTES = 32 << 20
_MOST_VIEWS = 1024
"""The kernel takes no more at once."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Storage(Protocol):
    """What a checkpoint needs of a file system. Every verb raises OSError where it fails."""

    def make_dir(self, path: str) -> None:
        """Create a directory and those above it; one that is there already is fine."""
        ...

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted; none where there is no such directory."""
        ...

    def size_bytes(self, path: str) -> int | None:
        """Length of a regular file; None where there is none."""
        ...

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        ...

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop` of a file; fewer where it is shorter."""
        ...

    def facts(self, path: str) -> FileFacts:
        """Length and checksum of a file as it is now, without holding it in memory."""
        ...

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write a new file; when this returns its bytes are durable. Refuses to replace one."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Give a file new content at once: a reader sees the old or the new one. Durable on return."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Make a file with this content at once; False where it is there already. Durable on return."""
        ...

    def publish(self, source: str, target: str) -> None:
        """Rename a directory. Refuses to replace: FileExistsError."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all that is in it; one that is not there is fine."""
        ...


@runtime_checkable
class Recycler(Protocol):
    """A storage on which writing over a file that has its blocks already is faster than writing a new one."""

    def rewrite(self, spare: str, path: str, data: memoryview) -> bool:
        """As `write`, with the blocks of a file that nobody wants any more, which is gone then.

        False where that cannot be done; nothing is at `path` then.
        """
        ...


class BulkFile(Protocol):
    """A file that is being read to where its bytes are to be. Several threads may read it."""

    def read_into(self, views: Sequence[memoryview], at: int) -> int:
        """Fill these with what begins at byte `at`, one after another; how many bytes there were. Raises OSError."""
        ...


@runtime_checkable
class BulkReader(Storage, Protocol):
    """A storage that reads files straight to where their tensors are to be."""

    def open_bulk(self, path: str) -> AbstractContextManager[BulkFile]:
        """A file, to be read. Raises OSError."""
        ...


class PosixStorage:
    """A local or network file system."""

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size_bytes(self, path: str) -> int | None:
        return os.path.getsize(path) if os.path.isfile(path) else None

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def open_bulk(self, path: str) -> AbstractContextManager[BulkFile]:
        return _PosixFile(path)

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def facts(self, path: str) -> FileFacts:
        size_bytes = running = 0
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                size_bytes += len(chunk)
                running = crc32(chunk, running)
        return FileFacts(size_bytes=size_bytes, crc32=running)

    def write(self, path: str, data: bytes | memoryview) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            view = memoryview(data)
            if isinstance(data, memoryview) and len(data) >= LARGE_BYTES:
                view = _write_direct(fd, view)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def rewrite(self, spare: str, path: str, data: memoryview) -> bool:
        try:
            if os.stat(spare).st_nlink != 1:
                return False  # somebody keeps it under another name, too
            if not _rename_noreplace(spare, path):
                return False
        except OSError:
            return False
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            view = _write_direct(fd, data)
            while view:
                view = view[os.write(fd, view) :]
            os.ftruncate(fd, len(data))
            os.fsync(fd)
        finally:
            os.close(fd)
        return True

    def replace(self, path: str, data: bytes) -> None:
        temp = _beside(path)
        try:
            self.write(temp, data)
            os.replace(temp, path)
        except OSError:
            _unlink(temp)
            raise
        self.sync_dir(os.path.dirname(path))

    def create(self, path: str, data: bytes) -> bool:
        temp = _beside(path)
        try:
            self.write(temp, data)
            try:
                os.link(temp, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self.write(path, data)  # no hard links here: exclusive, though not at once
        except FileExistsError:
            return False
        finally:
            _unlink(temp)
        self.sync_dir(os.path.dirname(path))
        return True

    def publish(self, source: str, target: str) -> None:
        if not _rename_noreplace(source, target):
            # POSIX lets a directory replace only an empty one, which holds nothing that could be lost.
            try:
                os.rename(source, target)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise FileExistsError(errno.EEXIST, "refusing to replace", target) from error
                raise

    def sync_dir(self, path: str) -> None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return


class _PosixFile:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def read_into(self, views: Sequence[memoryview], at: int) -> int:
        left = [view for view in views if len(view)]
        done = first = 0
        while first < len(left) and (count := os.preadv(self._fd, left[first : first + _MOST_VIEWS], at + done)):
            done += count
            while first < len(left) and count >= len(left[first]):
                count -= len(left[first])
                first += 1
            if count:
                left[first] = left[first][count:]
        return done


def _write_direct(fd: int, view: memoryview) -> memoryview:
    """Write past the page cache, which halves the time and takes a tenth of the CPU; returns what is left to write.

    Whoever cannot (a file system, a view that does not lie at a page) says EINVAL, some of them only when writing.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        while len(view) >= _PAGE_BYTES:
            part = view[: min(len(view) // _PAGE_BYTES * _PAGE_BYTES, _DIRECT_CHUNK_BYTES)]
            count = os.write(fd, part)
            view = view[count:]
            if count % _PAGE_BYTES:
                break  # cut short (a full disk, a signal) where no further direct write can begin
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return view


def large_memory(size_bytes: int) -> memoryview:
    """Memory for a file, taken page by page as it is filled: nothing is zeroed twice. Raises MemoryError."""
    try:
        memory = Mapping(None, max(1, size_bytes))
    except OSError as error:
        raise MemoryError(f"{size_bytes} bytes are not to be had: {error}") from error
    memory.populate(fresh=True)
    return memory.data


def _beside(path: str) -> str:
    head, name = os.path.split(path)
    return os.path.join(head, f".{name}.{secrets.token_hex(6)}")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # a leftover of a few bytes under a name of its own harms nobody


def _rename_noreplace(source: str, target: str) -> bool:
    """Rename in one step that cannot replace; False where the system or the file system has no such call."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    code = renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    if code == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number), source, None, target)
