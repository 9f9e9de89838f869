"""What two processes share in memory: a reader finds what was there before or after a write, never anything between."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elastic.activity import SIZE_BYTES, ActivityPage, Doing
from elastic.clock import SYSTEM_CLOCK
from elastic.lease import AGENT, LeasePage
from tests.harness.until import until

LOOKS = 100_000
WRITER = """
import sys
from elastic.activity import ActivityPage, Doing
from elastic.clock import SYSTEM_CLOCK
from elastic.lease import AGENT, LeasePage
print("begins", flush=True)
if sys.argv[1] == "activity":
    page = ActivityPage.open(sys.argv[2])
    while True:
        for doing in (Doing.BETWEEN, Doing.STEP):
            page.begin(doing, pid=7, now_s=SYSTEM_CLOCK.monotonic_s())
else:
    page = LeasePage(sys.argv[2])
    while True:
        for number in (7, 8):
            page.generation = number
            page.extend(AGENT, until_s=1e6 + number)
"""


@pytest.fixture
def writer():
    """Starts a process that writes without end; all are ended."""
    started = []

    def start(what, path):
        process = subprocess.Popen([sys.executable, "-c", WRITER, what, str(path)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "begins\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_busy_worker_never_looks_like_one_that_hangs(tmp_path, writer):
    path = tmp_path / "page"
    path.write_bytes(bytes(SIZE_BYTES))
    page, began_s = ActivityPage.open(str(path)), SYSTEM_CLOCK.monotonic_s()
    writer("activity", path)
    seen = set()

    def look():
        for _ in range(LOOKS):
            now = page.seen()
            if now.pid:
                assert now.since_s >= began_s
                assert max(each.longest_s for each in now.times) < 60
                seen.add(now.doing)
        return seen == {Doing.BETWEEN, Doing.STEP}

    until(look, what="its writing meanwhile")
    page.close()


def test_a_lease_that_is_renewed_never_looks_ended(writer):
    page = LeasePage.create()
    page.generation = 7
    page.extend(AGENT, until_s=1e6 + 7)
    writer("lease", page.path)
    seen = set()

    def look():
        for _ in range(LOOKS):
            seen.add((page.generation, page.valid_until_s))
        return {number for number, _ in seen} >= {7, 8} and {until_s for _, until_s in seen} >= {1e6 + 7, 1e6 + 8}

    until(look, what="its writing meanwhile")
    assert len(seen) <= 4, "what was never written was seen"
    page.remove()
    assert not os.path.exists(page.path)
