"""Committing through the agent: the worker asks, the agent compares and sets in etcd."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from elastic.checkpoint.launches import await_turn
from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.locating import local_dir, storage_for
from elastic.checkpoint.seams import Committer, CommitVerdict, LockCommitter
from elastic.clock import Clock
from elastic.errors import StoreUnavailable
from elastic.lease import LeasePage, Standing
from elastic.link import Link
from elastic.world import World

logger = logging.getLogger(__name__)

_HICCUP_S = 1.0
_LOOK_S = 0.02


class AgentCommitter:
    """`elastic.checkpoint.seams.Committer` over the line to the agent."""

    def __init__(self, link: Link, *, generation: int, page: LeasePage | None, clock: Clock) -> None:
        """`page`: says whether this node's lease holds; None where there is none to ask."""
        self._link, self._generation, self._page, self._clock = link, generation, page, clock

    def record(self) -> CommitRecord | None:
        """The record of the last commit, or None where nothing was committed yet (or etcd lost its data).

        Raises:
            StoreUnavailable: the agent could not read it; taking that for "nothing" would begin the run anew.
        """
        answer = self._link.ask("record")
        if not answer.granted:
            raise StoreUnavailable(f"the record of the last commit could not be read: {answer.reason}")
        return CommitRecord.from_plain(json.loads(answer.value)) if answer.value else None

    def commit(self, record: CommitRecord) -> CommitVerdict:
        """Make an iteration the one that counts, if this generation still is the present one."""
        standing = self._standing()
        if not standing.holds:
            # Asking would only keep training waiting for a store that is away.
            return CommitVerdict(granted=False, reason=standing.reason, stale=standing.stale)
        answer = self._link.ask("commit", value=json.dumps(record.to_plain(), sort_keys=True))
        return CommitVerdict(granted=answer.granted, reason=answer.reason, stale=answer.stale)

    def fence(self) -> str | None:
        """Why nothing may be published now; None if it may."""
        standing = self._standing()
        return None if standing.holds else standing.reason

    def _standing(self) -> Standing:
        if self._page is None:
            return Standing(holds=True, reason="this agent keeps no lease page")
        until_s = self._clock.monotonic_s() + _HICCUP_S
        while True:
            now_s = self._clock.monotonic_s()
            found = self._page.standing(generation=self._generation, now_s=now_s)
            # A renewal that is a little late, or keys being written again, are no reason to lose a save.
            if found.holds or found.stale or now_s >= until_s or _HICCUP_S < found.lapsed_s < now_s:
                return found
            self._clock.sleep(_LOOK_S)


class Bystander:
    """For ranks that never commit."""

    def record(self) -> CommitRecord | None:
        return None

    def commit(self, record: CommitRecord) -> CommitVerdict:
        return CommitVerdict(granted=False, reason="only rank 0 commits")

    def fence(self) -> str | None:
        return "only rank 0 commits"


def choose_committer(link: Link, *, world: World, save_path: str, clock: Clock, launch: str | None = None) -> Committer:
    """The agent where there is one of ours, else the lock on the root; nothing for ranks other than 0.

    `launch`: without an agent, the one that waits for its turn on a save path that others may have been launched on.

    Raises:
        UsageError: another process trains into this root, or (RunMismatch) another launch.
        CheckpointError: whether one does cannot be read.
    """
    if world.rank != 0:
        return Bystander()
    if not link.present:
        if launch is not None:
            await_turn(save_path, launch=launch, storage=storage_for(save_path), clock=clock, tell=logger.warning)
        return LockCommitter(local_dir(save_path))
    page = LeasePage(Path(world.lease_page)) if world.lease_page else None
    return AgentCommitter(link, generation=world.generation, page=page, clock=clock)
