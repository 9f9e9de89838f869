"""Data sets for tests of loading."""

import multiprocessing
import random
import threading

import numpy as np
import torch


class Drawing:
    """Items that hold their index and a draw from each generator that a loader must control."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, torch.rand(()).item(), random.random(), float(np.random.rand())


class Failing(Drawing):
    """Fails at one item, each time or once."""

    def __init__(self, length, *, at, times=1000):
        super().__init__(length)
        self.at = at
        self.times = times

    def __getitem__(self, index):
        if index == self.at and self.times > 0:
            self.times -= 1
            raise OSError("this item cannot be read")
        return super().__getitem__(index)


class Stuck(Drawing):
    """Never delivers an item; `entered` is set once one was asked for, in whatever process."""

    def __init__(self, length):
        super().__init__(length)
        self.entered = multiprocessing.Event()

    def __getitem__(self, index):
        self.entered.set()
        threading.Event().wait()


def as_list(items):
    """A collate function that leaves items alone and draws a number of its own."""
    return items, torch.rand(()).item()


class draw_shard:
    """Opens shards whose samples hold where they are from and draws of each generator; lengths differ by shard."""

    def __init__(self, most):
        self.most = most

    def __call__(self, shard, epoch):
        for item in range(1 + (shard * 7 + 3) % self.most):
            yield shard, epoch, item, torch.rand(()).item(), random.random(), float(np.random.rand())


class Lying(Drawing):
    """Holds fewer items than it says."""

    def __getitem__(self, index):
        if index >= self.length // 2:
            raise IndexError(f"index {index} is out of range")
        return super().__getitem__(index)


class Holding(Drawing):
    """Cannot be pickled."""

    def __init__(self, length):
        super().__init__(length)
        self.lock = threading.Lock()
