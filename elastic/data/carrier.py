"""Carrier: torchdata's StatefulDataLoader brings the batches. The only module that touches it.

Its own state is never saved: it knows ranks and loader processes, and does not survive a change of either. A carrier
runs once, from the position its sampler was made with, and is then thrown away.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import multiprocessing
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from elastic.data.fetch import Fetched, Fetcher
from elastic.data.sampler import Key
from elastic.errors import DataError

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How batches are brought: the options of a DataLoader that do not change what is in them."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    """Called in each loader process with its number, as DataLoader does."""
    multiprocessing_context: str | None = None
    """How loader processes are started: fork, forkserver or spawn; None: as Python does."""


class Carrier:
    """Fetched micro-batches in the order of `batches`, through loader processes (or, with none, in this one)."""

    def __init__(self, fetcher: Fetcher, *, batches: Iterable[list[Key]], transport: Transport) -> None:
        """Raises DataError where the loader processes cannot be given the data set."""
        before = set(multiprocessing.active_children())
        self._batches: Iterator[Fetched] | None = _begin(_loader(fetcher, batches, transport), transport)
        self._processes = tuple(set(multiprocessing.active_children()) - before)
        # Loader processes ignore SIGTERM, by which multiprocessing would end them at exit: it would wait forever.
        self._end = functools.partial(_end, weakref.ref(self), self._processes)
        atexit.register(self._end)

    def __iter__(self) -> Iterator[Fetched]:
        return self

    def __next__(self) -> Fetched:
        if self._batches is None:
            raise StopIteration
        return next(self._batches)

    @property
    def processes(self) -> tuple[BaseProcess, ...]:
        """The loader processes, running or not."""
        return self._processes

    def close(self) -> None:
        """Drop what was fetched ahead and end the loader processes, by force if one hangs in an item."""
        self._end()
        atexit.unregister(self._end)


def _loader(fetcher: Fetcher, batches: Iterable[list[Key]], transport: Transport) -> Iterable[Fetched]:
    processes = transport.num_workers > 0
    with warnings.catch_warnings():
        # torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated; it has no effect on the batches.
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
        loader: Iterable[Fetched] = StatefulDataLoader(
            fetcher,
            batch_sampler=batches,
            collate_fn=_as_fetched,
            num_workers=transport.num_workers,
            prefetch_factor=transport.prefetch_factor if processes else None,
            pin_memory=transport.pin_memory,
            worker_init_fn=functools.partial(_enter_process, transport.worker_init_fn),
            multiprocessing_context=transport.multiprocessing_context if processes else None,
            # Own generator: making an iterator draws a seed, which must not move the caller's randomness.
            generator=torch.Generator(),
            snapshot_every_n_steps=None,
        )
    return loader


def _begin(loader: Iterable[Fetched], transport: Transport) -> Iterator[Fetched]:
    try:
        return iter(loader)
    except Exception as error:
        if transport.num_workers == 0 or not _cannot_be_sent(error):
            raise
        raise DataError(
            f"the data set, or a function given with it, cannot be sent to loader processes: {error}. Use what can be "
            "pickled (no lambdas, no open files or locks), start processes by fork, or set data.num_workers to 0"
        ) from error


def _cannot_be_sent(error: Exception) -> bool:
    """Pickling raises three kinds of errors, one of which has no public home but the module that is banned here."""
    text = str(error).lower()
    return type(error).__name__ == "PicklingError" or "pickle" in text or "can't get local object" in text


def _as_fetched(fetched: Fetched) -> Fetched:
    """The data set has put the batch together already."""
    return fetched


def _end(carrier: weakref.ref[Carrier], processes: tuple[BaseProcess, ...]) -> None:
    if (live := carrier()) is not None:
        live._batches = None  # the last reference: the iterator tells its processes to end, and waits a while for them
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()


def _enter_process(then: Callable[[int], Any] | None, number: int) -> None:
    """First thing in a loader process: the trainer alone decides when it ends, and it never outlives the trainer."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before the line above
        os._exit(1)
    if then is not None:
        then(number)
