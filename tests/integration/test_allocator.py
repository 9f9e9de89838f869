"""What a step frees stays with the process, so that the next one takes no fault for each page of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

PROGRAM = """
import resource, sys, torch
from elastic.session.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):  # blocks of 512 KiB, 16 MiB in all, as a small model's forward and backward pass
        kept = [torch.empty(1 << 17).fill_(1.0) for _ in range(32)]
        del kept
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20

before = [bytearray(1 << 12) for _ in range(int(sys.argv[1]))]
keep_freed_memory()
faults()
print(faults())
"""


def faults(layout: int, **environ: str) -> float:
    """Of a round, in a process of its own. `layout`: pages that lie on its heap before."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", PROGRAM, str(layout)]
    done = subprocess.run(command, env=alone | environ, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.parametrize("layout", [0, 1, 10, 100, 1_000, 2_000, 5_000, 10_000])
def test_memory_that_a_step_frees_is_there_for_the_next(layout: int) -> None:
    """Without the call it is up to what else lies on the heap: none or thousands, in one of three processes."""
    assert faults(layout) < 10


def test_what_a_user_has_set_stays_and_faults_are_counted() -> None:
    assert faults(0, MALLOC_TRIM_THRESHOLD_="131072") > 1000
