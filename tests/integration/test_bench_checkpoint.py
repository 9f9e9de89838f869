"""The bench itself: it runs to its end on a small state, and what it prints can be read by a machine."""

import json
import subprocess
import sys

import pytest

from elastic.local.node import ROOT

pytestmark = pytest.mark.integration


def test_the_table_and_its_last_line():
    command = [sys.executable, "-m", "tests.bench.checkpoint", "--tiny"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "checkpoint"
    assert len(last["rows"]) == 13
    assert all(row["ours"] > 0 for row in last["rows"])
