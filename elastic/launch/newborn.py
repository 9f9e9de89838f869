"""Newborn: what a fork of the zygote does to be the worker that its agent ordered, before the worker's program runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from elastic.launch import proc_title
from elastic.launch.order import GO, Order, Program
from elastic.lifetime import die_with_agent

if TYPE_CHECKING:
    from elastic.launch.chance import Chance

COMM = "python"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What came of the zygote's getting ready. `refused`: why it must not be forked; empty where it may be."""

    refused: str = ""
    threads: int = 1
    """That torch would use in a new Python."""
    chance: Chance | None = None
    said: tuple[bytes, bytes] = (b"", b"")
    """What went to standard output and error meanwhile: each worker says it, as if it had imported all that itself."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Descriptors that come with an order."""

    COUNT: ClassVar[int] = 5

    order: int
    """Memory that holds it."""
    go: int
    """The end of a pipe, to read from."""
    standard_input: int
    standard_output: int
    standard_error: int

    @classmethod
    def of(cls, descriptors: Sequence[int]) -> Files:
        """In the order in which they travel."""
        order, go, standard_input, standard_output, standard_error = descriptors
        return cls(
            order=order,
            go=go,
            standard_input=standard_input,
            standard_output=standard_output,
            standard_error=standard_error,
        )

    def close(self) -> None:
        """Close all of them."""
        for descriptor in astuple(self):
            os.close(descriptor)


def become(files: Files, prepared: Prepared) -> Program:
    """Be the worker; returns what to run. Ends the process where the agent does not tell it to go on."""
    if os.read(files.go, len(GO)) != GO:
        os._exit(0)  # nobody knows of it: the agent has started another, or is gone
    order = Order.decode(os.pread(files.order, os.fstat(files.order).st_size, 0))
    for number, descriptor in enumerate((files.standard_input, files.standard_output, files.standard_error)):
        os.dup2(descriptor, number)
    files.close()
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.environ)
    die_with_agent(os.environ)
    proc_title.show([os.fsencode(word) for word in order.command], os.environb)
    Path("/proc/self/comm").write_text(COMM)
    _settle(order, prepared)
    for number, said in enumerate(prepared.said, start=1):
        with open(number, "wb", closefd=False) as out:
            out.write(said)
    return order.program


def _settle(order: Order, prepared: Prepared) -> None:
    """Python's and torch's own state, as a new Python has it that was started with this command."""
    import torch

    sys.orig_argv[:] = order.command
    if not sys.flags.safe_path:
        del sys.path[0]  # the zygote's
    if prepared.chance is not None:
        prepared.chance.apply()
    torch.set_num_threads(prepared.threads)
