"""Strategy: how a model's parameters and gradients lie on the ranks, as far as the session and its steps care."""

from __future__ import annotations

from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from elastic.distributed.group import Collectives
from elastic.plan.tree import Spread


class Laid(Protocol):
    """One model on one rank, in one world. Every rank calls every method, in the same order."""

    model: nn.Module
    """What the user's loop calls and whose parameters its optimizer gets."""
    overlap: bool
    """Whether to send while backward goes on; not with several models."""

    @property
    def lockstep(self) -> bool:
        """Whether forward and backward talk to the other ranks, so that all must do equally many."""
        ...

    def begin_step(self, spread: Spread) -> None:
        """Begin with no gradients."""
        ...

    def begin_round(self, slot: int, *, last: bool) -> None:
        """A forward and backward pass of a slot follows. `last`: of this rank; in lockstep, of all."""
        ...

    def begin_stand_in(self, *, last: bool) -> None:
        """In lockstep: a pass follows that only keeps the others company, with gradients of zero."""
        ...

    def send(self) -> None:
        """Send whatever was not sent yet. Raises PeerLost."""
        ...

    def reduce(self) -> None:
        """Wait for the sums over all ranks; they are the gradients now. Raises PeerLost."""
        ...

    def scale_(self, factor: float) -> None:
        """Multiply all gradients."""
        ...

    def grad_norm(self) -> float:
        """Length of all gradients together, the same on every rank. Raises PeerLost."""
        ...


class Strategy(Laid, Protocol):
    """The same through all worlds."""

    deals: bool
    """Whether parameters are dealt out where there are several ranks, so that a move leaves no values in them."""

    def start(self, group: Collectives) -> None:
        """Begin in the first world after all, having been made before it: equal to rank 0's. Every rank calls it.
        Raises PeerLost."""
        ...

    def move(self, group: Collectives) -> None:
        """Work with another group from here on, which may have another size. Every rank calls it. Raises PeerLost."""
        ...

    def align(self) -> None:
        """Make parameters and buffers equal to rank 0's."""
        ...

    def adopt(self, optimizer: Optimizer) -> None:
        """Prepare an optimizer of the model's parameters for its steps. Raises UsageError."""
        ...
