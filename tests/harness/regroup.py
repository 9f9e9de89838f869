"""Ranks as processes that a test moves from group to group, kills and freezes. Forked from a server that has torch."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from elastic.clock import SYSTEM_CLOCK

LIMIT_S = 20.0


class Rank:
    """One process. `hear` waits for a word of it."""

    def __init__(self, role: str) -> None:
        from tests.harness.regroup_rank import main

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.harness.regroup_rank"])
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=main, args=(theirs, role))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def tell(self, do: str, **what: Any) -> None:
        self._line.send_bytes(json.dumps({"do": do, **what}).encode())

    def hear(self, what: str, *, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Its next word of this kind, past any others."""
        word = self.heard(what, limit_s=limit_s)
        assert word is not None, f"the rank with pid {self.pid} did not say {what!r} within {limit_s} s: {self.state}"
        return word

    def heard(self, what: str, *, limit_s: float) -> dict[str, Any] | None:
        """The same, or None when the limit ran out first."""
        until_s = SYSTEM_CLOCK.monotonic_s() + limit_s
        while self._line.poll(max(0.0, until_s - SYSTEM_CLOCK.monotonic_s())):
            word: dict[str, Any] = json.loads(self._line.recv_bytes())
            if what in word:
                return word
        return None

    @property
    def state(self) -> str:
        """Its letter in /proc; empty when it is gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        """SIGKILL; returns when it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        self.gone(-signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP; returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        until_s = SYSTEM_CLOCK.monotonic_s() + LIMIT_S
        while self.state != "T":
            assert SYSTEM_CLOCK.monotonic_s() < until_s, self.state
            SYSTEM_CLOCK.sleep(0.001)

    def gone(self, exit_code: int) -> None:
        """Wait for its end, and check what it ended with."""
        self._process.join(LIMIT_S)
        assert self._process.exitcode == exit_code, self._process.exitcode
        self._process.close()
        self._line.close()


class Ranks:
    """As the agents of a job: a store for each generation, and a word to each rank."""

    def __init__(self, role: str, size: int) -> None:
        self._role = role
        self.ranks = [Rank(role) for _ in range(size)]
        self.generation = 0

    def form(self, ranks: Sequence[Rank]) -> list[dict[str, Any]]:
        """Let these join a group of their own, and what they say when their first sum is there."""
        self.invite(ranks, size=len(ranks))
        words = [rank.hear("joined") for rank in ranks]
        for word in words:
            assert word["first"] == [sum(range(1, len(ranks) + 1))], word
        return words

    def invite(self, ranks: Sequence[Rank], *, size: int) -> None:
        """Let these join a group of this size, in an order of their own."""
        self.ranks = list(ranks)
        self.generation += 1
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
        for number, rank in enumerate(ranks):
            rank.tell("join", rank=number, size=size, generation=self.generation, port=self._store.port)

    def replace(self, rank: Rank) -> list[Rank]:
        """The same ranks with a new one in this one's place."""
        return [Rank(self._role) if each is rank else each for each in self.ranks]

    def leave(self) -> None:
        """All leave in order, after a step."""
        for rank in self.ranks:
            rank.tell("leave")
        for rank in self.ranks:
            rank.hear("told")
        for rank in self.ranks:
            rank.hear("left")

    def end(self) -> None:
        """All end, having left their groups."""
        for rank in self.ranks:
            rank.tell("end")
        for rank in self.ranks:
            rank.gone(0)


@contextmanager
def ranks(role: str, size: int) -> Iterator[Ranks]:
    """Processes, which are killed where the test fails."""
    made = Ranks(role, size)
    try:
        yield made
    except BaseException:
        for rank in made.ranks:
            if rank.state:
                os.kill(rank.pid, signal.SIGUSR2)  # where it was
                SYSTEM_CLOCK.sleep(0.1)
                os.kill(rank.pid, signal.SIGKILL)
        raise
