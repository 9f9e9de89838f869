"""The benchmarks of numerics and overhead run, and count right; never a time."""

import json
import subprocess
import sys

import pytest

from elastic.local.node import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


@pytest.mark.parametrize("bench", ["exact", "overhead"])
def test_a_tiny_run(bench):
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{bench}", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["bench"] == bench
    assert {type(row["ours"]) for row in told["rows"]} == {float}
    hashes = [row["ours"] for row in told["rows"] if row["unit"] == "hashes"]
    assert hashes == ([1.0] * 9 if bench == "exact" else [])
    assert len(told["rows"]) == {"exact": 9 + 8 + 2, "overhead": 2 + 3}[bench]
