"""A device that copies beside the training, as a GPU does: what is asked of it later cannot overtake the copy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

LIMIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class _UnderWay:
    device: SlowDevice
    pairs: tuple[tuple[Tensor, Tensor], ...]

    def wait(self) -> None:
        self.device.waited += 1
        assert self.device.may_copy.wait(LIMIT_S)
        if self.device.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        for target, value in self.pairs:
            target.copy_(value)


class SlowDevice:
    """`elastic.checkpoint.copying.Copier`. Nothing reaches the host before `may_copy` is set."""

    def __init__(self) -> None:
        self.may_copy = threading.Event()
        self.broken = False
        self.waited = 0
        self.lent: list[int] = []

    def lend(self, memory: memoryview) -> None:
        self.lent.append(len(memory))

    def begin(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> _UnderWay:
        """The clones stand for the order that a device keeps by itself."""
        pairs = tuple((target, source.clone()) for target, source in zip(targets, sources, strict=True))
        return _UnderWay(device=self, pairs=pairs)
