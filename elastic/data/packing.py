"""Packing: sequences of any length into rows of one length, as a collate function.

The position of a run counts samples, not rows: a micro-batch holds its samples whatever they pack into, so nothing is
repeated or lost on a resume. Weigh the loss by tokens: (sum over the tokens that count, their number).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from elastic.errors import DataError


class Packed(NamedTuple):
    """Rows of tokens, each tensor of shape [rows, length]."""

    tokens: torch.Tensor
    segments: torch.Tensor
    """Which sequence a token belongs to, from 1 on in each row; 0 where there is none. Attention stays within one."""
    positions: torch.Tensor
    """Place of each token within its sequence's piece."""


def pack(sequences: Sequence[Any], *, length: int, padding: int = 0) -> Packed:
    """Put sequences into as few rows as first fit finds; what is longer than a row is cut into pieces.

    Args:
        sequences: 1-D tensors (or lists) of token numbers; empty ones take no room.
        length: of a row, in tokens.

    Raises:
        DataError: a sequence that is not one-dimensional.
    """
    rows: list[list[torch.Tensor]] = []
    room: list[int] = []
    for number, sequence in enumerate(sequences):
        tokens = torch.as_tensor(sequence)
        if tokens.ndim != 1:
            raise DataError(f"sample {number} of a micro-batch has shape {list(tokens.shape)}; packing takes 1-D ones")
        for piece in torch.split(tokens, length) if tokens.numel() else ():
            at = next((row for row, left in enumerate(room) if left >= piece.numel()), len(rows))
            if at == len(rows):
                rows.append([])
                room.append(length)
            rows[at].append(piece)
            room[at] -= piece.numel()
    return _filled(rows or [[]], length=length, padding=padding)


def _filled(rows: list[list[torch.Tensor]], *, length: int, padding: int) -> Packed:
    tokens = torch.full((len(rows), length), padding, dtype=torch.long)
    segments, positions = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for row, pieces in enumerate(rows):
        at = 0
        for number, piece in enumerate(pieces, start=1):
            span = slice(at, at + piece.numel())
            tokens[row, span] = piece
            segments[row, span] = number
            positions[row, span] = torch.arange(piece.numel())
            at = span.stop
    return Packed(tokens=tokens, segments=segments, positions=positions)
