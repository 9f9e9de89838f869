"""Scrapes of a real agent whose workers do their worst: hold the interpreter's lock, die two hundred times."""

from __future__ import annotations

import os
import signal
import statistics
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from elastic.events import AgentStarted, NodesAwaited, StepCommitted, WorkerStarted
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.faults import state_of
from tests.harness.scrape import Key, parsed
from tests.harness.survival import cluster, leave_all
from tests.harness.until import of, until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

RESTARTS = 200


class Scraper:
    """Scrapes one agent, and remembers how long each scrape took."""

    def __init__(self, run: Cluster) -> None:
        (started,) = [r.event for r in run.follower.records if isinstance(r.event, AgentStarted)]
        self._url = f"http://{started.exporter}/metrics"
        self.times_s: list[float] = []
        self.size_bytes = 0

    def __call__(self) -> dict[Key, float]:
        began_s = time.monotonic()
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            text = answer.read().decode()
        self.times_s.append(time.monotonic() - began_s)
        self.size_bytes = len(text)
        return parsed(text)

    def median_s(self, times: int) -> float:
        """Of so many scrapes, made now."""
        before = len(self.times_s)
        for _ in range(times):
            self()
        return statistics.median(self.times_s[before:])


def test_a_worker_that_holds_the_interpreters_lock_slows_no_scrape(tmp_path: Path, etcd: EtcdServer) -> None:
    held = tmp_path / "held"
    more = {
        "ELASTIC__JOB__TARGET": "tests.harness.hanging_job:holds_the_lock_for_a_while",
        "HANG_NODE": "a",
        "HANG_FILE": str(held),
    }
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **more) as run:
        run.start("a", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="0")
        run.wait_step(2)
        scrape = Scraper(run)
        usual_s = scrape.median_s(20)
        until(held.exists, what="the hold", limit_s=60, news=of(run.follower))
        began_s = time.monotonic()
        run.follower.read()
        before = max(r.event.iteration for r in run.follower.records if isinstance(r.event, StepCommitted))
        until(lambda: scrape()["elastic_step",] == before, what="word of its last step before")
        at, heard = len(scrape.times_s), len(run.follower.records)
        while time.monotonic() < began_s + 18:
            assert scrape()["elastic_step",] == before, "the worker goes on: it does not hold the lock"
            run.follower.wait(limit_s=0.2)
        assert run.now() == heard, "nobody could say anything"
        during = scrape.times_s[at:]
        assert statistics.median(during) < 2 * usual_s + 0.01
        assert max(during) < 1.0
        reached = run.now()
        run.wait_step(int(before) + 5, since=reached, limit_s=60)
        leave_all(run)


def probed(run: Cluster) -> dict[str, tuple[int, str]]:
    """What a kubelet is told."""
    (started,) = [r.event for r in run.follower.records if isinstance(r.event, AgentStarted)]
    found = {}
    for path in ("livez", "startupz", "readyz"):
        try:
            with urllib.request.urlopen(f"http://{started.exporter}/{path}", timeout=10) as answer:
                found[path] = (answer.status, answer.read().decode().strip())
        except urllib.error.HTTPError as error:
            with error:
                found[path] = (error.code, error.read().decode().strip())
    return found


def test_probes_kill_nobody_who_waits_for_peers(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100, nnodes="2:4") as run:
        run.start("a")
        run.wait(lambda r: isinstance(r.event, NodesAwaited), what="a wait for others", limit_s=60)
        found = probed(run)
        assert found["livez"] == found["startupz"] == (200, "ok")
        code, why = found["readyz"]
        assert (code, why.startswith("waiting for a generation: "), "of at least 2" in why) == (503, True, True), why
        leave_all(run)


def test_probes_kill_nobody_who_saves_for_long(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100) as run:
        node = run.start("a", ELASTIC_FAILPOINT="checkpoint.3=stop", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="0")
        run.wait_step(24)
        until(lambda: [state_of(pid) for pid in node.workers()] == ["T"], what="a save that does not end")
        found = probed(run)
        assert found["livez"] == found["startupz"] == (200, "ok")
        assert found["readyz"] == (200, "member of generation 1")
        os.kill(node.workers()[0], signal.SIGCONT)
        assert run.wait_exit("a", limit_s=60) == 0


def files_below(*places: Path) -> int:
    return sum(path.is_file() for place in places for path in place.rglob("*"))


def test_two_hundred_restarts_leave_scrapes_and_disk_as_they_were(tmp_path: Path, etcd: EtcdServer) -> None:
    logs, totals = tmp_path / "torchrun", tmp_path / "checkpoint" / "events" / "totals"
    options = (f"--log-dir={logs}",)
    with cluster(tmp_path, etcd.endpoint, steps=1_000_000, options=options) as run:
        run.start("a", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="0")
        run.wait_step(30)
        scrape = Scraper(run)

        def restart() -> None:
            at = run.now()
            (worker,) = run.nodes["a"].workers()
            os.kill(worker, signal.SIGKILL)
            new = run.wait(lambda r: isinstance(r.event, WorkerStarted), what="a new worker", limit_s=60, since=at)
            reached = max(r.event.iteration for r in run.follower.records[:at] if isinstance(r.event, StepCommitted))
            run.wait_step(reached + 2, since=at, after=new.generation - 1)
            # Only what follows is looked at: the list would grow with the run, and this test with its square.
            del run.follower.records[: -1000 if len(run.follower.records) > 2000 else 0]

        for _ in range(10):
            restart()
        early_s, early_bytes, early_files = scrape.median_s(30), scrape.size_bytes, files_below(logs, totals)
        descriptors = len(os.listdir(f"/proc/{run.nodes['a'].pid}/fd"))
        for _ in range(RESTARTS - 10):
            restart()
        late_s = scrape.median_s(30)
        found = scrape()
        assert found["elastic_failures_total", ("reason", "worker_signal")] == RESTARTS
        restarts = [value for key, value in found.items() if key[0] == "elastic_restarts_total"]
        assert sum(restarts) == RESTARTS
        assert late_s < 1.5 * early_s + 0.005
        assert scrape.size_bytes < 1.02 * early_bytes, "series, and not only digits, were added"
        assert files_below(logs, totals) == early_files
        assert len(os.listdir(f"/proc/{run.nodes['a'].pid}/fd")) <= descriptors + 1
        leave_all(run)
