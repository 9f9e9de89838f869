"""The compose file, run: four containers train; one is killed, one cut off, one frozen, and all is counted."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.data.audit import account
from elastic.events import Record, StepCommitted, WorldFormed, read_records
from elastic.local.follow import Follower
from tests.harness.containers import IMAGE, STAND_INS, Composed, events_in, require

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

PROMETHEUS, ALERTMANAGER = 19590, 19593
NODES = ("node0", "node1", "node2", "node3")


@pytest.fixture(scope="module")
def engine_is_there() -> None:
    """Before any test looks around: podman keeps a lock file in /dev/shm from its first command on."""
    require(IMAGE, STAND_INS)


@pytest.fixture
def project(engine_is_there: None) -> Iterator[Composed]:
    composed = Composed(
        "elastic-test", STEPS="100000", PROMETHEUS_PORT=str(PROMETHEUS), ALERTMANAGER_PORT=str(ALERTMANAGER)
    )
    try:
        yield composed
    finally:
        composed.down()


def steps_at(run: Follower, world_size: int, *, more: int, limit_s: float) -> Record:
    """Wait for some more steps in a world of this size."""
    run.read()
    since = len(run.records)
    seen: list[Record] = []

    def enough(record: Record) -> bool:
        if isinstance(record.event, StepCommitted) and record.event.world_size == world_size:
            seen.append(record)
        return len(seen) >= more

    return run.wait_for(enough, what=f"{more} steps of a world of {world_size}", limit_s=limit_s, since=since)


def asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return json.load(answer)


def wait_scraped(expression: str, wanted: float, *, limit_s: float = 60) -> None:
    """Until Prometheus knows it."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + limit_s
    value = None
    while SYSTEM_CLOCK.monotonic_s() < deadline_s:
        result = asked(PROMETHEUS, f"/api/v1/query?query={expression}")["data"]["result"]
        value = float(result[0]["value"][1]) if result else None
        if value == wanted:
            return
        SYSTEM_CLOCK.sleep(1)
    pytest.fail(f"{expression} is {value}, not {wanted}")


def test_killed_cut_off_and_frozen_nodes_of_four(project: Composed) -> None:
    project.up("etcd0", "etcd1", "etcd2", *NODES, "prometheus", "alertmanager")
    for node in NODES:
        host = project.inspect(node)["HostConfig"]
        assert host["ReadonlyRootfs"]
        seen = project.podman("top", project.name(node), "user", "capeff").splitlines()[1]
        assert seen.split() == ["10001", "none"]
    events = events_in(project.volume("checkpoint"))
    with Follower(events) as run:
        steps_at(run, 4, more=20, limit_s=120)

        project.podman("kill", "-s", "KILL", project.name("node2"))
        steps_at(run, 3, more=10, limit_s=30)
        project.podman("start", project.name("node2"))
        steps_at(run, 4, more=10, limit_s=60)

        with project.cut("node3"):
            steps_at(run, 3, more=10, limit_s=30)
            assert project.dropped("node3") > 0
        steps_at(run, 4, more=10, limit_s=90)

        with project.frozen("node1"):
            assert project.inspect("node1")["State"]["Status"] == "paused"
            steps_at(run, 3, more=10, limit_s=30)
        steps_at(run, 4, more=10, limit_s=90)

        rescales = sum(isinstance(r.event, WorldFormed) for r in run.records) - 1
        assert rescales >= 6
        wait_scraped("max(elastic_world_size)", 4)
        wait_scraped("count(up==1)", 4)
        rules = asked(PROMETHEUS, "/api/v1/rules")["data"]["groups"]
        assert {group["name"] for group in rules} >= {"elastic.checkpoint"}
        assert asked(PROMETHEUS, "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]

        # In order, all at once: what was done is saved, and each says that it wants to be started again.
        project.podman("stop", "-t", "60", *(project.name(node) for node in NODES))
        assert {project.inspect(node)["State"]["ExitCode"] for node in NODES} == {75}
    check_account(events)


def check_account(events: Path) -> None:
    """Every sample once."""
    result = account(read_records(events), order=None)
    assert not result.problems, result.problems
    assert (result.used_twice, result.never_used) == (0, 0)
