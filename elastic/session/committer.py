"""Committing through the agent: the worker asks, the agent compares and sets in etcd."""

from __future__ import annotations

import json

from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.seams import Committer, CommitVerdict, LockCommitter
from elastic.errors import StoreUnavailable
from elastic.link import Link


class AgentCommitter:
    """`elastic.checkpoint.seams.Committer` over the line to the agent."""

    def __init__(self, link: Link) -> None:
        self._link = link

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
        answer = self._link.ask("commit", value=json.dumps(record.to_plain(), sort_keys=True))
        return CommitVerdict(granted=answer.granted, reason=answer.reason, stale=answer.stale)


class Bystander:
    """For ranks that never commit."""

    def record(self) -> CommitRecord | None:
        return None

    def commit(self, record: CommitRecord) -> CommitVerdict:
        return CommitVerdict(granted=False, reason="only rank 0 commits")


def choose_committer(link: Link, *, rank: int, save_path: str) -> Committer:
    """The agent where there is one of ours, else the lock on the root; nothing for ranks other than 0.

    Raises:
        UsageError: another process trains into this root.
    """
    if rank != 0:
        return Bystander()
    return AgentCommitter(link) if link.present else LockCommitter(save_path)
