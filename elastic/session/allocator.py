"""Allocator: has the C library keep the memory that a step frees, since the next step needs it again."""

from __future__ import annotations

import torch

_LARGEST_BYTES = 31 << 20
"""Little less than the largest block that the C library takes as a measure."""


def keep_freed_memory() -> None:
    """Let up to 62 MiB at the end of the heap stay with this process. Where another allocator is in use: no effect.

    glibc gives it back at twice the largest block that was mapped by itself and freed since the start (mallopt(3),
    M_MMAP_THRESHOLD). Of a small model's tensors none is large, so that every step gives its memory back and takes a
    fault for each page of it again, which costs a percent of it or several. One large block, freed untouched, settles
    it; what a user has set (MALLOC_TRIM_THRESHOLD_ and its like) stays as it is.
    """
    torch.UntypedStorage(_LARGEST_BYTES)  # type: ignore[no-untyped-call]
