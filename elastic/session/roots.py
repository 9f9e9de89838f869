"""Which directory a run saves into, on which nodes, and whose it is: settled by all ranks at each start."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from elastic.checkpoint.kinship import one_identity
from elastic.checkpoint.locating import is_url, storage_for
from elastic.checkpoint.manager import CheckpointManager
from elastic.checkpoint.places import Places, find_places
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.seams import Committer
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import Clock
from elastic.config.choices import PathScope
from elastic.config.model import CheckpointSettings
from elastic.distributed.group import Collectives
from elastic.events import Emit, Notice, StorageRetried
from elastic.session.memory import open_memory
from elastic.world import World


def open_manager(
    checkpoint: CheckpointSettings, identity: RootIdentity, *, world: World, group: Collectives, committer: Committer,
    clock: Clock, emit: Emit,
) -> CheckpointManager:  # fmt: skip
    """The door to this run's checkpoints, over whatever directories save_path turns out to be. Raises as `settle`."""
    roots = settle(checkpoint, identity, world=world, group=group, committer=committer, clock=clock, emit=emit)
    return CheckpointManager(
        checkpoint,
        identity=roots.identity,
        group=group,
        committer=committer,
        emit=emit,
        storage=storage_for(
            checkpoint.save_path,
            checkpoint.load_path,
            checkpoint.checkpoint_path,
            clock=clock,
            tell=lambda text: emit(StorageRetried(reason=text)),
        ),
        clock=clock,
        generation=world.generation,
        tier=open_memory(world, checkpoint, emit=emit),
        places=roots.places,
        others_may_hold=roots.others_may_hold,
    )


def serve(
    manager: CheckpointManager, checkpoint: CheckpointSettings, identity: RootIdentity, *, world: World,
    group: Collectives, committer: Committer, clock: Clock, emit: Emit,
) -> None:  # fmt: skip
    """Let the door to this run's checkpoints serve another generation. Raises as `settle`."""
    roots = settle(checkpoint, identity, world=world, group=group, committer=committer, clock=clock, emit=emit)
    manager.serve(
        roots.identity,
        group=group,
        committer=committer,
        generation=world.generation,
        places=roots.places,
        others_may_hold=roots.others_may_hold,
    )


@dataclass(frozen=True, kw_only=True)
class Roots:
    """The run's identity, and the directories that save_path is where nodes do not share one."""

    identity: RootIdentity
    places: Places | None
    others_may_hold: bool = False
    """Whether nodes that are not here may hold more of the run, and the agents would wait for them."""


def settle(
    checkpoint: CheckpointSettings, identity: RootIdentity, *, world: World, group: Collectives, committer: Committer,
    clock: Clock, emit: Emit,
) -> Roots:  # fmt: skip
    """Find out who shares save_path, and give private directories one identity. `identity`: of this node's.

    Raises:
        UsageError, RunMismatch: directories that cannot be used, or not together.
        StoreUnavailable, PeerLost
    """
    root = checkpoint.save_path
    if is_url(root):
        return Roots(identity=identity, places=None)  # one for all by its nature
    storage = PosixStorage()
    places = find_places(
        root,
        scope=checkpoint.save_path_scope,
        node=world.node,
        group=group,
        storage=storage,
        clock=clock,
        nonce=lambda: secrets.token_hex(8),
    )
    waits = world.agent_socket is not None and not world.goes_back
    if places is None:
        shared = world.size > world.local_size or checkpoint.save_path_scope is PathScope.SHARED
        return Roots(identity=identity, places=None, others_may_hold=waits and not shared)
    if world.rank == 0:
        emit(Notice(text=f"save_path {root} is {places.count} directories on {world.size} workers: each keeps a copy"))
    identity = one_identity(root, identity, places=places, group=group, committer=committer, storage=storage)
    return Roots(identity=identity, places=places, others_may_hold=waits)
