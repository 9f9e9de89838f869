"""Joining: this process becomes a member of a generation's group, on the device that is its own."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist

# Its functions have the group there is while it is imported as a default, and keep it, its sockets and threads for the
# life of the process; called in a later group, they would talk in that one. Every optimizer imports it. So: before any.
import torch.distributed.nn.functional  # noqa: F401
from torch.distributed import distributed_c10d

from elastic.activity import Activity
from elastic.distributed import cuda
from elastic.distributed.group import Alone, Collectives, TorchGroup
from elastic.distributed.links import Links
from elastic.distributed.peers import peer_errors
from elastic.distributed.teardown import destroy
from elastic.errors import PeerLost, UsageError
from elastic.world import World

STORE_TIMEOUT_S = 30.0
"""For meeting the others. The agents have agreed already, so whoever is missing for so long is gone."""
COLLECTIVE_TIMEOUT_S = 1800.0
"""For one collective; a peer may evaluate or compile meanwhile. Lost peers are noticed by their sockets."""


def choose_device(world: World) -> World:
    """The same world with its device: a GPU of its own where there is one, else the CPU."""
    if not cuda.available():
        return replace(world, device="cpu")
    try:
        return replace(world, device=cuda.claim(world.local_rank))
    except IndexError as error:
        raise UsageError(str(error)) from error


def join(world: World, *, links: Links | None = None, environ: Mapping[str, str] = os.environ) -> Collectives:
    """Join this generation's group. A process may do so any number of times, once it has left the one before.

    Args:
        links: made by the caller just before, where another thread shall be able to cut this off while it waits.

    Raises:
        PeerLost: another member did not come, the store is gone, or the links were cut.
    """
    own = links or Links()
    if not world.distributed:
        own.settle()  # nothing of what is opened from now on is a group's
        return Alone()
    hook = sys.excepthook
    try:
        with peer_errors("the group of this generation formed", broken=lambda: own.is_cut):
            _check(own)
            store = _store_of(world, environ=environ)
            _check(own)  # before it is waited for anybody: a cut from here on breaks the connection to the store
            if world.device != "cpu":
                cuda.outlive_errors(os.environ)
                own.also = cuda.abort
            _init(world, store=store)
        own.settle()
        _check(own)
    except BaseException:
        own.settle()
        own.cut()
        destroy(excepthook=hook)
        raise
    return TorchGroup(world, links=own, excepthook=hook, activity=Activity.of(world))


def _check(links: Links) -> None:
    if links.is_cut:
        raise PeerLost("cut off while the group of this generation formed")


def _store_of(world: World, *, environ: Mapping[str, str]) -> Any:
    hosted_here = world.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        environ["MASTER_ADDR"],
        int(environ["MASTER_PORT"]),
        world_size=world.size,
        is_master=hosted_here,
        timeout=datetime.timedelta(seconds=STORE_TIMEOUT_S),
        wait_for_workers=False,
    )
    return dist.PrefixStore(f"generation-{world.generation}", store)  # type: ignore[attr-defined]


def _init(world: World, *, store: Any) -> None:
    """Meeting the others has a shorter limit than waiting for them later on."""
    dist.init_process_group(
        backend="gloo" if world.device == "cpu" else cuda.BACKEND,
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=datetime.timedelta(seconds=STORE_TIMEOUT_S),
    )
    distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
