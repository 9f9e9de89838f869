"""What a step frees stays with the process, so that the next one takes no fault for each page of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import resource, torch
from elastic.session.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):  # blocks of 512 KiB, 16 MiB in all, as a small model's forward and backward pass
        kept = [torch.empty(1 << 17).fill_(1.0) for _ in range(32)]
        del kept
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20

faults()
unasked = faults()
keep_freed_memory()
faults()
print(unasked, faults())
"""


def test_memory_that_a_step_frees_is_there_for_the_next() -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=alone, capture_output=True, text=True, check=True)
    unasked, kept = map(float, done.stdout.split())
    assert unasked > 1000, "nothing is given back anyway: the trick is needed no more"
    assert kept < 10
