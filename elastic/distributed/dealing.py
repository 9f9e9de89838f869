"""The fsdp2 strategy through all worlds: dealt out over the ranks there are, and whole where there is only one.

A worker that stays when the membership changes keeps its modules. Its parameters are new ones then, of which the
optimizers hear, and have no values until a restore: what was dealt out over the ranks of one generation says nothing to
another, so that all state comes from copies, of which the lost rank's is one like any other.
"""

from __future__ import annotations

import gc

from torch import nn
from torch.optim import Optimizer

from elastic.distributed.group import Collectives
from elastic.distributed.replicate import Replica
from elastic.distributed.strategy import Laid
from elastic.plan.tree import Spread


class Dealt:
    """One rank's part of a model, in whatever world."""

    deals = True

    def __init__(
        self, model: nn.Module, group: Collectives, *, exact: bool = False, device: str = "cpu", at_once: bool = True
    ) -> None:
        """Deal out the model, with rank 0's values; without `at_once` it is whole until `move`, with its own."""
        self.model = model
        self._exact, self._device = exact, device
        self._group = group
        self._optimizers: list[Optimizer] = []
        self._overlap = True
        self._now: Laid = Replica(model, group, exact=exact)
        if at_once:
            self.start(group)

    @property
    def lockstep(self) -> bool:
        """Whether forward and backward talk to the other ranks."""
        return self._group.size > 1

    @property
    def overlap(self) -> bool:
        """Whether to send while backward goes on."""
        return self._overlap

    @overlap.setter
    def overlap(self, value: bool) -> None:
        self._overlap = self._now.overlap = value

    def start(self, group: Collectives) -> None:
        """Be dealt out over a first group, with rank 0's values."""
        before = dict(self.model.named_parameters(remove_duplicate=False))
        self._group = group
        self._now = Replica(self.model, group, exact=self._exact)
        self.align()
        self._deal()
        self._point(before)

    def move(self, group: Collectives) -> None:
        """Be dealt out over another group. Every rank calls it. What was dealt out before has no values after it.

        Raises:
            PeerLost: from the group.
        """
        before = self._undeal(memory=group.size == 1)
        self._group = group
        self._now = Replica(self.model, group, exact=self._exact)
        # What torch made of the modules is full of circles, and holds the sockets and threads of the old group.
        gc.collect()
        self._deal()
        self._point(before)

    def align(self) -> None:
        """Make a whole model equal to rank 0's. Dealt out parts are, being parts of it."""
        if isinstance(self._now, Replica):
            self._now.align()

    def adopt(self, optimizer: Optimizer) -> None:
        """Prepare an optimizer for its steps in any world. Raises UsageError."""
        from elastic.distributed.fsdp import adopt
        from elastic.distributed.fsdp_exact import check_optimizer

        if self._exact:
            check_optimizer(optimizer)
        adopt(optimizer)
        self._optimizers.append(optimizer)

    def begin_step(self, spread: Spread) -> None:
        """Begin with no gradients."""
        self._now.begin_step(spread)

    def begin_round(self, slot: int, *, last: bool) -> None:
        """A forward and backward pass of a slot follows."""
        self._now.begin_round(slot, last=last)

    def begin_stand_in(self, *, last: bool) -> None:
        """A pass follows that only keeps the others company."""
        self._now.begin_stand_in(last=last)

    def send(self) -> None:
        """Send whatever was not sent yet. Raises PeerLost."""
        self._now.send()

    def reduce(self) -> None:
        """Wait for the sums over all ranks. Raises PeerLost."""
        self._now.reduce()

    def scale_(self, factor: float) -> None:
        """Multiply all gradients."""
        self._now.scale_(factor)

    def grad_norm(self) -> float:
        """Length of all gradients together. Raises PeerLost."""
        return self._now.grad_norm()

    def _deal(self) -> None:
        if self._group.size > 1:
            # Takes seconds to import, which only its users spend.
            from elastic.distributed.fsdp import Sharded
            from elastic.distributed.fsdp_exact import ExactSharded

            self._now = (ExactSharded if self._exact else Sharded)(self.model, self._group, device=self._device)
        self._now.overlap = self._overlap

    def _point(self, before: dict[str, nn.Parameter]) -> None:
        after = dict(self.model.named_parameters(remove_duplicate=False))
        for optimizer in self._optimizers:
            _point_anew(optimizer, before, after)

    def _undeal(self, *, memory: bool) -> dict[str, nn.Parameter]:
        """Make the model an ordinary one with new parameters; returns those that it had, by name.

        `memory`: whether those that were dealt out get memory as whole ones.
        """
        from elastic.distributed.fsdp import Sharded
        from elastic.distributed.undealing import renew

        if isinstance(self._now, Sharded):
            return self._now.undo(device=self._device if memory else "meta")
        had = dict(self.model.named_parameters(remove_duplicate=False))
        renew(self.model, had)
        return had


def _point_anew(optimizer: Optimizer, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> None:
    """Let an optimizer have the new parameters in the places of the old ones, without what it kept for these."""
    new = {id(old): after[name] for name, old in before.items()}
    for group in optimizer.param_groups:
        group["params"] = [new.get(id(each), each) for each in group["params"]]
    for old in before.values():
        optimizer.state.pop(old, None)
