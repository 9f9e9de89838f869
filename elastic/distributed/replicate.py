"""The replicate strategy: every rank holds the whole model, gradients are summed over ranks once a step.

Gradients are views of flat buckets. A bucket is sent as soon as the last micro-batch has filled it, while backward
goes on; buckets are sent in one order on all ranks. The group is looked up at each sending, so that nothing that the
user holds goes stale with it. The sum is not divided by the world size: losses are sums with a weight, and the
division by the global weight (`scale_`) makes uneven shares exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from elastic.distributed.buckets import Bucket, Gradients, lay_out
from elastic.distributed.buffers import Marks, marks_of, refuse_changed
from elastic.distributed.exact import TreeSum
from elastic.distributed.group import Collectives
from elastic.distributed.reduction import PlainSum, Reduction
from elastic.errors import UsageError
from elastic.plan.tree import Spread


class Replica:
    """One rank's replica of a model, and the flat gradients of it."""

    lockstep = False
    deals = False

    def __init__(
        self, model: nn.Module, group: Collectives, *, exact: bool = False,
        parameters: Callable[[], Iterable[nn.Parameter]] | None = None,
    ) -> None:  # fmt: skip
        """`exact`: sums whose bits do not depend on the world size. `parameters`: what gradients are of, where these
        are not the model's present ones."""
        self.overlap = True
        """Whether to send while backward goes on. Not with several models: which one backward fills first is the
        job's to say, and may differ by rank."""
        self.model = model
        self.group = group
        self._reduction: Reduction = (TreeSum if exact else PlainSum)(lambda: self.group)
        self._all = model.parameters if parameters is None else parameters
        self._parameters: list[nn.Parameter] = []
        self._buckets: tuple[Bucket, ...] = ()
        self._bucket_of: list[int] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._gradients: Gradients | None = None  # of the present micro-batch; after `reduce` the sums
        self._accumulating = self._dropping = False
        self._overwriting = False
        self._seen: set[int] = set()
        self._missing: list[int] = []
        self._last = False
        self._sent = 0
        self._marks: Marks = {}

    def move(self, group: Collectives) -> None:
        """Sum over another group from here on."""
        self.group = group

    def start(self, group: Collectives) -> None:
        """Sum over a first group, and be equal to its rank 0's."""
        self.group = group
        self.align()

    def align(self) -> None:
        """Make parameters and buffers equal to rank 0's."""
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            data = tensor.detach()
            whole = data.contiguous()
            # As bytes: gloo does not know every type.
            self.group.broadcast_(whole.reshape(-1).view(torch.uint8))
            if whole.data_ptr() != data.data_ptr():
                data.copy_(whole)

    def adopt(self, optimizer: Optimizer) -> None:
        """Nothing is needed: its parameters are the model's own."""

    def begin_stand_in(self, *, last: bool) -> None:
        """Never needed."""

    def begin_step(self, spread: Spread) -> None:
        """Forget the last step's gradients.

        What is trained may change from step to step: parameters frozen, unfrozen or replaced, on all ranks alike.
        """
        trained = [parameter for parameter in self._all() if parameter.requires_grad]
        if [id(parameter) for parameter in trained] != [id(parameter) for parameter in self._parameters]:
            self._lay_out(trained)
        for parameter in trained:
            parameter.grad = None
        self._accumulating, self._dropping, self._gradients, self._sent = False, False, None, 0
        self._reduction.begin_step(self._buckets, spread)
        if self._reduction.strict:
            self._marks = marks_of(self.model)

    def begin_round(self, slot: int, *, last: bool) -> None:
        """Gradients from here on are this slot's. `last`: it is this rank's last one, send what it has filled at once.

        Raises:
            UsageError: gradients of the last micro-batch were replaced too late.
        """
        self._end_round()
        self._gradients, self._overwriting = self._reduction.begin_slot(slot)
        self._accumulating, self._last = True, last and self.overlap
        self._seen.clear()
        self._missing = [len(bucket.places) for bucket in self._buckets]
        if self._overwriting:
            for parameter in self._parameters:
                parameter.grad = None
        else:
            self._attach()

    def drop(self) -> None:
        """Gradients from here to the end of the step are of nothing, and are not kept."""
        self._end_round()
        self._dropping = True
        for parameter in self._parameters:
            parameter.grad = None

    @property
    def sums(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """After `reduce`: what is trained, each with its gradient; scaled with it."""
        assert self._gradients is not None  # there are sums
        return list(zip(self._parameters, self._gradients.views, strict=True))

    def send(self) -> None:
        """Send whatever was not sent yet. Raises PeerLost, UsageError."""
        self._end_round()
        if self._marks:
            refuse_changed(self._marks, self.model)
        while self._sent < len(self._buckets):
            self._send_next()

    def reduce(self) -> None:
        """Wait for the sums over all ranks; they are the gradients now. Raises PeerLost."""
        self._gradients, self._dropping = self._reduction.finish(), False
        self._attach()

    def scale_(self, factor: float) -> None:
        """Multiply all gradients."""
        assert self._gradients is not None  # there are sums to scale
        for flat in self._gradients.flats:
            flat.mul_(factor)

    def grad_norm(self) -> float:
        """Length of all gradients together."""
        assert self._gradients is not None  # there are sums to measure
        pairs = zip(self._buckets, self._gradients.flats, strict=True)
        # Without the end, whose length depends on the world size: the order of additions must not.
        return math.hypot(*(float(torch.linalg.vector_norm(flat[: bucket.elements])) for bucket, flat in pairs))

    def _attach(self) -> None:
        assert self._gradients is not None
        for parameter, view in zip(self._parameters, self._gradients.views, strict=True):
            parameter.grad = view

    def _arrived(self, number: int, parameter: torch.Tensor) -> None:
        """Hook of a parameter: backward has added to its gradient."""
        if self._dropping:
            parameter.grad = None
        if not self._accumulating or self._gradients is None:
            return  # a backward outside of the step is the user's own
        view = self._gradients.views[number]
        if (gradient := parameter.grad) is not view:
            assert gradient is not None  # backward has just set it
            if self._overwriting and number not in self._seen:
                # Cheaper than zeros that all is added to.
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            else:
                # zero_grad() took the view away since the micro-batch began: what is there is only this backward's.
                view.add_(gradient)
            parameter.grad = view
        bucket = self._bucket_of[number]
        if number in self._seen:
            if self._reduction.strict or bucket < self._sent:
                raise UsageError(
                    f"{self._name(number)} got a gradient twice in one micro-batch, after its sum was begun; add up "
                    "the losses and call step.backward once for each micro-batch"
                )
            return
        self._seen.add(number)
        self._missing[bucket] -= 1
        if self._missing[bucket] == 0:
            self._reduction.filled(bucket)
            while self._last and self._sent < len(self._buckets) and self._missing[self._sent] == 0:
                self._send_next()

    def _send_next(self) -> None:
        self._reduction.send(self._sent)
        self._sent += 1

    def _end_round(self) -> None:
        """Take in what the job put in the gradients' places, and what no backward has filled."""
        if not self._accumulating or self._gradients is None:
            return
        for number, (parameter, view) in enumerate(zip(self._parameters, self._gradients.views, strict=True)):
            if parameter.grad is not view:
                self._take_in(number, parameter.grad, view)
        self._accumulating = False
        for bucket, missing in enumerate(self._missing):
            if missing:
                self._reduction.filled(bucket)

    def _take_in(self, number: int, replaced: torch.Tensor | None, view: torch.Tensor) -> None:
        """What the job replaced a gradient by is what it meant."""
        if self._bucket_of[number] < self._sent or (self._reduction.strict and number in self._seen):
            raise UsageError(
                f"the gradient of {self._name(number)} was replaced after its sum was begun; change gradients after "
                "the loop over step.micro_batches(), where they are the whole batch's"
            )
        if replaced is None:
            view.zero_()
        else:
            view.copy_(replaced)

    def _name(self, number: int) -> str:
        names = zip(self.model.named_parameters(), self._all(), strict=True)
        return next((name for (name, _), each in names if each is self._parameters[number]), f"parameter {number}")

    def _lay_out(self, trained: Sequence[nn.Parameter]) -> None:
        for handle in self._hooks:
            handle.remove()
        kept = {id(parameter) for parameter in trained}
        for parameter in self._parameters:
            if id(parameter) not in kept:
                parameter.grad = None  # a zero gradient would still let weight decay and momentum move it
        self._parameters = list(trained)
        self._buckets = lay_out(self._parameters)
        self._bucket_of = [0] * len(trained)
        for index, bucket in enumerate(self._buckets):
            for place in bucket.places:
                self._bucket_of[place.parameter] = index
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(self._arrived, number)
            )
            for number, parameter in enumerate(self._parameters)
        ]
