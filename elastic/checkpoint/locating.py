"""Which storage a path lies in: a file system, or an object store where it is a URL."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable

from elastic.checkpoint.manifest import FileFacts
from elastic.checkpoint.object_storage import ObjectStorage
from elastic.checkpoint.objects import PatientStore
from elastic.checkpoint.storage import PosixStorage, Storage
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import UsageError

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://")
_log = logging.getLogger(__name__)


def is_url(path: str) -> bool:
    """Whether a path names an object store."""
    return _URL.match(path) is not None


def local_dir(root: str) -> str:
    """Where a root's own local files lie, events and the lock: the root itself, or a directory under ./output."""
    match = _URL.match(root)
    if match is None:
        return root
    return os.path.join(
        "output", match[1], *(part for part in root[match.end() :].split("/") if part not in ("", ".."))
    )


def storage_for(
    *paths: str, clock: Clock = SYSTEM_CLOCK, tell: Callable[[str], None] = _log.warning
) -> Storage:  # fmt: skip
    """A storage that serves these paths, and any local one. `tell` hears of each request that is repeated.

    Raises:
        UsageError: an object store that cannot be used here, or a URL that holds a secret.
    """
    urls = [path for path in paths if is_url(path)]
    if not urls:
        return PosixStorage()
    stores: dict[str, Storage] = {}
    for url in urls:
        protocol = url.partition("://")[0]
        if "@" in url.partition("://")[2].partition("/")[0] or "?" in url:
            raise UsageError(
                f"a URL of {protocol}:// holds credentials or options: leave them out and give them by the environment "
                "(AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL and their kin)"
            )
        stores.setdefault(protocol, _object_storage(protocol, clock, tell))
    return AnyStorage(stores)


def _object_storage(protocol: str, clock: Clock, tell: Callable[[str], None]) -> Storage:
    if importlib.util.find_spec("fsspec") is None:
        raise UsageError(f"{protocol}:// needs fsspec: pip install 'elastic-training[object-store]'")
    from elastic.checkpoint.object_fs import FsspecStore

    return ObjectStorage(PatientStore(FsspecStore(protocol), clock=clock, tell=tell))


class AnyStorage:
    """Hands each request to the storage that its path lies in."""

    def __init__(self, stores: dict[str, Storage]) -> None:
        """`stores`: by the protocol of a URL."""
        self._stores = stores
        self._local = PosixStorage()

    def _of(self, path: str) -> Storage:
        protocol, mark, _ = path.partition("://")
        if not mark:
            return self._local
        if protocol not in self._stores:
            raise OSError(f"{path}: no storage was set up for {protocol}://")
        return self._stores[protocol]

    def make_dir(self, path: str) -> None:
        self._of(path).make_dir(path)

    def names(self, path: str) -> list[str]:
        return self._of(path).names(path)

    def size_bytes(self, path: str) -> int | None:
        return self._of(path).size_bytes(path)

    def read(self, path: str) -> bytes:
        return self._of(path).read(path)

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        return self._of(path).read_part(path, start, stop)

    def facts(self, path: str) -> FileFacts:
        return self._of(path).facts(path)

    def write(self, path: str, data: bytes | memoryview) -> None:
        self._of(path).write(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._of(path).replace(path, data)

    def create(self, path: str, data: bytes) -> bool:
        return self._of(path).create(path, data)

    def publish(self, source: str, target: str) -> None:
        self._of(target).publish(source, target)

    def sync_dir(self, path: str) -> None:
        self._of(path).sync_dir(path)

    def remove_tree(self, path: str) -> None:
        self._of(path).remove_tree(path)
