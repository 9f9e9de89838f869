"""A file system of its own in a file, that can be frozen: what writes to it then waits, whatever signals it gets."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze")


class LoopDisk:
    """ext4 on a loop device, mounted at `path` while this is entered."""

    def __init__(self, directory: Path, *, size_bytes: int = 256 << 20) -> None:
        if os.geteuid() != 0 or not all(shutil.which(tool) for tool in _TOOLS):
            pytest.skip(f"needs root and {', '.join(_TOOLS)}")
        self.path, self._image = directory / "disk", directory / "disk.image"
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)
        mount = ["mount", "-o", "loop,noatime", str(self._image), str(self.path)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no loop device can be mounted here: {done.stderr.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", str(self.path)], check=True)
        self._image.unlink()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing is written to it meanwhile. Thawed first of all where a test fails: who writes cannot be killed."""
        subprocess.run(["fsfreeze", "--freeze", str(self.path)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.path)], check=True)
