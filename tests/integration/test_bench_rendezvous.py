"""The rendezvous benchmark runs, and what a job costs each agent does not grow with the job. Never a time."""

import json
import subprocess
import sys

import pytest

from elastic.local.node import ROOT

pytestmark = pytest.mark.integration


def test_what_an_agent_costs_is_flat():
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.rendezvous", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    flat = {row["case"]: row["ours"] for row in rows if row["unit"] == "x" and "CPU" not in row["case"]}
    assert len(flat) == 6, "messages and bytes of a start, of the loss of a member and of the leader"
    assert all(ratio <= 1.3 for ratio in flat.values()), flat
    for line in done.stdout.splitlines():
        if "per agent, member:" in line or "per agent, leader:" in line:
            written = float(line.partition("Txn ")[2].partition(",")[0])
            assert written <= 0.2, f"where a member is lost hardly anyone writes: {line}"
    counted = [line for line in done.stdout.splitlines() if "per agent, start" in line]
    for line in counted:
        assert "LeaseGrant 2.00" in line, "one lease each, asked for and granted"
        messages = float(line.split(" messages")[0].rpartition(" ")[2])
        assert messages <= 13, line
