"""Meeting: the members of a generation come together in a group, and leave it again."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from elastic.checkpoint.places import share
from elastic.clock import Clock
from elastic.distributed.group import Collectives
from elastic.distributed.joining import join
from elastic.distributed.links import Links
from elastic.distributed.proving import strangers
from elastic.errors import PeerLost
from elastic.events import Emit, GroupReady, Notice
from elastic.link import Link
from elastic.world import World


def meet(
    world: World, *, link: Link, emit: Emit, clock: Clock, draw: Callable[[int], bytes] = secrets.token_bytes
) -> Collectives:
    """Join the group of a generation; the agent's word that it broke ends whatever is waited for in it.

    Raises:
        PeerLost: another member did not come, is gone again, or does not know the generation's secret.
    """
    began_s = clock.monotonic_s()
    links = Links()
    link.when_over(links.cut)
    group = join(world, links=links)
    try:
        _let_in(strangers(group, secret=world.secret, generation=world.generation, draw=draw), world, emit=emit)
    except BaseException:
        leave(group, broken=True)
        raise
    if world.distributed:
        backend = "gloo" if world.device == "cpu" else "nccl"
        emit(GroupReady(backend=backend, seconds=clock.monotonic_s() - began_s))
    return group


def _let_in(unknown: tuple[int, ...], world: World, *, emit: Emit) -> None:
    if unknown:
        ranks = f"rank {unknown[0]} does" if len(unknown) == 1 else f"ranks {', '.join(map(str, unknown))} do"
        text = f"{ranks} not know the secret of generation {world.generation}: nothing is taken from there"
        emit(Notice(text=text))
        raise PeerLost(text)


def all_new(group: Collectives, *, stays: bool) -> bool:
    """Whether nobody has been in the run before: all are at the same place of their program then.

    Every rank calls it first of all. `stays`: whether this one has. Raises PeerLost.
    """
    return not any(share(group, stays))


def leave(group: Collectives, *, broken: bool) -> None:
    """Give up a group. `broken`: its peers may be gone; nobody is waited for then, and nobody waits for this rank."""
    if broken:
        group.cut()
    group.leave()
