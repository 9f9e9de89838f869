"""Meeting: the members of a generation come together in a group, and leave it again."""

from __future__ import annotations

from elastic.checkpoint.places import share
from elastic.clock import Clock
from elastic.distributed.group import Collectives
from elastic.distributed.joining import join
from elastic.distributed.links import Links
from elastic.events import Emit, GroupReady
from elastic.link import Link
from elastic.world import World


def meet(world: World, *, link: Link, emit: Emit, clock: Clock) -> Collectives:
    """Join the group of a generation; the agent's word that it broke ends whatever is waited for in it.

    Raises:
        PeerLost: another member did not come, or is gone again.
    """
    began_s = clock.monotonic_s()
    links = Links()
    link.when_over(links.cut)
    group = join(world, links=links)
    if world.distributed:
        backend = "gloo" if world.device == "cpu" else "nccl"
        emit(GroupReady(backend=backend, seconds=clock.monotonic_s() - began_s))
    return group


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
