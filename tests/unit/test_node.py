"""Which of an agent's children are its workers."""

from __future__ import annotations

import subprocess

import pytest

from elastic.local.node import _command, _is_worker
from tests.harness.until import until

AGENT = b"python\0torchrun\0--nnodes=1:4\0elastic/worker.py\0"


@pytest.mark.parametrize(
    ("command", "worker"),
    [
        (b"python\0-u\0elastic/worker.py\0", True),
        (AGENT, False),
        (b"", False),
        (b"python\0-m\0elastic.rendezvous.lease_keeper\0", False),
        (b"python\0/somewhere/elastic/launch/zygote.py\0", False),
    ],
    ids=["a worker", "not yet what it will be", "begins or has ended", "the keeper", "the zygote"],
)
def test_which_children_are_workers(command, worker):
    assert _is_worker(command, agent=AGENT) is worker


def test_a_command_line_is_that_of_the_process():
    with subprocess.Popen(["cat", "-"], stdin=subprocess.PIPE) as process:
        until(lambda: _command(process.pid) == b"cat\0-\0", what="its command line, empty as it begins", limit_s=30)
    assert _command(process.pid) == b""
