"""The page of results: what a run gave, file by file; a part of a run does not overwrite it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.results import Outcomes, Run, page

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_good(): pass

@pytest.fixture
def broken(): raise ValueError("no such thing")

def test_bad_fixture(broken): pass

@pytest.mark.skip(reason="not here")
def test_skipped(): pass

def test_bad(): assert 1 == 2
"""


def run(directory: Path, *arguments: str) -> str:
    (directory / "tests").mkdir(exist_ok=True)
    (directory / "tests" / "test_one.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.harness.results", "--results=page.md", *arguments]
    done = subprocess.run(
        command, cwd=directory, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_whole_run_writes_it_and_a_part_does_not(tmp_path: Path) -> None:
    said = run(tmp_path, "-k", "good")
    assert "this was a part of the tests" in said, said
    said = run(tmp_path, "tests/test_one.py")
    assert "this was a part of the tests" in said, said
    assert not (tmp_path / "page.md").exists()
    assert "page.md is written" in run(tmp_path)
    written = (tmp_path / "page.md").read_text()
    assert "| test_one.py | 1 | 2 | 1 | 0 |" in written
    assert "skipped: `tests/test_one.py::test_skipped`: Skipped: not here" in written
    assert "failed: `tests/test_one.py::test_bad_fixture`" in written


@pytest.mark.parametrize("minutes", [1, 59])
def test_the_first_line_says_what_a_number_is_worth(minutes: int) -> None:
    made = Run(date="2026-01-02", machine="2 cores", command="make test-all", seconds=60.0 * minutes)
    text = page(made, files={"tests/unit/test_x.py": Outcomes()}, told=[], slowest=[])
    assert f"`make test-all` on 2026-01-02, on 2 cores: {minutes} minutes, 0 passed, 0 failed, 0 skipped" in text
