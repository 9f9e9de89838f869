"""Copying: how the bytes of tensors get into memory of the host, at once or while the training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Copying(Protocol):
    """Copies under way."""

    def wait(self) -> None:
        """Until all bytes are there. From any thread.

        Raises:
            RuntimeError: they will never be.
        """
        ...


class Copier(Protocol):
    """How a worker's device gives its tensors to the host."""

    def lend(self, memory: memoryview) -> None:
        """Copies will go to this memory again and again. Once for each; it may last longer than its use."""
        ...

    def begin(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Copying | None:
        """Copy each source, as it is now, to its target in the host's memory; None where all bytes are there.

        Whatever changes a source after this returns changes nothing of its copy.
        """
        ...


class PlainCopier:
    """At once: of memory of the host, or from a device whose bytes are waited for."""

    def lend(self, memory: memoryview) -> None:
        """Nothing to do."""

    def begin(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
