"""Staying: a worker leaves its generation and takes part in the next with all it has, instead of being started again.

Possible where an agent of ours gives it its next place. Not while the optimizer is at work: its parameters are half of
one step and half of the next then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import Any

from torch.optim import Optimizer

from elastic.errors import Regroup
from elastic.link import Link, Stays
from elastic.world import World

_LOOK_S = 0.2
"""How often Python gets to handle a signal while the next place is waited for."""


class Staying:
    """One for each worker. `allowed`: whether workers of this job may stay."""

    def __init__(self, *, link: Link, allowed: bool = True) -> None:
        self._link, self._allowed = link, allowed
        self._touched = self._forbidden = False

    @property
    def general(self) -> bool:
        """Whether workers of this job stay at all: the same on all ranks."""
        return self._allowed and self._link.present

    @property
    def possible(self) -> bool:
        """Whether this worker could stay now."""
        return self.general and not self._touched and not self._forbidden

    def forbid(self) -> None:
        """This worker is to be started anew: what it has is not to be gone on from."""
        self._forbidden = True

    @property
    def over(self) -> bool:
        """Whether the agent says that the generation is broken."""
        return self._link.over

    def watch(self, optimizer: Optimizer) -> None:
        """Know when it is at work."""
        optimizer.register_step_pre_hook(self._begins)

    def committed(self) -> None:
        """A step is done on this rank: what is tracked is one whole state again."""
        self._touched = False

    def wait(
        self, *, lost: bool, generation: int, step: int, text: str, environ: MutableMapping[str, str],
        ends: Callable[[], bool] = lambda: False, idle: Callable[[], object] = lambda: None,
    ) -> World | None:  # fmt: skip
        """Tell the agent, and wait for the next place; None where there will be none, and what is here is to be saved.

        A signal meanwhile is the agent's to act upon: it knows whether others have what this worker has.

        Args:
            environ: of this process, brought up to date with the place.
            ends: whether what is here is saved and this worker is to end: the word for it may come a moment late.
            idle: called now and then, so that a long wait is not taken for a hang when it is over.

        Raises:
            Fenced: the agent is gone. Regroup: it `ends`.
        """
        link = self._link
        link.send_stays(Stays(generation=generation, lost=lost, step=step, text=text))
        while (place := link.next_place(limit_s=_LOOK_S)) is None:
            if ends():
                raise Regroup(text)
            if link.keep_wanted:
                return None
            idle()
        _redirect(place.stdout, fd=1)
        _redirect(place.stderr, fd=2)
        environ.update(place.environ)
        return World.from_environ(environ)

    def _begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._touched = True


def _redirect(path: str, *, fd: int) -> None:
    """Let output go to another file from here on."""
    if not path:
        return
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    os.dup2(opened, fd)
    os.close(opened)
