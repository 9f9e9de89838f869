"""Copies off a GPU on a stream of their own, into pinned memory. UNTESTED on a GPU so far, see cuda.py.

The host waits for nothing: the copies follow, on the GPU, on all that was asked of it before, and all that is asked of
it later follows on them. So a step that changes what is being copied cannot begin before its bytes are out, and a copy
costs a step what the transfer takes from pinned memory, a fraction of what it takes from other memory.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def _on_gpu(tensor: Tensor) -> bool:
    """Of the present one: what lies on another is waited for, since its streams know nothing of these."""
    return tensor.is_cuda and tensor.get_device() == torch.cuda.current_device()


def _launch() -> None:
    torch.zeros(1, device="cuda").add_(1)


@dataclass(frozen=True, kw_only=True)
class _UnderWay:
    done: Any

    def wait(self) -> None:
        self.done.synchronize()


class SideStream:
    """`elastic.checkpoint.copying.Copier` of this worker's present GPU, on whose current stream the training is."""

    def __init__(
        self,
        cuda: Any = torch.cuda,
        *,
        on_device: Callable[[Tensor], bool] = _on_gpu,
        launch: Callable[[], None] = _launch,
    ) -> None:
        """`launch`: has the GPU do anything."""
        self._cuda, self._on_device, self._launch = cuda, on_device, launch
        self._stream = cuda.Stream()

    def lend(self, memory: memoryview) -> None:
        """Pin it. Where that is refused (RLIMIT_MEMLOCK, or a kind of memory) copies are slower, and as right."""
        runtime = self._cuda.cudart()
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        refused = int(runtime.cudaHostRegister(address, len(memory), 0))
        if refused:
            logger.warning("%d bytes could not be pinned (CUDA error %d): copies take longer", len(memory), refused)
            with contextlib.suppress(RuntimeError):
                self._launch()  # CUDA keeps the refusal, and torch would raise it at whatever is launched next
            return
        # Before the memory is unmapped: of callbacks on one object the youngest is called first.
        weakref.finalize(memory.obj, runtime.cudaHostUnregister, address).atexit = False

    def begin(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> _UnderWay | None:
        """What lies in the host's memory is copied at once."""
        far = [self._on_device(source) for source in sources]
        for target, source, is_far in zip(targets, sources, far, strict=True):
            if not is_far:
                target.copy_(source)
        if not any(far):
            return None
        own = self._cuda.current_stream()
        self._stream.wait_stream(own)
        with self._cuda.stream(self._stream):
            for target, source, is_far in zip(targets, sources, far, strict=True):
                if is_far:
                    target.copy_(source, non_blocking=True)
                    source.record_stream(self._stream)  # its memory may be freed, and must not be given to others yet
            done = self._cuda.Event(blocking=True)  # who waits for it sleeps
            done.record(self._stream)
        own.wait_event(done)
        return _UnderWay(done=done)
