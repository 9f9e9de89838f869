"""Lines: what workers print, made fit for a screen, and identical lines of several workers as one. Pure.

Control characters and terminal sequences are taken out: they could move the cursor, colour what follows or lie about
what was said. A progress bar, which writes over its own line again and again, is told at a human pace.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST_BYTES = 65536
"""A line that goes on is cut there."""
MOST_HELD = 200
"""Who prints more than this in a moment has the oldest told without waiting for others."""
PROGRESS_S = 10.0
"""From one state of a progress bar to the next that is told."""
_ENDS = re.compile(rb"\r\n|\n|\r")
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\-_])")


def clean(text: str) -> str:
    """Without terminal sequences and control characters; tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    kept = _SEQUENCE.sub("", text)
    return "".join(sign for sign in kept if sign == "\t" or unicodedata.category(sign)[0] != "C").rstrip()


class Splitter:
    """One stream of one worker: bytes go in, clean lines come out."""

    def __init__(self) -> None:
        self._rest = b""
        self._told_progress_s = float("-inf")

    def feed(self, data: bytes, *, now_s: float) -> list[str]:
        """Lines that are whole now. Blank ones are left out."""
        found: list[str] = []
        self._rest += data
        begin = 0
        for end in _ENDS.finditer(self._rest):
            if end.group() == b"\r" and end.end() == len(self._rest):
                break  # a line feed may follow
            self._take(self._rest[begin : end.start()], found, passing=end.group() == b"\r", now_s=now_s)
            begin = end.end()
        self._rest = self._rest[begin:]
        while len(self._rest) > LONGEST_BYTES:
            self._take(self._rest[:LONGEST_BYTES], found, passing=False, now_s=now_s)
            self._rest = self._rest[LONGEST_BYTES:]
        return found

    def end(self) -> list[str]:
        """The stream is over: what came without an end of its own is a line, too."""
        found: list[str] = []
        self._take(self._rest.rstrip(b"\r"), found, passing=False, now_s=0.0)
        self._rest = b""
        return found

    def _take(self, raw: bytes, found: list[str], *, passing: bool, now_s: float) -> None:
        if passing:
            if now_s < self._told_progress_s + PROGRESS_S:
                return
            self._told_progress_s = now_s
        text = clean(raw.decode(errors="replace"))
        if text.strip():
            found.append(text)


@dataclass(frozen=True, kw_only=True)
class Line:
    """What some workers of a node said alike. `stream`: stdout or stderr."""

    time_s: float
    ranks: tuple[int, ...]
    generation: int
    stream: str
    text: str


class Collapser:
    """Holds lines back for a moment, so that the same one of several workers is told once. Each one's order stays."""

    def __init__(self, *, wait_s: float) -> None:
        self._wait_s = wait_s
        self._held: deque[tuple[float, Line]] = deque()
        self._full: deque[Line] = deque()  # waits no more

    def add(self, line: Line, *, now_s: float) -> None:
        """A line of one worker."""
        (rank,) = line.ranks
        after = 0  # a worker's line never goes before an earlier one of it
        for number, (_, held) in enumerate(self._held):
            if rank in held.ranks:
                after = number + 1
        for number in range(after, len(self._held)):
            since_s, held = self._held[number]
            if (held.text, held.stream, held.generation) == (line.text, line.stream, line.generation):
                ranks = tuple(sorted({*held.ranks, rank}))
                merged = Line(
                    time_s=held.time_s, ranks=ranks, generation=held.generation, stream=held.stream, text=held.text
                )
                self._held[number] = (since_s, merged)
                return
        self._held.append((now_s, line))
        if len(self._held) > MOST_HELD or not self._wait_s:
            self._full.append(self._held.popleft()[1])

    def due(self, *, now_s: float, everybody: int) -> Iterator[Line]:
        """What need not wait any longer, in order; `everybody`: how many workers there are."""
        while self._full:
            yield self._full.popleft()
        while self._held:
            since_s, line = self._held[0]
            if len(line.ranks) < everybody and now_s < since_s + self._wait_s:
                return
            self._held.popleft()
            yield line

    def wait_s(self, *, now_s: float) -> float | None:
        """How long until something is due; None where nothing waits."""
        if self._full:
            return 0.0
        return None if not self._held else max(0.0, self._held[0][0] + self._wait_s - now_s)

    def rest(self) -> Iterator[Line]:
        """All that waits."""
        while self._full:
            yield self._full.popleft()
        while self._held:
            yield self._held.popleft()[1]


def told(ranks: Sequence[int]) -> str:
    """Ranks in few signs: 0-3,6."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
