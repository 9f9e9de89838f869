"""Pieces of tensors, as files hold them -> whole tensors, or the part of one that is wanted. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from elastic.checkpoint.cuts import Window, whole
from elastic.checkpoint.layout import METADATA
from elastic.checkpoint.metadata import Piece
from elastic.errors import CheckpointDamaged


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some of a tensor's elements, and where in the whole they begin."""

    offset: tuple[int, ...]
    tensor: Tensor


def assemble(pieces: Sequence[Piece], files: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
    """A whole tensor from all of its pieces. `files`: tensors by file name.

    Raises:
        CheckpointDamaged: a piece is missing, lies over another one or does not fit.
    """
    name, shape = pieces[0].name, pieces[0].global_shape
    if len({piece.file_name for piece in pieces}) < len(pieces):
        raise CheckpointDamaged(f"{name}: {METADATA} uses one piece in several places")
    return fill(name, whole(shape), [Part(offset=piece.offset, tensor=_found(piece, files)) for piece in pieces])


def fill(name: str, window: Window, parts: Sequence[Part]) -> Tensor:
    """The elements of a window, from parts that each lie within it and together make it.

    Nothing is allocated before the parts are known to add up to it.

    Raises:
        CheckpointDamaged: they do not.
    """
    if len({part.tensor.dtype for part in parts}) != 1:
        raise CheckpointDamaged(f"{name}: its pieces are of types {sorted({str(p.tensor.dtype) for p in parts})}")
    held, wanted = sum(part.tensor.numel() for part in parts), prod(window.size)
    if held != wanted:
        raise CheckpointDamaged(f"{name}: its pieces hold {held} elements, expected {wanted}")
    boxes = [Window(offset=part.offset, size=tuple(part.tensor.shape)) for part in parts]
    for box in boxes:
        if box.meet(window) != box:
            raise CheckpointDamaged(
                f"{name}: the piece at {list(box.offset)} does not fit into {list(window.size)} at "
                f"{list(window.offset)}"
            )
    if len(parts) == 1 and boxes[0] == window:
        return parts[0].tensor
    filled = torch.zeros(window.size, dtype=torch.bool)
    for box in boxes:
        inside = box.slices(window.offset)
        if filled[inside].any():
            raise CheckpointDamaged(f"{name}: the piece at {list(box.offset)} lies over another one")
        filled[inside] = True
    joined = torch.empty(window.size, dtype=parts[0].tensor.dtype)
    for box, part in zip(boxes, parts, strict=True):
        joined[box.slices(window.offset)] = part.tensor
    return joined


def _found(piece: Piece, files: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
    part = files.get(piece.file_name, {}).get(piece.name)
    if part is None:
        raise CheckpointDamaged(f"{METADATA} says that {piece.file_name} holds {piece.name}, but it does not")
    if part.dim() != len(piece.global_shape):
        raise CheckpointDamaged(
            f"{piece.name}: a piece of shape {list(part.shape)} does not fit into {list(piece.global_shape)}"
        )
    return part
