"""What real agents export of the job: from one of them only, through the loss of the leader and of all of them."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from elastic.events import AgentStarted, LeaveAsked, Recovered, StepCommitted, WorldFormed
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from elastic.local.follow import Follower
from tests.harness.scrape import Key, parsed
from tests.harness.survival import cluster, leave_all
from tests.harness.until import of, until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

STEPS = ("elastic_steps_committed_total",)
TIME = "elastic_time_seconds_total"
NO_MORE_S = 3.0
"""How far the time by state may be from the time on the clock: agents start one after the other."""

AWAY_S = 100.0


def written(run: Cluster, name: str, *, times: int) -> None:
    """Wait until a file of counters was written so often from now on."""
    path = run.save_path / "events" / "totals" / name
    seen = set()

    def enough() -> bool:
        seen.add(path.stat().st_mtime_ns)
        return len(seen) > times

    with Follower(path.parent) as drafts:  # each begins as a new file beside it
        until(enough, what=f"{name} is written {times} times", limit_s=60, news=of(drafts))


def scraped(run: Cluster) -> dict[str, dict[Key, float]]:
    """By node: what each agent that lives exports."""
    found = {}
    for name, node in run.nodes.items():
        if node.process.poll() is None:
            started = [r.event for r in run.follower.records if isinstance(r.event, AgentStarted) and r.node == name]
            with urllib.request.urlopen(f"http://{started[-1].exporter}/metrics", timeout=10) as answer:
                found[name] = parsed(answer.read().decode())
    return found


def time_by_state(found: dict[str, dict[Key, float]]) -> dict[str, float]:
    """Summed over agents, as a dashboard does."""
    total: dict[str, float] = {}
    for metrics in found.values():
        for key, value in metrics.items():
            if key[0] == TIME:
                total[key[1][1]] = total.get(key[1][1], 0.0) + value
    return total


def who_shows(found: dict[str, dict[Key, float]]) -> list[str]:
    return [name for name, metrics in found.items() if STEPS in metrics]


def leader(run: Cluster) -> str:
    return [r.node for r in run.follower.records if isinstance(r.event, WorldFormed) and r.event.leader][-1]


def reached(run: Cluster) -> int:
    return max(r.event.iteration for r in run.follower.records if isinstance(r.event, StepCommitted))


def test_the_jobs_counters_go_on_when_the_leader_is_lost_and_when_all_are(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(60, world_size=3)
        began_s = min(r.time_s for r in run.follower.records)
        before, first = scraped(run), leader(run)
        assert who_shows(before) == [first]
        assert sum(time_by_state(before).values()) == pytest.approx(time.time() - began_s, abs=NO_MORE_S)

        at = run.now()
        run.nodes[first].kill()
        lost = run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at)
        assert isinstance(lost.event, Recovered)
        assert sum(seconds for _, seconds in lost.event.stages) == pytest.approx(lost.event.seconds, abs=0.01)
        run.wait_step(reached(run) + 30, since=at)
        after = scraped(run)
        (second,) = who_shows(after)
        assert second == leader(run) != first
        assert after[second][STEPS] > before[first][STEPS]
        assert after[second]["elastic_rescales_total", ("cause", "node_lost"), ("direction", "down")] == 1
        assert after[second]["elastic_samples_replayed_total",] == after[second]["elastic_samples_missed_total",] == 0
        times = time_by_state(after)
        assert sum(times.values()) == pytest.approx(time.time() - began_s, abs=NO_MORE_S)
        assert all(times[state] >= spent - 1.0 for state, spent in time_by_state(before).items())

        # A newcomer that becomes the last one knows of what was before it came.
        run.start("d")
        joined = run.now()
        run.wait_step(1, world_size=3, since=joined)
        written(run, "node-d.json", times=4)  # it asks the leader's book in the second of them that nothing hastened
        for name in [each for each in ("a", "b", "c") if run.nodes[each].process.poll() is None]:
            run.nodes[name].kill()
        run.wait_step(1, world_size=1, since=joined)
        alone = scraped(run)
        assert who_shows(alone) == ["d"]
        assert alone["d"][STEPS] > after[second][STEPS]
        assert sum(time_by_state(alone).values()) == pytest.approx(time.time() - began_s, abs=NO_MORE_S)
        leave_all(run)
        at = run.now()
        book = run.save_path / "events" / "totals" / "job.json"
        os.utime(book, (time.time(), book.stat().st_mtime - AWAY_S))  # as if nobody had been there for that long
        run.start("e")
        run.wait_step(1, since=at)
        again = scraped(run)
        assert again["e"][STEPS] > alone["d"][STEPS]
        times = time_by_state(again)
        assert times["down"] > AWAY_S
        assert sum(times.values()) == pytest.approx(time.time() - began_s + AWAY_S, abs=NO_MORE_S)
        leave_all(run)


def test_a_node_that_comes_back_goes_on_with_its_own_counters(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        failures = ("elastic_failures_total", ("reason", "worker_signal"))
        for count in (1, 2):
            at = run.now()
            (worker,) = run.nodes["b"].workers()
            os.kill(worker, signal.SIGKILL)
            run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at)
            assert scraped(run)["b"][failures] == count
        written(run, "node-b.json", times=1)
        at = run.now()
        run.nodes["b"].kill()
        run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at)
        at = run.now()
        run.start("b")
        run.wait_step(1, world_size=2, since=at)
        assert scraped(run)["b"][failures] == 2
        leave_all(run)
        run.now()
        asked = [r.event for r in run.follower.records if isinstance(r.event, LeaveAsked)]
        assert [(each.source, each.reason) for each in asked] == [("signal", "SIGTERM")] * 2
