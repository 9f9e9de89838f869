"""What several files need: jobs of agents in this process on a store in memory, and sessions."""

import sys

import pytest

import elastic
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from tests.harness.agents import Job
from tests.harness.gate import Gate


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


@pytest.fixture
def gate():
    """A disk that stalls; what waits on it goes on afterwards."""
    made = Gate()
    yield made
    made.open.set()


@pytest.fixture
def make_session(tmp_path, monkeypatch):
    """A session that saves into this test's directory; the command line says nothing."""
    monkeypatch.setattr(sys, "argv", ["own_loop.py"])

    def make(**overrides):
        given = {"steps": 6, "global_batch_size": 10, "micro_batch_size": 4, "save_path": str(tmp_path / "run")}
        return elastic.Session(environ={}, **{**given, **overrides})

    return make
