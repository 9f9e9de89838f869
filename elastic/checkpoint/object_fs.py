"""fsspec as an object store: the only importer of that library. Credentials come from its standard chain alone."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec

from elastic.checkpoint.objects import Listing
from elastic.errors import UsageError

_S3: dict[str, Any] = {
    "config_kwargs": {"retries": {"total_max_attempts": 1}, "connect_timeout": 10, "read_timeout": 60}
}
"""One try of each request: repeating, and counting that, is PatientStore's."""


class FsspecStore:
    """`elastic.checkpoint.objects.ObjectStore` over any file system that fsspec knows."""

    def __init__(self, protocol: str) -> None:
        """Connect to nothing yet.

        Raises:
            UsageError: fsspec, or what it needs for this protocol, is not installed.
        """
        options = _S3 if protocol in ("s3", "s3a") else {}
        try:
            self._fs = fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True, **options)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{protocol}:// cannot be used: {error}") from error
        if hasattr(self._fs, "retries"):
            self._fs.retries = 1

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        with _as_os_error(key):
            if stop is not None and stop <= start:
                return b""
            whole = start == 0 and stop is None
            data: bytes = self._fs.cat_file(key) if whole else self._fs.cat_file(key, start=start, end=stop)
            return data

    def put(self, key: str, data: bytes | memoryview) -> None:
        with _as_os_error(key):
            self._fs.pipe_file(key, bytes(data))

    def put_new(self, key: str, data: bytes | memoryview) -> bool:
        try:
            with _as_os_error(key):
                self._fs.pipe_file(key, bytes(data), mode="create")
        except FileExistsError:
            return False
        return True

    def size_bytes(self, key: str) -> int | None:
        try:
            with _as_os_error(key):
                info = self._fs.info(key)
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def list(self, prefix: str) -> Listing:
        try:
            with _as_os_error(prefix):
                found = self._fs.ls(prefix, detail=True)
        except FileNotFoundError:
            found = []
        named = [(each["name"].rstrip("/").rpartition("/")[2], each) for each in found]
        stem = prefix.rstrip("/").rpartition("/")[2]
        return Listing(
            sizes_bytes={name: int(each["size"]) for name, each in named if each["type"] == "file" and name != stem},
            folders=tuple(name for name, each in named if each["type"] == "directory"),
        )

    def keys(self, prefix: str) -> Sequence[str]:
        try:
            with _as_os_error(prefix):
                found = self._fs.find(prefix)
        except FileNotFoundError:
            return []
        inside = self._fs._strip_protocol(prefix) + "/"
        return [f"{prefix}/{name.removeprefix(inside)}" for name in found if name.startswith(inside)]

    def delete(self, keys: Sequence[str]) -> None:
        with contextlib.suppress(FileNotFoundError), _as_os_error(keys[0] if keys else ""):
            self._fs.rm(list(keys))


@contextlib.contextmanager
def _as_os_error(key: str) -> Iterator[None]:
    """Whatever a library says becomes an OSError."""
    try:
        yield
    except OSError as error:
        response = getattr(error.__cause__, "response", None) or {}
        code = response.get("Error", {}).get("Code")
        if code in ("PreconditionFailed", "412"):
            raise FileExistsError(errno.EEXIST, "it is there already", key) from error
        if code == "NoSuchBucket":  # not as a file that is missing: nothing can be made there, either
            raise NotADirectoryError(errno.ENOTDIR, "there is no such bucket", key) from error
        raise
    except Exception as error:  # each library behind fsspec has errors of its own
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", key) from error
