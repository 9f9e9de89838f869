"""The benchmark of recoveries runs, every fault in it happens, and it counts right; never a time."""

import json
import subprocess
import sys

import pytest

from elastic.local.node import ROOT
from tests.harness.netns import why_no_netns

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def test_a_tiny_run():
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.recovery", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["bench"] == "recovery"
    assert len(told["rows"]) == 17 - bool(why_no_netns())
    counts = {row["case"]: row["ours"] for row in told["rows"] if row["unit"] in ("count", "steps")}
    assert len(counts) == 4
    assert counts["optimizer steps lost, at most"] <= 1
    assert sum(number for case, number in counts.items() if case.startswith("etcd")) == 0
    assert all(0 < row["ours"] < 60 for row in told["rows"] if row["unit"] == "s")
