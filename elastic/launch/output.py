"""Output: the agent owns what its workers print. It tells who said it, tells identical lines once, and keeps them.

Each worker gets two pipes in the place of the agent's own output. One thread reads all of them, so that a worker never
waits for more than a full pipe. Where torchrun was asked for files of its own, those are left to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TextIO

from elastic.clock import Clock
from elastic.launch.journal import Journal
from elastic.launch.lines import Collapser, Line, Splitter, told

TOGETHER_S = 0.2
"""How long a line waits for the same one of another worker of the node."""
PIPE_BYTES = 1 << 20
"""What a worker may print before it waits for the agent, where the kernel allows that much."""
LONGEST_SETTLE_S = 1.0
"""Some worker may print without an end."""
_READ_BYTES = 65536
STREAMS = ("stdout", "stderr")


@dataclass
class _Source:
    local_rank: int
    stream: str
    splitter: Splitter = field(default_factory=Splitter)


class Output:
    """`lend` pipes to workers, `name` them in each generation, `settle` before the agent's own last word, `stop`."""

    def __init__(
        self, *, node: str, workers: int, journal: Journal | None, clock: Clock, out: TextIO, err: TextIO
    ) -> None:
        """`out` and `err`: where stdout and stderr of the workers are told."""
        self._screens = {STREAMS[0]: out, STREAMS[1]: err}
        self._node, self._workers, self._journal, self._clock = node, workers, journal, clock
        self._collapser = Collapser(wait_s=TOGETHER_S if workers > 1 else 0.0)
        self._ranks: Mapping[int, int] = {}
        self._generation = 0
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._settled = threading.Condition()
        self._asked = self._done = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="elastic-output", daemon=True)
        self._thread.start()

    def lend(self, local_rank: int) -> tuple[int, int]:
        """Descriptors for a new worker's standard output and error; the caller closes them when it has started."""
        ends = []
        for stream in STREAMS:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            with contextlib.suppress(OSError):  # it is only to be larger
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            self._selector.register(reader, selectors.EVENT_READ, _Source(local_rank, stream))
            ends.append(writer)
        self._wake()  # whoever waits in an older select hears of them
        return ends[0], ends[1]

    def name(self, ranks: Mapping[int, int], *, generation: int) -> None:
        """By local rank: who the workers are from now on."""
        self._ranks, self._generation = dict(ranks), generation

    def settle(self, *, limit_s: float = 2.0) -> None:
        """Everything that was printed until now has been told, or the limit is over."""
        with self._settled:
            self._asked += 1
            wanted = self._asked
            self._wake()
            self._settled.wait_for(lambda: self._done >= wanted, limit_s)

    def stop(self) -> None:
        """Tell the rest. What is printed from here on is lost."""
        if self._stopping:
            return
        self.settle()
        self._stopping = True
        self._wake()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        os.close(self._wake_write)
        if self._journal is not None:
            self._journal.close()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake then
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        while not self._stopping:
            self._read(self._collapser.wait_s(now_s=self._clock.monotonic_s()))
            with self._settled:
                asked = self._asked
            if asked != self._done:
                until_s = self._clock.monotonic_s() + LONGEST_SETTLE_S
                while self._read(0) and self._clock.monotonic_s() < until_s:
                    self._tell(list(self._collapser.due(now_s=self._clock.monotonic_s(), everybody=self._workers)))
                self._tell(list(self._collapser.rest()))
                with self._settled:
                    self._done = asked
                    self._settled.notify_all()
            self._tell(list(self._collapser.due(now_s=self._clock.monotonic_s(), everybody=self._workers)))

    def _read(self, limit_s: float | None) -> bool:
        """Take in what is there; whether some worker had printed anything."""
        heard = False
        for key, _ in self._selector.select(limit_s):
            if key.fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, _READ_BYTES)
                continue
            try:
                data = os.read(key.fd, _READ_BYTES)
            except BlockingIOError:
                continue
            heard = True
            source: _Source = key.data
            now_s = self._clock.monotonic_s()
            self._add(source, source.splitter.feed(data, now_s=now_s) if data else source.splitter.end())
            if not data:
                self._selector.unregister(key.fd)
                os.close(key.fd)
        return heard

    def _add(self, source: _Source, texts: list[str]) -> None:
        rank = self._ranks.get(source.local_rank, source.local_rank)
        for text in texts:
            line = Line(
                time_s=self._clock.wall_s(),
                ranks=(rank,),
                generation=self._generation,
                stream=source.stream,
                text=text,
            )
            self._collapser.add(line, now_s=self._clock.monotonic_s())

    def _tell(self, lines: list[Line]) -> None:
        for line in lines:
            out = self._screens[line.stream]
            # A screen that is gone must not end the agent, nor keep the lines from their file.
            with contextlib.suppress(OSError, ValueError):
                out.write(f"[{self._node} r{told(line.ranks)}] {line.text}\n")
                out.flush()
            if self._journal is not None:
                self._journal.write(
                    time_s=line.time_s,
                    ranks=line.ranks,
                    generation=line.generation,
                    stream=line.stream,
                    text=line.text,
                )
