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
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from elastic.data.fetch import Fetched, NumberedDataset
from elastic.data.sampler import Key

_PR_SET_PDEATHSIG = 1


class Carrier:
    """Fetched micro-batches in the order of `batches`, through `num_workers` loader processes (0: in this one)."""

    def __init__(
        self,
        dataset: NumberedDataset,
        *,
        batches: Iterable[list[Key]],
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        before = set(multiprocessing.active_children())
        self._batches: Iterator[Fetched] | None = iter(
            _loader(
                dataset,
                batch_sampler=batches,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                pin_memory=pin_memory,
            )
        )
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


def _loader(
    dataset: NumberedDataset,
    *,
    batch_sampler: Iterable[list[Key]],
    num_workers: int,
    prefetch_factor: int | None,
    pin_memory: bool,
) -> Iterable[Fetched]:
    with warnings.catch_warnings():
        # torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated; it has no effect on the batches.
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
        loader: Iterable[Fetched] = StatefulDataLoader(
            dataset,
            batch_sampler=batch_sampler,
            collate_fn=_as_fetched,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers > 0 else None,
            pin_memory=pin_memory,
            worker_init_fn=_enter_process,
            # Own generator: making an iterator draws a seed, which must not move the caller's randomness.
            generator=torch.Generator(),
            snapshot_every_n_steps=None,
        )
    return loader


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


def _enter_process(_worker_id: int) -> None:
    """First thing in a loader process: the trainer alone decides when it ends, and it never outlives the trainer."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before the line above
        os._exit(1)
