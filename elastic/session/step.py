"""One optimizer step, as the user's loop sees it: micro-batches in, one exact gradient out, a commit at the end.

    with step:
        for batch in step.micro_batches():
            step.backward(loss(model, batch))
        optimizer.step()

The loss is a sum with a weight. Every rank adds its part; the division by the weight of the whole global batch
comes after the sum over ranks, so that it does not matter who ran which micro-batch.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch

from elastic.activity import Activity, Doing
from elastic.config.choices import OnNan
from elastic.data.digest import step_digest
from elastic.data.loader import ElasticLoader
from elastic.distributed.group import Collectives
from elastic.distributed.peers import is_peer_lost
from elastic.distributed.strategy import Strategy
from elastic.errors import LossNotFinite, PeerLost, UsageError
from elastic.failpoint import failpoint
from elastic.plan.tree import Spread
from elastic.session.moving import to_device
from elastic.session.randomness import seed_slot
from elastic.session.undo import Before, remember


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What all ranks agree about a step: sums over all of them."""

    loss: float
    samples: int
    digest: int
    regroup: bool
    """Whether some rank's agent asked for a regroup at this boundary."""
    leave: bool
    """Whether some rank ends at this boundary for good."""
    saves_ready: bool
    """Whether every rank had done its part of the save under way."""
    paces_s: tuple[float, ...]
    """By rank, of the step before: the time of one micro-batch without waiting; 0 where it is not known."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What a step works with. `regroup_wanted`, `leave_wanted` and `save_ready` are this rank's own word."""

    group: Collectives
    strategies: tuple[Strategy, ...]
    loader: ElasticLoader
    device: str
    seed: int
    regroup_wanted: Callable[[], bool]
    spread: Spread
    """Which slots each rank computes."""
    rate_factor: float = 1.0
    on_nan: OnNan = OnNan.STOP
    leave_wanted: Callable[[], bool] = lambda: False
    save_ready: Callable[[], bool] = lambda: True
    stays: Callable[[], bool] = lambda: False
    """Whether a lost peer ends only this step, not this process."""
    over: Callable[[], bool] = lambda: False
    """Whether the generation is known to be broken, so that computing on is in vain."""
    judged: bool = False
    """Whether the state after this step is saved, so that its health must be known."""
    activity: Activity = field(default_factory=lambda: Activity(None))
    pace_s: float = 0.0
    """This rank's own word for `Totals.paces_s`."""
    scaled: bool = False
    """Whether gradients are scaled, and a step whose gradients are not finite is left out: they tell nothing then."""


class _Skip(Exception):
    """Raised inside of `with step:`, and caught where the block ends."""


class _Stage(enum.Enum):
    NEW = enum.auto()
    ENTERED = enum.auto()
    ASKED = enum.auto()


class Step:
    """Yielded by `Session.steps`; to be entered with `with`."""

    def __init__(self, parts: StepParts, *, iteration: int, start: int, stop: int) -> None:
        self.iteration = iteration
        """The number this optimizer step will have once it is committed; the first is 1."""
        self.start = start
        """First global sample number of this step: what the run had consumed before it."""
        self.stop = stop
        """One past the last global sample number."""
        self.used: list[tuple[int, int]] = []
        """(sample, index) pairs that this rank fetched and used."""
        self.totals: Totals | None = None
        """Set once the gradients are reduced."""
        self.grad_norm: float | None = None
        """Length of the whole gradient before clipping; None until it is measured, which it is when it is clipped, and
        in a step that is followed by a save. None also under a GradScaler."""
        self.done = False
        self.lost = ""
        """Why the step came to nothing and is to be done again, in another generation; "" for an ordinary one."""
        self.skipped = ""
        """Why the step is to change nothing; "" for an ordinary one."""
        self.rate_factor = parts.rate_factor
        """What the learning rate is to be multiplied by at this batch size; 1 where the global batch is fixed."""
        self._parts = parts
        self._stage = _Stage.NEW
        self._slot = 0
        # By slot. The sums stay on the device: reading one each time would wait for it.
        self._losses: dict[int, torch.Tensor] = {}
        self._weights: dict[int, float] = {}
        self._regroup = self._leave = False
        self._before: Before | None = None
        self._standing_in = False
        self._lockstep = any(strategy.lockstep for strategy in parts.strategies)

    def __enter__(self) -> Self:
        self._stage = _Stage.ENTERED
        self._leave = self._parts.leave_wanted()
        self._regroup = self._leave or self._parts.regroup_wanted()
        if self._parts.stays():
            self._before = remember([strategy.model for strategy in self._parts.strategies])
        for strategy in self._parts.strategies:
            strategy.begin_step(self._parts.spread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, _Skip):
            self.done = True
            return True
        if error is None:
            if self.totals is None:
                raise UsageError(
                    f"step {self.iteration} ended before all of its micro-batches were used; "
                    "run the loop over step.micro_batches() to its end, without break"
                )
            self.done = True
        elif isinstance(error, PeerLost) or (self._lockstep and self._means_lost(error)):
            # With dealt out parameters forward and backward, too, talk to the other ranks.
            what = f"a peer went away while step {self.iteration} was computed: {str(error).splitlines()[0]}"
            self._parts.group.cut()  # others may wait for this rank in what torch does by itself
            if self._before is not None and self._parts.stays():
                self._before.put_back()
                self.lost = what
                return True
            if not isinstance(error, PeerLost):
                raise PeerLost(what) from error
        return False

    def pace_s(self, own_s: float | None) -> float:
        """The time of one micro-batch, of what this rank itself took for the step; 0 where it says nothing: with dealt
        out parameters all wait for each other in every pass."""
        slots = len(self._parts.spread.ranks[self._parts.group.rank])
        return own_s / slots if own_s is not None and slots and not self._lockstep else 0.0

    def _means_lost(self, error: BaseException) -> bool:
        """Whether an error of a forward or backward pass that talks to the others says that one is gone."""
        return is_peer_lost(error) or (isinstance(error, RuntimeError) and self._parts.group.broken)

    @property
    def begun(self) -> bool:
        """Whether its `with` block was entered."""
        return self._stage is not _Stage.NEW

    def crosses(self, every_samples: int) -> bool:
        """Whether a multiple of `every_samples` is reached with this step: for what is to be done now and then.

        Counted in samples, so that it comes at the same places at any batch size. Not with a step that was lost.
        """
        return not self.lost and self.stop // every_samples > self.start // every_samples

    def micro_batches(self) -> Iterator[Any]:
        """This rank's part of the global batch. After the last one, gradients are reduced over all ranks.

        Raises:
            UsageError: asked for a second time, or outside of `with step:`.
        """
        if self._stage is not _Stage.ENTERED:
            what = "outside of `with step:`" if self._stage is _Stage.NEW else "a second time"
            raise UsageError(f"step {self.iteration}: micro_batches() was called {what}; loop over it once, inside")
        self._stage = _Stage.ASKED
        own = self._parts.spread.ranks[self._parts.group.rank]
        rounds = max(map(len, self._parts.spread.ranks)) if self._lockstep else len(own)
        left = rounds
        for micro_batch in self._parts.activity.each(self._parts.loader.next_step(), Doing.DATA):
            failpoint("step.micro_batch")
            if self._parts.over():
                raise PeerLost("the agent says that this generation is over")
            self._slot = micro_batch.slot
            left -= 1
            for strategy in self._parts.strategies:
                strategy.begin_round(self._slot, last=left == 0)
            seed_slot(self._parts.seed, iteration=self.iteration, slot=micro_batch.slot)
            self.used.extend(zip(micro_batch.samples, micro_batch.indices, strict=True))
            yield to_device(micro_batch.batch, self._parts.device)
        self._standing_in = True
        while left:
            left -= 1
            stand_in = self._parts.loader.stand_in()
            for strategy in self._parts.strategies:
                strategy.begin_stand_in(last=left == 0)
            seed_slot(self._parts.seed, iteration=self.iteration, slot=stand_in.slot)
            yield to_device(stand_in.batch, self._parts.device)
        self._reduce()
        failpoint("step.reduced")
        self._judge()

    def backward(self, loss: torch.Tensor | tuple[torch.Tensor, torch.Tensor | float]) -> None:
        """Add a micro-batch's gradients.

        Args:
            loss: one number for each sample, shape [n]; or a pair (sum, weight) where samples weigh differently,
                as with tokens. Never a mean: a mean of means is not the mean.
        """
        total, weight = sum_and_weight(loss)
        if self._standing_in:
            (total * 0).backward()  # type: ignore[no-untyped-call]
            return
        # Scaled by the sample count on the way, so that half-precision sums stay in range.
        (total / (self.stop - self.start)).backward()  # type: ignore[no-untyped-call]
        part = total.detach().double()
        self._losses[self._slot] = self._losses[self._slot] + part if self._slot in self._losses else part
        self._weights[self._slot] = self._weights.get(self._slot, 0.0) + weight

    def _judge(self) -> None:
        """What the policy says to a loss that is no number. All ranks see the same sum, and decide alike."""
        assert self.totals is not None
        if math.isfinite(self.totals.loss):
            return
        what = f"the loss of step {self.iteration} (samples {self.start} to {self.stop}) is {self.totals.loss}"
        if self._parts.on_nan is OnNan.STOP:
            raise LossNotFinite(
                f"{what}. The state before it is as it was last saved. Look at these samples and at the learning "
                "rate; training.on_nan: skip passes over such a step, roll_back over all since the last save"
            )
        self.skipped = what
        raise _Skip(what)

    def _reduce(self) -> None:
        strategies = self._parts.strategies
        for strategy in strategies:
            strategy.send()
        totals, weight = self._sum_up()
        if not weight > 0:
            raise UsageError(
                f"step {self.iteration}: the weight of its whole batch is {weight}; it must be positive. Samples "
                f"{self.start} to {self.stop} hold nothing to learn from: leave such out, or make the batch larger"
            )
        factor = (self.stop - self.start) / weight
        for strategy in strategies:
            strategy.reduce()
            if factor != 1.0:
                strategy.scale_(factor)
        self.totals = totals
        if self._parts.judged or totals.regroup:
            self._measure()

    def clip_grad_norm_(self, most: float) -> float:
        """Shorten the gradients to length `most` where they are longer all together; returns how long they were.

        Called after the loop over the micro-batches, by all ranks; right also where parameters are dealt out.

        Raises:
            UsageError: called before that.
        """
        if self.totals is None:
            raise UsageError(f"step {self.iteration}: clip_grad_norm_() comes after the loop over micro_batches()")
        norm = self._measure()
        if not norm <= most:  # nor for nan: one that is not finite shows in all of them then, as with torch's own
            for strategy in self._parts.strategies:
                strategy.scale_(most / (norm + 1e-6))
        return norm

    def _measure(self) -> float:
        norm = math.hypot(*(strategy.grad_norm() for strategy in self._parts.strategies))
        if not self._parts.scaled:
            self.grad_norm = norm
        return norm

    def _sum_up(self) -> tuple[Totals, float]:
        """What all ranks agree about, and the weight of the whole batch.

        Losses and weights travel slot by slot and are added in slot order: the same bits at any world size.
        """
        count, size = self._parts.spread.leaves, self._parts.group.size
        flags = [len(self.used), step_digest(self.used), self._regroup, self._leave, self._parts.save_ready()]
        mine = torch.zeros(2 * count + len(flags) + size, dtype=torch.float64)
        for slot, part in self._losses.items():
            mine[slot], mine[count + slot] = part, self._weights[slot]
        mine[2 * count : -size] = torch.tensor(flags, dtype=torch.float64)
        mine[self._parts.group.rank - size] = self._parts.pace_s
        self._parts.group.sum_(mine)
        every = mine.tolist()
        losses, weights, (samples, digests, regroups, leaves, ready) = (
            every[:count],
            every[count : 2 * count],
            every[2 * count : -size],
        )
        weight = math.fsum(weights)
        loss = sum(losses) / weight if weight else 0.0
        totals = Totals(
            loss=loss,
            samples=int(samples),
            digest=int(digests) % 2**32,
            regroup=regroups > 0,
            leave=leaves > 0,
            saves_ready=int(ready) == size,
            paces_s=tuple(every[-size:]),
        )
        return totals, weight


def sum_and_weight(loss: torch.Tensor | tuple[torch.Tensor, torch.Tensor | float]) -> tuple[torch.Tensor, float]:
    """Split what a job returned into the sum that backward starts from and its weight.

    Raises:
        UsageError: neither one number for each sample nor a (sum, weight) pair.
    """
    if isinstance(loss, tuple):
        if len(loss) != 2 or not isinstance(loss[0], torch.Tensor):
            raise UsageError(f"loss must be (sum, weight), the sum a tensor; got a tuple of {len(loss)}")
        total, weight = loss
        if total.ndim != 0:
            raise UsageError(f"loss must be (sum, weight) with a scalar sum; got a sum of shape {list(total.shape)}")
        return total, float(weight)
    if not isinstance(loss, torch.Tensor):
        raise UsageError(f"loss must be a tensor or a pair (sum, weight); got {type(loss).__name__}")
    if loss.ndim != 1:
        raise UsageError(
            f"loss must hold one number for each sample, shape [n], or be a pair (sum, weight); "
            f"got shape {list(loss.shape)}. Pass reduction='none' and average over all axes but the first."
        )
    return loss.sum(), float(loss.numel())
