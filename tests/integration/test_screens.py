"""Commands on a real terminal, and in a real pipe: what is drawn, what goes on as the run does, how it ends."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic import events
from elastic.local.node import ROOT
from tests.harness import story
from tests.harness.until import until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return story.write(tmp_path / "run", story.with_a_kill())


class Terminal:
    """A command whose terminal we hold the other end of."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 120))
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elastic", *words],
            cwd=ROOT,
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.drawn = b""

    def wait_for(self, *words: bytes) -> None:
        until(lambda: all(each in self.drawn for each in words), what=f"{words} on the terminal", news=self._read)

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def wait_end(self) -> int:
        until(lambda: self.process.poll() is not None, what="its end", news=self._read)
        return self.process.returncode

    def _read(self, limit_s: float) -> None:
        if select.select([self._ours], [], [], limit_s)[0]:
            try:
                self.drawn += os.read(self._ours, 65536)
            except OSError:
                return  # It has ended, and its terminal with it.

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[type[Terminal]]:
    made = []

    class Kept(Terminal):
        def __init__(self, *words: str) -> None:
            made.append(self)
            super().__init__(*words)

    yield Kept
    for each in made:
        each.close()


def test_top_draws_the_run_follows_it_and_ends_with_q(run_dir: Path, terminal: type[Terminal]) -> None:
    pytest.importorskip("textual", reason="not run: textual is not installed")
    top = terminal("top", str(run_dir), "--interval=0.1")
    top.wait_for(b"\x1b[?1049h", b"generation 2", b"its lease ended", b"Quit")
    story.write(run_dir, [story.record(events.LeaveAsked(source="drain", reason="a new disk"), at_s=131.0)])
    top.wait_for(b"asked to leave (drain): a new disk")
    top.press(b"q")
    assert top.wait_end() == 0
    assert b"\x1b[?1049l" in top.drawn, "the terminal is as it was"


def test_status_is_drawn_over_itself_until_the_run_ends(run_dir: Path, terminal: type[Terminal]) -> None:
    status = terminal("status", str(run_dir), "--watch", "--interval=0.1")
    status.wait_for(b"SILENT for ", b"nothing was heard for")
    story.write(run_dir, [story.ended(node, at_s=130.0, generation=2) for node in "ab"])
    assert status.wait_end() == 0
    assert status.drawn.count(b"\x1b[H\x1b[2J") >= 2
    assert b"FINISHED: done" in status.drawn


def test_events_are_told_as_they_come_until_interrupted(run_dir: Path) -> None:
    """In a pipe: plain text, line by line, none of them twice."""
    command = [sys.executable, "-m", "elastic", "events", "-f", str(run_dir)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        before = [next(process.stdout) for _ in range(20)]
        assert before == sorted(before, key=lambda line: line[:24])
        for number in range(3):
            told = events.Notice(text=f"word {number}")
            story.write(run_dir, [story.record(told, at_s=131.0 + number, node="abc"[number], generation=2)])
            until(lambda number=number: f"word {number}\n" in next(process.stdout), what=f"word {number}")  # type: ignore[misc, arg-type]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (out, err, process.returncode) == ("", "", 130)
