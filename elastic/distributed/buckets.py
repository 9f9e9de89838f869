"""Buckets: gradients as views of flat tensors, so that what is sent is never gathered first.

A bucket holds the gradients of neighbouring parameters of one type and device, in reverse order of the parameters, as
backward brings them about. The layout depends on the parameters only; a flat may be longer than its bucket, so that
it can be cut into equal pieces for every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

FIRST_BYTES = 1 << 20
"""The first bucket is small: it is full soon, and sending begins early."""
MOST_BYTES = 25 << 20
_ALIGNED = 16
"""Elements: every gradient and every piece starts on a cache line."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the gradient of parameter number `parameter` lies in its bucket."""

    parameter: int
    start: int
    shape: torch.Size


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that are sent together. `elements` counts the gaps that alignment leaves."""

    dtype: torch.dtype
    device: torch.device
    places: tuple[Place, ...]
    elements: int

    def padded(self, pieces: int) -> int:
        """Length that can be cut into so many equal, aligned pieces."""
        return _aligned(-(-self.elements // pieces)) * pieces


def lay_out(
    parameters: Sequence[nn.Parameter], *, first_bytes: int = FIRST_BYTES, most_bytes: int = MOST_BYTES
) -> tuple[Bucket, ...]:
    """The buckets of these parameters, in the order in which backward fills them."""
    done: list[Bucket] = []
    open_: dict[tuple[torch.dtype, torch.device], _Filling] = {}
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        filling = open_.setdefault((parameter.dtype, parameter.device), _Filling())
        filling.add(number, parameter)
        if filling.elements * parameter.element_size() >= (most_bytes if done else first_bytes):
            done.append(filling.close(parameter.dtype, parameter.device))
            del open_[parameter.dtype, parameter.device]
    return (*done, *(filling.close(*kind) for kind, filling in open_.items()))


class Gradients:
    """One set of all gradients: a flat for each bucket, a view into it for each parameter."""

    def __init__(self, buckets: Sequence[Bucket], *, pieces: int) -> None:
        self.flats = [torch.zeros(b.padded(pieces), dtype=b.dtype, device=b.device) for b in buckets]
        views: dict[int, torch.Tensor] = {}
        for bucket, flat in zip(buckets, self.flats, strict=True):
            for place in bucket.places:
                stop = place.start + place.shape.numel()
                views[place.parameter] = flat[place.start : stop].view(place.shape)
        self.views = [views[number] for number in range(len(views))]


class _Filling:
    """A bucket that is not full yet."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.elements = 0

    def add(self, number: int, parameter: nn.Parameter) -> None:
        self.places.append(Place(parameter=number, start=self.elements, shape=parameter.shape))
        self.elements += _aligned(parameter.numel())

    def close(self, dtype: torch.dtype, device: torch.device) -> Bucket:
        return Bucket(dtype=dtype, device=device, places=tuple(self.places), elements=self.elements)


def _aligned(elements: int) -> int:
    return -(-elements // _ALIGNED) * _ALIGNED
