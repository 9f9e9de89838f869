"""Jobs of several agents in this process, on a store in memory."""

import pytest

from elastic.rendezvous.memory import MemoryServer, MemoryStore
from tests.harness.agents import Job


@pytest.fixture
def server():
    return MemoryServer()


@pytest.fixture
def make_job(server):
    """Makes jobs; `options` are fields of RendezvousOptions. All are ended afterwards."""
    jobs = []

    def make(**options):
        jobs.append(Job(lambda: MemoryStore(server), **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
